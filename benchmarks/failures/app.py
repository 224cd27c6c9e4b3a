"""The load of the table of failures: a workflow whose steps and activity leave traces in a file.

Each execution draws a nonce, writes it, and returns it with the nonce of the one before. So the
file says what was executed how often, and a log in which two histories were mixed shows it: a
result that was computed from another result than the one that stands before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Literal, TypedDict
from uuid import uuid4

from holdfast import App, Context, Retry, current_activity, current_step

TRACES = "HOLDFAST_FAILURES_TRACES"
NAME = "failures/order"
SIGNAL = "go"

app = App("failures", retry=Retry(attempts=20, base="100ms", max="2s"))


class Job(TypedDict):
    """The input of a run: how many long steps it has."""

    number: int
    length: int


def executions_of(job: Job) -> int:
    """Return how many steps and activities a run has."""
    return job["length"] + 4


class Effect(TypedDict):
    """What an execution returns: its nonce, and that of the execution before it."""

    nonce: str
    after: str


class Trace(TypedDict):
    """A line of the file. `call` is the idempotency key of a step or activity."""

    what: Literal["begin", "effect"]
    call: str
    nonce: str
    after: str
    pid: int
    at: float


def leave_trace(what: Literal["begin", "effect"], call: str, effect: Effect) -> None:
    """Write one line, whole or not at all: the kernel has it even if this process is killed."""
    line = Trace(what=what, call=call, **effect, pid=os.getpid(), at=time.time())
    file = os.open(os.environ[TRACES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


async def have_effect(call: str, after: str, seconds: float) -> Effect:
    """Take a while, have the effect in the middle of it, and return what it was."""
    effect = Effect(nonce=uuid4().hex, after=after)
    leave_trace("begin", call, effect)
    await asyncio.sleep(seconds / 2)
    leave_trace("effect", call, effect)
    await asyncio.sleep(seconds / 2)
    return effect


@app.step
async def act(after: str, seconds: float) -> Effect:
    return await have_effect(current_step().idempotency_key, after, seconds)


@app.activity
async def errand(after: str) -> Effect:
    return await have_effect(current_activity().idempotency_key, after, 0.05)


@app.workflow
async def order(ctx: Context, job: Job) -> list[str]:
    """Run short and long steps, sleep, wait for a signal, run an activity and one more step."""
    effects = [await act("", 0.05)]
    for _ in range(job["length"]):
        effects.append(await act(effects[-1]["nonce"], 0.5))
    await asyncio.sleep(0.2)
    word = await ctx.wait_for_signal(SIGNAL, type=str)
    effects.append(await act(effects[-1]["nonce"] + word, 0.05))
    effects.append(await errand(effects[-1]["nonce"]))
    effects.append(await act(effects[-1]["nonce"], 0.05))
    return [effect["nonce"] for effect in effects]
