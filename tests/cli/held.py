"""An app whose workflow code holds its worker, for the tests of the watchdog."""

# To block is what this code is for.
# ruff: noqa: ASYNC230, ASYNC240, ASYNC251

from __future__ import annotations

import asyncio
import os
import pdb
import time
from pathlib import Path

from holdfast import App, Context

app = App("held", blocking_limit="500ms")


@app.step
def double(number: int) -> int:
    return 2 * number


@app.step
def wait_for(path: str) -> int:
    """Say that it runs, and run until it is let go."""
    Path(f"{path}-{os.getpid()}").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@app.step
async def block(path: str) -> None:
    """Hold the event loop as no async step should."""
    Path(path).touch()
    time.sleep(3600)


@app.workflow
async def spins(ctx: Context) -> None:
    while True:
        pass


@app.workflow
async def blocks(ctx: Context) -> None:
    """Hold the worker as `spins` does, without its processor, which other tests need."""
    time.sleep(3600)


@app.workflow
async def sleeps(ctx: Context) -> None:
    await double(1)
    time.sleep(3600)


@app.workflow
async def spins_while_it_closes(ctx: Context) -> None:
    try:
        await ctx.wait_for_signal("go")
    finally:
        time.sleep(3600)


@app.workflow
async def blocks_in_step(ctx: Context, path: str) -> None:
    await block(path)


@app.workflow
async def neighbour(ctx: Context, number: int) -> int:
    await asyncio.sleep(0.3)
    return await double(number)


@app.workflow
async def busy_neighbour(ctx: Context, path: str) -> int:
    return await wait_for(path)


@app.workflow
async def debugged(ctx: Context, commands: str) -> str:
    with open(commands) as stdin, open(os.devnull, "w") as stdout:
        pdb.Pdb(stdin=stdin, stdout=stdout).set_trace()
        return "done"
