"""Durable asyncio: what the code of a run does, without I/O.

```
turn ──▶ code ──▶ loop
  └────────┴──▶ log
attempts: what the code of a step or an activity can ask about its own attempt
```
"""
