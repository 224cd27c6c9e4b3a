"""The benchmark's workflows in holdfast: `holdfast worker benchmarks.holdfast_app:app`."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from holdfast import App, Context

app = App("bench")


@app.step
async def work(i: int) -> dict[str, Any]:
    return {"step": i, "ok": True}


@app.step
async def clock() -> float:
    return time.time()


@app.workflow
async def many(ctx: Context, n: int) -> int:
    for i in range(n):
        await work(i)
    return n


@app.workflow
async def fan(ctx: Context, n: int) -> int:
    await asyncio.gather(*(work(i) for i in range(n)))
    return n


@app.workflow
async def gated(ctx: Context, n: int) -> int:
    for i in range(n):
        await work(i)
    await ctx.wait_for_signal("go")
    return n


@app.workflow
async def nap(ctx: Context, seconds: float) -> float:
    due = await clock() + seconds
    await ctx.sleep_until(datetime.fromtimestamp(due, UTC))
    return time.time() - due  # not in a step: its record would count as lateness


@app.workflow
async def long(ctx: Context, n: int) -> list[float]:
    moments = [await clock() for _ in range(n)]
    await ctx.wait_for_signal("go")
    return [moments[0], moments[100], moments[-100], moments[-1]]
