"""The workflow of the demo: reserve, charge, pack in parallel, wait for the courier, notify."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Context, current_step
from holdfast.demo.ledger import Ledger

LEDGER_VARIABLE = "HOLDFAST_DEMO_LEDGER"
COOLING_SECONDS = 2.0

app = App("demo")


@dataclass
class Order:
    """What a customer wants."""

    number: int
    items: list[str]


@dataclass
class Delivery:
    """What became of a customer's order."""

    payment: str
    parcels: list[str]
    courier: str


async def effect(seconds: float) -> str:
    """Ask the outside world for something, and return its receipt when it has happened."""
    step, ledger = current_step(), Ledger(Path(os.environ[LEDGER_VARIABLE]))
    ledger.ask(step.key, step.idempotency_key)
    await asyncio.sleep(seconds)
    return ledger.act(step.key, step.idempotency_key)


@app.step
async def reserve(order: Order) -> str:
    """Reserve the items of this order."""
    return await effect(0.2)


@app.step
async def charge(order: Order) -> str:
    """Take the money: the one thing that must not happen twice."""
    return await effect(0.3)


@app.step
async def pack(item: str, seconds: float) -> str:
    """Put an item into a parcel."""
    return await effect(seconds)


@app.step
async def notify(order: Order, courier: str) -> str:
    """Tell the customer."""
    return await effect(0.2)


@app.workflow
async def fulfil(ctx: Context, order: Order) -> Delivery:
    """Fulfil a customer's order."""
    await reserve(order)
    payment = await charge(order)
    parcels = await asyncio.gather(
        *(pack(item, 0.3 + 0.6 * place) for place, item in enumerate(order.items))
    )
    await asyncio.sleep(COOLING_SECONDS)  # durable: no worker is needed while it lasts
    pickup = await ctx.wait_for_signal("picked-up", type=dict[str, str], timeout="1h")
    await notify(order, pickup["courier"])
    return Delivery(payment, parcels, pickup["courier"])
