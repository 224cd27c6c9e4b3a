"""Running workflows in tests: real engine code, no database, no waiting.

Time is virtual. It stands still while a test reads runs and sends signals, and it jumps from one
due moment to the next while a test awaits a result.

```python
async def test_a_customer_is_reminded_after_a_week() -> None:
    async with Environment(app) as env:
        handle = await env.client.start(checkout, cart)
        await env.advance("6d")
        assert reminders == []
        await handle.signal("packed")
        assert await env.result(handle) == receipt
```

`holdfast.pytest` is a plugin for pytest, with fixtures and marks that are made of it.
"""

from holdfast.testing.environment import Environment

__all__ = ["Environment"]
