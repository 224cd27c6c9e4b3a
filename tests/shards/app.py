"""The app of these tests."""

from __future__ import annotations

import asyncio
from uuid import UUID

from holdfast import App, Context, Singleton

app = App("spread")


@app.workflow
async def add_one(ctx: Context, number: int) -> int:
    """Take a moment, and count."""
    await asyncio.sleep(0.01)
    return number + 1


@app.workflow
async def gather_signals(ctx: Context, count: int) -> list[object]:
    """Wait for so many signals, and return them in the order in which they came."""
    return [await ctx.wait_for_signal("tell") for _ in range(count)]


@app.workflow
async def tell(ctx: Context, to: str) -> None:
    """Send another run twenty signals, one behind the other."""
    for number in range(20):
        ctx.signal_run(UUID(to), "tell", number)
        await asyncio.sleep(0.001)


@app.workflow
async def wait_for_news(ctx: Context) -> object:
    """Wait for an event."""
    return (await ctx.wait_for_event("news.#")).payload


@app.workflow
async def parent(ctx: Context, count: int) -> list[int]:
    """Start children."""
    return await asyncio.gather(*(ctx.child(add_one, number) for number in range(count)))


@app.workflow
async def fail(ctx: Context) -> None:
    """End with an error."""
    raise ValueError("no")


@app.workflow
async def continue_with(ctx: Context, so_far: list[int]) -> list[int]:
    """Take five signals, each in a run of its own."""
    so_far.append(await ctx.wait_for_signal("tell", type=int))
    if len(so_far) < 5:
        ctx.continue_as_new(so_far)
    return so_far


@app.workflow(singleton=Singleton())
async def alone(ctx: Context) -> None:
    """Be the only active run."""
    await ctx.wait_for_signal("end")
