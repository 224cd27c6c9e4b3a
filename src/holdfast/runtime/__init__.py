"""Durable asyncio: what the code of a run does, without I/O.

```
turn ──▶ code ──▶ loop
  └────────┴──▶ log
```
"""
