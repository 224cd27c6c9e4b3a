"""The programs of the chaos: those of the crash suite, and what writes, books, consumes and ships.

Importing this module adds them to the app of the crash suite, so only processes of the chaos do.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from holdfast import Context, Retry, current_activity, current_message, current_step
from tests.chaos.names import EVENT, FIFO, PARCELS, STARTING, STREAM, TOKENS
from tests.crash.across import app
from tests.crash.worker import work as work_of_crash
from tests.crash.workload import Effect, act, leave_trace

_AGAIN = Retry(attempts=30, base="20ms", max="200ms")


async def write(out: Any, nonce: str, *, fails: bool) -> None:
    """Write the tokens of one execution; fail in the middle of them."""
    for number in range(TOKENS):
        if fails and number == TOKENS // 2:
            raise ConnectionError("stumbled")
        await out.write(f"{nonce} {number}")
        await asyncio.sleep(0.01)


@app.step(retry=_AGAIN)
async def speak(number: int) -> Effect:
    """Write tokens; of every third run, the first attempt fails in the middle."""
    step = current_step()
    effect = leave_trace("speak", step.idempotency_key, step.attempt)
    await write(step.stream(STREAM), effect["nonce"], fails=number % 3 == 0 and step.attempt == 1)
    return effect


@app.activity(retry=_AGAIN)
async def shout(number: int) -> Effect:
    """The same in an activity, of every fifth run."""
    activity = current_activity()
    effect = leave_trace("shout", activity.idempotency_key, activity.attempt)
    await write(
        activity.stream(STREAM), effect["nonce"], fails=number % 5 == 0 and activity.attempt == 1
    )
    return effect


@app.workflow
async def tell(ctx: Context, number: int) -> list[str]:
    """Write tokens in a step, in the code and in an activity."""
    first = await speak(number)
    await ctx.stream(STREAM).write("between")
    second = await shout(number)
    return [first["nonce"], second["nonce"]]


@app.transaction
async def book(connection: asyncpg.Connection, run_id: str) -> str:
    """Have an effect in the database, in the transaction that records the step."""
    await connection.execute("insert into public.booked values ($1)", run_id)
    return run_id


@app.workflow
async def stay(ctx: Context, number: int) -> str:
    return await book(str(ctx.run_id))


@app.workflow
async def narrow(ctx: Context, number: int) -> list[str]:
    """Have effects under a limit of runs at once."""
    return [(await act(f"narrow {number}"))["nonce"] for _ in range(2)]


@app.workflow
async def ship(ctx: Context, number: int) -> list[str]:
    """What an event or a message starts."""
    return [(await act(f"ship {number}"))["nonce"]]


@app.workflow
async def tick(ctx: Context, number: int) -> list[str]:
    """What a schedule starts."""
    return [(await act("tick"))["nonce"]]


app.subscribe(EVENT, ship)


def note(number: int) -> None:
    """Leave a trace of a message, which says how often it was received."""
    message = current_message()
    leave_trace(message.group or "", f"{message.queue}/{number}", message.attempt)


@app.consumer(PARCELS, concurrency=4)
async def pack(number: int) -> None:
    await asyncio.sleep(0.01)
    note(number)


@app.consumer(FIFO, concurrency=4)
def move(number: int) -> None:
    note(number)


@app.consumer(STARTING)
async def order(number: int) -> None:
    current_message().start(ship, number, tags=["message"])


def work(*given: Any) -> None:
    """Be a worker process of this app until it is killed."""
    work_of_crash(*given)
