"""The workload of the crash suite: runs of every shape, whose steps leave a trace outside.

Each execution of a step draws a nonce, appends it to the ledger file, and returns it. The log
keeps the nonce of the execution that was recorded; all others must be explained by the log.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TypedDict
from uuid import uuid4

from holdfast import App, Context, Retry, StepFailed, current_step

LEDGER = "HOLDFAST_TEST_LEDGER"
GUSTS = 24  # signals of a storm

app = App("crash", retry=Retry(attempts=5, base="20ms", max="200ms"))


class Effect(TypedDict):
    """What one execution of a step returns."""

    place: str
    nonce: str


def leave_trace(place: str, id: str, attempt: int) -> Effect:
    """Have an effect outside: one line in the ledger, for an attempt of a step or activity."""
    nonce = uuid4().hex
    line = json.dumps({"id": id, "attempt": attempt, "nonce": nonce, "pid": os.getpid()}) + "\n"
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, line.encode())  # one write: whole or not at all, also under SIGKILL
    finally:
        os.close(ledger)
    return {"place": place, "nonce": nonce}


@app.step
async def act(place: str) -> Effect:
    """Have an effect, with a pause on either side for kills to land in."""
    await asyncio.sleep(0.005)
    step = current_step()
    effect = leave_trace(place, step.idempotency_key, step.attempt)
    await asyncio.sleep(0.005)
    return effect


@app.step
def act_in_thread(place: str) -> Effect:
    """Have an effect from a thread."""
    step = current_step()
    return leave_trace(place, step.idempotency_key, step.attempt)


@app.step
async def stumble(place: str) -> Effect:
    """Fail at the first two attempts, after the effect."""
    step = current_step()
    effect = leave_trace(place, step.idempotency_key, step.attempt)
    if step.attempt < 3:
        raise ConnectionError(f"stumbled at {place}")
    return effect


@app.workflow
async def chain(ctx: Context, n: int) -> list[str]:
    """Run steps one after the other with a sleep between them."""
    nonces: list[str] = []
    for i in range(4):
        effect = await (act_in_thread if i == 2 else act)(f"chain {n} {i}")
        nonces.append(effect["nonce"])
        if i == 1:
            await asyncio.sleep(0.05)
    return nonces


@app.workflow
async def fan_out(ctx: Context, n: int) -> list[str]:
    """Run steps at the same time, and one after them."""
    effects = await asyncio.gather(*(act(f"fan {n} {i}") for i in range(8)))
    last = await stumble(f"fan {n} last")
    return [*(effect["nonce"] for effect in effects), last["nonce"]]


@app.step(retry=Retry.NEVER)
def wobble(n: int) -> Effect:
    """Fail in the first two attempts of the run, after the effect."""
    step, seen = current_step(), Path(f"{os.environ[LEDGER]}.wobble{n}")
    effect = leave_trace(f"wobble {n}", step.idempotency_key, step.attempt)
    with seen.open("a") as file:
        file.write(f"{step.run_id}\n")
    if len(set(seen.read_text().split())) < 3:
        raise ConnectionError(f"wobbled {n}")
    return effect


@app.workflow(retry=Retry(attempts=4, base="100ms", jitter=0))
async def retried(ctx: Context, n: int) -> list[str]:
    """Fail twice after a step, with a step that cleans up."""
    first = await act(f"retried {n} first")
    try:
        second = await wobble(n)
    except StepFailed:
        await act(f"retried {n} clean-up")
        raise
    return [first["nonce"], second["nonce"]]


@app.workflow
async def let_go(ctx: Context, n: int) -> list[str]:
    """Do the work of a child that outlives the attempts of its parent."""
    return [(await act(f"let go {n} {i}"))["nonce"] for i in range(2)]


@app.workflow(retry=Retry(attempts=4, base="50ms", jitter=0))
async def lets_go(ctx: Context, work: tuple[int, str]) -> list[str]:
    """Fail twice beside a child that goes its own way, and wait for it."""
    n, queue = work
    child = await ctx.start_child(let_go, n, queue=queue)
    await wobble(n)
    return await child.result()


@app.workflow
async def signalled(ctx: Context, n: int) -> list[str]:
    """Take three signals, a step after each."""
    nonces: list[str] = []
    for i in range(3):
        payload = await ctx.wait_for_signal("go", type=int)
        effect = await act(f"signalled {n} {i} {payload}")
        nonces.append(effect["nonce"])
    return nonces


@app.workflow
async def paid(ctx: Context, n: int) -> list[str]:
    """Give two URLs away, and act on what is posted to each."""
    nonces: list[str] = []
    for _ in range(2):
        hook = ctx.webhook("paid", type=int)
        nonces.append((await act(hook.url))["nonce"])
        posted = await hook.received()
        nonces.append((await act(f"paid {n} {posted}"))["nonce"])
    return nonces


@app.workflow
async def everything(ctx: Context, n: int) -> list[str]:
    """Do all of it in one run: steps, a timer, a signal with a time-out, a fan-out, clean-up."""
    first = await act(f"everything {n} first")
    await asyncio.sleep(0.03)
    try:
        async with asyncio.timeout(600):  # longer than a server may be away
            word = await ctx.wait_for_signal("go", type=int)
        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(act(f"everything {n} {word} {i}")) for i in range(3)]
        bumpy = await stumble(f"everything {n} bumpy")
    finally:
        last = await act(f"everything {n} last")
    effects = [first, *(branch.result() for branch in branches), bumpy, last]
    return [effect["nonce"] for effect in effects]


@app.step
async def act_slowly(place: str, seconds: float) -> Effect:
    """Have an effect, and take long over the rest."""
    step = current_step()
    effect = leave_trace(place, step.idempotency_key, step.attempt)
    await asyncio.sleep(seconds)
    return effect


@app.workflow
async def slow(ctx: Context, seconds: float) -> list[str]:
    """Run one long step."""
    effect = await act_slowly("slow", seconds)
    return [effect["nonce"]]


@app.workflow
async def stormed(ctx: Context, n: int) -> list[str]:
    """Take every signal of a storm once, in the order in which they came, and act now and then."""
    nonces: list[str] = []
    taken: set[int] = set()
    while len(taken) < GUSTS:
        gust = await ctx.wait_for_signal("gust", type=int)
        assert gust not in taken, f"signal {gust} was taken twice"
        taken.add(gust)
        if len(taken) % 8 == 0:
            effect = await act_slowly(f"stormed {n} {len(taken)}", 0.5)
            nonces.append(effect["nonce"])
    return nonces
