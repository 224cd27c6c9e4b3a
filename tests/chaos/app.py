"""The programs of the chaos: those of the crash suite, and what writes, books, consumes and ships.

Importing this module adds them to the app of the crash suite, so only processes of the chaos do.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict
from uuid import UUID

import asyncpg

from holdfast import Context, Retry, current_activity, current_message, current_step
from tests.chaos.names import EVENT, FIFO, NEWS, PARCELS, STARTING, STREAM, TOKENS, WORDS
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
async def listen(ctx: Context, number: int) -> list[str]:
    """Take the words of another run, in their order, and then an event."""
    nonces: list[str] = []
    for expected in range(WORDS):
        word = await ctx.wait_for_signal("word", type=int)
        assert word == expected, f"word {word} in the place of {expected}"
        nonces.append((await act(f"listen {number} {word}"))["nonce"])
    await ctx.wait_for_event(f"{NEWS}.{number}")
    return [*nonces, (await act(f"listen {number} news"))["nonce"]]


class Talk(TypedDict):
    """Whom to talk to."""

    number: int
    to: str


@app.transaction
async def announce(connection: asyncpg.Connection, number: int) -> None:
    """Publish an event with the record of the step."""
    await connection.execute("select holdfast.publish($1, $2)", EVENT, str(number))


@app.workflow
async def talk(ctx: Context, given: Talk) -> None:
    """Send another run words, and publish an event."""
    for word in range(WORDS):
        ctx.signal_run(UUID(given["to"]), "word", word)
        await asyncio.sleep(0.02)
    await announce(given["number"])


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
