"""The event loop of workflows: plain asyncio, without a clock or I/O."""
