"""Workflows whose traces the tests look at."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from datetime import timedelta
from pathlib import Path

from holdfast import App, Context, Retry

app = App("shop")
logger = logging.getLogger("shop")


@app.step(retry=Retry(attempts=3, base=timedelta(milliseconds=1)))
async def charge(cents: int) -> str:
    from opentelemetry import trace

    logger.info("charging %d", cents)
    with trace.get_tracer("bank").start_as_current_span("bank.call"):
        pass
    return f"receipt {cents}"


@app.step(retry=Retry(attempts=2, base=timedelta(milliseconds=1)))
def unsteady(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        raise ConnectionError("the secret of the bank")
    return "at last"


@app.step
def dies_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.activity
def render(page: int) -> str:
    return f"page {page}"


@app.workflow
async def pack(ctx: Context, box: int) -> int:
    await charge(box)
    return box


@app.workflow
async def order(ctx: Context, marker: str) -> str:
    receipt = await charge(42)
    await unsteady(marker)
    await asyncio.sleep(1.1)
    await pack(7)
    await render(1)
    return receipt


@app.workflow
async def lost(ctx: Context, marker: str) -> str:
    await charge(1)
    return await dies_once(marker)


@app.workflow
async def deliver(ctx: Context, parcel: str) -> str:
    await ctx.wait_for_signal("packed")
    return await charge(3)


trip = app.flow("trip", input=int)


@trip.step
async def book(run: int) -> int:
    return run + 1


@trip.step
def travel(book: int) -> int:
    return book + 1
