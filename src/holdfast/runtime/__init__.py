"""Durable asyncio.

```
driving ──▶ turn ──▶ code ──▶ loop
   │          └───────┴──▶ log
   ├──▶ attempts           what runs outside of the loop
   └──▶ committing         what is made durable
```
"""
