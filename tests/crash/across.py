"""The workload of the crash suite that crosses workers: activities, children, people, messages.

Every run returns the nonces of its own effects and those that its children returned, so that
each recorded result must be used exactly once on the way up.
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

from holdfast import Context, Retry, current_activity
from tests.crash.workload import Effect, act, app, leave_trace, stumble

UPDATES = 2
STRIDES = 5

_AGAIN = Retry(attempts=30, base="20ms", max="200ms")  # lost workers count as attempts


class Errand(TypedDict):
    """The input of these workflows; `queue` is that of their activities."""

    number: int
    queue: str


@app.activity(retry=_AGAIN)
async def fetch(place: str) -> Effect:
    """Have an effect, with a pause on either side for kills to land in."""
    await asyncio.sleep(0.02)
    activity = current_activity()
    effect = leave_trace(place, activity.idempotency_key, activity.attempt)
    await asyncio.sleep(0.02)
    return effect


@app.activity(retry=_AGAIN)
def fetch_in_thread(place: str) -> Effect:
    """Have an effect from a thread, after two attempts that fail behind theirs."""
    activity = current_activity()
    effect = leave_trace(place, activity.idempotency_key, activity.attempt)
    if activity.attempt < 3:
        raise ConnectionError(f"stumbled at {place}")
    return effect


@app.activity(retry=_AGAIN, heartbeat_timeout="5s")
async def walk(place: str) -> Effect:
    """Go on from the last heartbeat of the attempt before."""
    activity = current_activity()
    for done in range(activity.read_heartbeat(int) or 0, STRIDES):
        await asyncio.sleep(0.02)
        activity.heartbeat(done + 1)
    return leave_trace(place, activity.idempotency_key, activity.attempt)


@app.workflow
async def leaf(ctx: Context, errand: Errand) -> list[str]:
    """Do one thing here and one elsewhere."""
    here = await act(f"leaf {errand['number']} here")
    there = await fetch.with_options(queue=errand["queue"])(f"leaf {errand['number']} there")
    return [here["nonce"], there["nonce"]]


@app.workflow
async def branch(ctx: Context, errand: Errand) -> list[str]:
    """Have two children, and do something while they work."""
    async with asyncio.TaskGroup() as group:
        leaves = [group.create_task(leaf(errand)) for _ in range(2)]
        own = await stumble(f"branch {errand['number']}")
    return [own["nonce"], *(nonce for each in leaves for nonce in each.result())]


@app.workflow
async def office(ctx: Context, errand: Errand) -> list[str]:
    """Give work to others, answer updates, ask for an approval, wait for a signal: all at once."""
    number, queue = errand["number"], errand["queue"]
    answers: list[str] = []
    answered = asyncio.Event()

    async def add(item: int) -> str:
        effect = await act(f"office {number} update {item}")
        answers.append(effect["nonce"])
        if len(answers) == UPDATES:
            answered.set()
        return effect["nonce"]

    ctx.handle_update("add", add)
    async with asyncio.TaskGroup() as group:
        work = [
            group.create_task(each.with_options(queue=queue)(f"office {number}"))
            for each in (fetch, fetch_in_thread, walk)
        ]
        below = group.create_task(branch(errand))
        decision = await ctx.request_approval(f"Office {number}")
        word = await ctx.wait_for_signal("go", type=int)
    last = await act(f"office {number} {decision.by} {word}")
    await answered.wait()
    own = [last["nonce"], *(each.result()["nonce"] for each in work)]
    return [*own, *answers, *below.result()]


@app.workflow
async def desk(ctx: Context, errand: Errand) -> list[str]:
    """Have an activity, a child and an approval one after the other, then all at once."""
    queue = errand["queue"]
    fetch_there = fetch.with_options(queue=queue)
    nonces = [(await fetch_there("desk"))["nonce"]]
    nonces += await ctx.child(leaf, errand, queue=queue)
    await ctx.request_approval("Desk")
    async with asyncio.TaskGroup() as group:
        there = group.create_task(fetch_there("desk again"))
        below = group.create_task(ctx.child(leaf, errand, queue=queue))
        await ctx.request_approval("Desk again")
    return [*nonces, there.result()["nonce"], *below.result()]


@app.activity(retry=_AGAIN, on_cancel="wait")
async def dawdle() -> None:
    """Work for longer than its caller waits."""
    await asyncio.sleep(3600)


@app.workflow
async def lull(ctx: Context) -> None:
    """Wait for nothing that comes."""
    await ctx.wait_for_signal("never")


@app.workflow
async def brief(ctx: Context, errand: Errand) -> str:
    """Stop an activity and a child, and return when both have ended."""
    try:
        async with asyncio.timeout(0.1), asyncio.TaskGroup() as group:
            group.create_task(dawdle.with_options(queue=errand["queue"])())
            group.create_task(ctx.child(lull, queue=errand["queue"], on_cancel="wait"))
    except TimeoutError:
        return "late"
    return "in time"
