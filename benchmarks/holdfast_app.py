"""The benchmark's workflows in holdfast: `holdfast worker benchmarks.holdfast_app:app`."""

from __future__ import annotations

import asyncio
import os
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


@app.activity()
async def errand(i: int) -> dict[str, Any]:
    return {"errand": i, "ok": True}


@app.workflow
async def many(ctx: Context, n: int) -> int:
    for i in range(n):
        await work(i)
    return n


@app.workflow
async def keyed(ctx: Context, key: int) -> int:
    if key == 0:
        await ctx.wait_for_signal("go")
    await work(key)
    return key


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


@app.step
async def held() -> None:
    """Hang in the worker that is to be killed."""
    if os.environ.get("HANGS"):
        await asyncio.sleep(3600)


@app.workflow
async def interrupted(ctx: Context, n: int) -> int:
    for i in range(n):
        await work(i)
    await held()
    return n


@app.workflow
async def nap(ctx: Context, seconds: float) -> float:
    due = await clock() + seconds
    await ctx.sleep_until(datetime.fromtimestamp(due, UTC))
    return time.time() - due  # not in a step: its record would count as lateness


@app.workflow
async def punctual(ctx: Context, n: int) -> float:
    return time.time() - (ctx.scheduled_at or ctx.now()).timestamp()


@app.workflow
async def long(ctx: Context, n: int) -> list[float]:
    moments = [await clock() for _ in range(n)]
    await ctx.wait_for_signal("go")
    return [moments[0], moments[100], moments[-100], moments[-1]]


@app.workflow
async def trip(ctx: Context, n: int) -> list[float]:
    seconds = []
    for i in range(n):
        began = time.perf_counter()  # not in a step: its record would count as part of the trip
        await errand.with_options(queue="side")(i)
        seconds.append(time.perf_counter() - began)
    return seconds


@app.workflow
async def activities(ctx: Context, n: int) -> int:
    return len(await asyncio.gather(*(errand(i) for i in range(n))))


@app.workflow
async def children(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(many(1) for _ in range(n))))


@app.workflow
async def crowd(ctx: Context, n: int) -> int:
    return len(await asyncio.gather(*(gated(0) for _ in range(n))))


@app.workflow
async def crowds(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(crowd(n // 10) for _ in range(10))))
