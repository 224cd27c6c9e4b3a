"""An app that does something of each kind that is counted."""

from __future__ import annotations

from uuid import UUID

from holdfast import App, Context, Retry, current_step

app = App("bakery")


@app.step(retry=Retry(attempts=3, base=0))
async def bake(loaf: int) -> int:
    if current_step().attempt == 1:
        raise ValueError("the oven is cold")
    return loaf


@app.activity
async def weigh(loaf: int) -> int:
    return loaf


@app.workflow
async def bread(ctx: Context, other: str) -> int:
    await bake(1)
    ctx.signal_run(UUID(other), "baked", "warm")
    ctx.signal_run(UUID(int=7), "nobody", "cold")
    return await weigh(2)


@app.workflow
async def wait(ctx: Context) -> str:
    return await ctx.wait_for_signal("baked", type=str)


@app.workflow(retention=0)
async def burn(ctx: Context) -> None:
    raise RuntimeError("burnt")


roll = app.flow("roll", input=int)


@roll.step
async def knead(run: int) -> int:
    return run + 1


@app.consumer("flour")
async def sift(kilos: int) -> None:
    assert kilos > 0
