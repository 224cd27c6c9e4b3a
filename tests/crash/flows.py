"""The workload of the crash suite that is a graph: single steps, maps behind maps, retries."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from holdfast import Context, current_flow_step
from holdfast.types import ErrorInfo
from tests.crash.across import app
from tests.crash.workload import Effect, leave_trace
from tests.crash.workload import act as trace


class Sheet(TypedDict):
    """The input of the flow: how many rows its maps have, and how long each takes."""

    rows: int
    seconds: float


sheet = app.flow("sheet", input=Sheet, attempts=8, base_delay=0)


def act(place: str) -> Effect:
    """Have an effect."""
    step = current_flow_step()
    return leave_trace(place, step.idempotency_key, step.attempt)


@sheet.step
async def rows(run: Sheet) -> list[float]:
    """Say what is to be done."""
    return [run["seconds"]] * run["rows"]


@sheet.map(rows)
async def first(seconds: float) -> Effect:
    """Have an effect, with a pause on either side for kills to land in."""
    await asyncio.sleep(seconds)
    effect = act("first")
    await asyncio.sleep(seconds)
    return effect


@sheet.map(first)
def second(effect: Effect) -> Effect:
    """Have an effect from a thread; every seventh fails at its first attempt."""
    step = current_flow_step()
    assert step.index is not None
    if step.index % 7 == 0 and step.last_error is None and step.attempt == 1:
        raise ConnectionError("stumbled")
    return act(f"second after {effect['nonce']}")


@sheet.step
async def beside(run: Sheet) -> Effect:
    """Have an effect while the maps are under way."""
    await asyncio.sleep(run["seconds"])
    return act("beside")


@sheet.step
def joined(first: list[Effect], second: list[Effect], beside: Effect) -> list[str]:
    """Return the nonces of all that was done, in order."""
    return [effect["nonce"] for effect in (*first, *second, beside)]


letters = app.flow("letters", input=Sheet, attempts=8, base_delay=0)


@letters.step
async def places(run: Sheet) -> list[float]:
    """Say what is to be done."""
    return [run["seconds"]] * run["rows"]


@letters.map(places, tolerate="50%", concurrency=3, attempts=3)
async def sent(seconds: float) -> str:
    """Leave a trace at the begin and at the end; every fourth fails at each attempt."""
    step = current_flow_step()
    assert step.index is not None
    leave_trace("begin", f"{step.idempotency_key}/begin", step.attempt)
    await asyncio.sleep(seconds)
    effect = leave_trace("end", f"{step.idempotency_key}/end", step.attempt)
    if step.index % 4 == 1:
        raise ConnectionError("refused")
    return effect["nonce"]


@letters.step(attempts=1)
async def counted(sent: list[str | None]) -> int:
    """Fail where there is an odd number."""
    if len(sent) % 2:
        raise ValueError("odd")
    return len(sent)


@letters.step(trigger_rule="one_failed")
async def handled(counted: ErrorInfo) -> str:
    """Return why it failed."""
    return str(counted.cause)


@letters.step(trigger_rule="all_done")
async def told(
    sent: list[str | None] | ErrorInfo, counted: int | ErrorInfo, handled: str | ErrorInfo | None
) -> tuple[object, object, list[int]]:
    """Return what was given."""
    assert isinstance(counted, ErrorInfo) == isinstance(handled, str)
    return sent, handled, sorted(current_flow_step().errors("sent"))


@letters.step(trigger_rule="always")
async def cleaned(places: list[float] | ErrorInfo | None) -> str:
    """Take a while, so that kills land in it."""
    await asyncio.sleep(0.1)
    return act("cleaned")["nonce"]


@app.workflow
async def parcel(ctx: Context, seconds: float) -> str:
    """Have an effect, with a sleep on either side for kills to land in."""
    await ctx.sleep(seconds)
    effect = await trace("parcel")
    await ctx.sleep(seconds)
    return effect["nonce"]


orders = app.flow("orders", input=Sheet, attempts=8, base_delay=0)


@orders.step
async def lines(run: Sheet) -> list[float]:
    """Say what is to be packed."""
    return [run["seconds"]] * run["rows"]


packed = orders.run_map("packed", parcel, over=lines, concurrency=3)


@orders.step
async def pause(run: Sheet) -> float:
    """Say how long the last parcel takes."""
    return run["seconds"]


last = orders.run_step("last", parcel, of=pause)


@orders.step
def shipped(packed: list[str], last: str) -> list[str]:
    """Return the nonces of all parcels, in order."""
    return [*packed, last]
