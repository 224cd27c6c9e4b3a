"""The app of workers that take a transactional step over from one that stopped, or was killed."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

import asyncpg

from holdfast import App, Context, Database, Retry, StepFailed
from holdfast.database import sessions
from holdfast.worker import transaction_attempts

URL = os.environ["HOLDFAST_DATABASE_URL"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strict": {"isolation": "repeatable read"},
    "elsewhere": {"database": Database(URL)},
}
app = App("taken")
if os.environ["END"] == "stops":
    vars(sessions)["IDLE_SECONDS"] = 2  # else the test would take 30 s
if os.environ["END"] == "sleeps":  # each attempt began an hour ago
    vars(transaction_attempts)["time"] = SimpleNamespace(time=lambda: time.time() - 3600)


@app.transaction(retry=Retry(attempts=2, base="10ms"), **OPTIONS[os.environ["WAY"]])
async def pay(connection: asyncpg.Connection, order: int) -> str:
    if os.environ["END"] == "fails":
        raise ValueError("no money")
    await connection.execute("insert into public.paid values ($1)", order)
    await connection.execute("select pg_advisory_xact_lock_shared(7)")
    return "paid"


@app.transaction
async def count(connection: asyncpg.Connection, order: int) -> str:
    await connection.execute("update public.paid set number = number + $1", order)
    if os.environ["END"] == "stops":
        await asyncio.sleep(1)  # the worker is stopped meanwhile
    return "paid"


@app.workflow
async def stop(ctx: Context, order: int) -> str:
    return await count(order)


@app.workflow
async def buy(ctx: Context, order: int) -> str:
    try:
        return await pay(order)
    except StepFailed:
        return "not paid"


@app.step(retry=Retry(attempts=1))
async def ship(order: int) -> str:
    if os.environ["END"] != "ships":
        await asyncio.sleep(1)
        raise OSError("no ship")
    return "shipped"


@app.workflow
async def deliver(ctx: Context, order: int) -> list[str]:
    return list(await asyncio.gather(pay(order), ship(order)))
