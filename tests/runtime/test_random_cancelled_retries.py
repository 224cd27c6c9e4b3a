"""Random programs that are cancelled, then end in any way at any moment, and are retried or forked.

No copy of a log keeps a call that the code made because of a cancel, and continues without it: all
calls that a copy has are made by its code.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, cast

import pytest

from holdfast import App, Client, Context, Retry
from holdfast.client.handle import RunHandle
from holdfast.errors import CallFailed, ResultTimeout
from holdfast.events import VALUE_RECORDED
from holdfast.runtime.loop.causes import is_run_cancel
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import Event
from tests.runtime.desk import working

PROGRAMS, CALLS, MOST_RETRIES = 80, 24, 8
Program = list[list[Any]]
Call = Callable[[str], Awaitable[None]]
KINDS = ["call", "call", "saga", "finally", "soft", "uncancel", "handle", "gather"]
ON_CANCEL = ("try", "wait", "abandon")


def block(
    chance: random.Random, names: Iterator[str], fan: str, depth: int = 0
) -> Iterator[list[Any]]:
    """Make a random program in which each call has a name of its own."""
    for _ in range(chance.randint(1, 3)):
        kind = "call" if depth == 3 else chance.choice([*KINDS, fan])
        if kind == "call":
            if (name := next(names, None)) is not None:
                yield ["call", name]
        elif kind in ("gather", "group"):
            branches = [list(block(chance, names, fan, depth + 1)) for _ in range(2)]
            yield [kind, {f"t{chance.getrandbits(40)}": branch for branch in branches}]
        else:
            first = list(block(chance, names, fan, depth + 1))
            yield [kind, first, list(block(chance, names, fan, depth + 1))]


async def perform(program: Program, call: Call) -> None:
    for kind, *parts in program:
        match kind:
            case "call":
                await call(parts[0])
            case "handle":
                try:
                    await perform(parts[0], call)
                except (CallFailed, ExceptionGroup):
                    await perform(parts[1], call)
            case "finally":
                try:
                    await perform(parts[0], call)
                finally:
                    await perform(parts[1], call)
            case "gather":
                await asyncio.gather(*branches(parts[0], call))
            case "group":
                async with asyncio.TaskGroup() as group:
                    for each in branches(parts[0], call):
                        group.create_task(each)
            case _:
                try:
                    await perform(parts[0], call)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if kind == "uncancel" and task is not None and is_run_cancel(error):
                        task.uncancel()
                    await perform(parts[1], call)
                    if kind == "saga":
                        raise


def branches(programs: dict[str, Program], call: Call) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield the code of tasks, each with a name of its own: keys of calls stay the same."""
    for name, program in programs.items():
        code = perform(program, call)
        code.__name__ = name
        yield code


class Desk:
    """Runs programs; calls wait at the gate until they are let through, `broken` ones then fail."""

    def __init__(self) -> None:
        self.app = App("desk", retry=Retry.NEVER)
        self.broken: set[str] = set()
        self.gate: dict[str, asyncio.Future[None]] | None = None
        self.done: list[str] = []
        self.calls: dict[str, Callable[[], Awaitable[None]]] = {}
        self.traces: dict[str, list[str]] = {}
        for number in range(CALLS):
            self._define(f"s{number}", number)

        @self.app.workflow
        async def run(ctx: Context, program: Program) -> None:
            trace = self.traces[str(ctx.run_id)] = list[str]()

            async def call(name: str) -> None:
                trace.append(name)
                await self.calls[name]()

            await perform(program, call)

    def _define(self, name: str, number: int) -> None:
        async def act() -> None:
            if self.gate is not None:
                await self.gate.setdefault(name, asyncio.get_running_loop().create_future())
            self.done.append(name)
            if name in self.broken:
                raise LookupError(name)

        if number % 3:
            self.calls[name] = self.app.step(name=name)(act)
        else:
            policy = cast("Any", ON_CANCEL[number // 3 % 3])
            self.calls[name] = self.app.activity(name=name, on_cancel=policy)(act)


async def drive(desk: Desk, handle: RunHandle[Any], chance: random.Random) -> None:
    """Let calls through one by one; cancel the run between two, and perhaps end it later."""
    desk.gate = {}
    moves, ended_after = 0, chance.choice([2, 3, 4, 6, 30])
    cancelled_after = chance.randint(0, 8)
    is_cancelled, still = False, 0
    while not (await handle.get()).completed_at:
        await asyncio.sleep(0.002)
        waiting = [name for name, future in desk.gate.items() if not future.done()]
        if not is_cancelled and (moves >= cancelled_after or still > 4):
            is_cancelled = True
            moves = 0
            await handle.cancel()
        elif is_cancelled and moves >= ended_after:
            await handle.terminate()
        elif waiting and chance.random() < 0.7:
            desk.gate[chance.choice(waiting)].set_result(None)
            moves += 1
        still = 0 if waiting else still + 1
    gate, desk.gate = desk.gate, None
    for future in gate.values():
        if not future.done():
            future.set_result(None)


def called(keys: Sequence[str]) -> set[str]:
    return {key.rpartition("/")[2] for key in keys}


async def log_of(handle: RunHandle[Any]) -> list[Event]:
    return [entry.event async for entry in handle.follow_log()]


async def explore(desk: Desk, client: Client, seed: int, seen: Counter[str]) -> None:
    chance = random.Random(seed)
    fan = chance.choice(["gather", "group"])
    program = list(block(chance, iter([f"s{number}" for number in range(CALLS)]), fan))
    share = chance.choice([0.0, 0.1, 0.3])
    desk.broken = {name for name in desk.calls if chance.random() < share}
    handle = await client.start("run", program)
    await drive(desk, handle, chance)
    for attempt in range(MOST_RETRIES):
        run = await client.runs.wait(handle.run_id, timeout="20s")
        seen[run.state] += 1
        desk.broken = {name for name in desk.calls if attempt == 0 and chance.random() < share / 2}
        desk.done.clear()
        where = f"program {seed}, attempt {attempt}, after {run.state}"
        if chance.random() < 0.2 or run.state == "completed":
            index = chance.randint(1, len(await log_of(handle)))
            fork = await client.runs.fork(handle.run_id, index=index)
            await check(desk, client, fork, f"{where}, forked at {index}: {program}")
            seen["forked"] += 1
            desk.done.clear()
        if run.state == "completed":
            return
        # A run that was ended from outside does not say what it called while it handled failures,
        # and calls that a group has stopped because of a failure did not fail.
        says_all = run.state != "terminated" and fan == "gather"
        everything = says_all and chance.random() < 0.5
        plan = await client.runs.retry_plan(handle.run_id, failed_steps=everything)
        handle = await client.runs.retry(handle.run_id, failed_steps=everything)
        told = f"{where}, retried ({everything=}) by {plan}: {program}"
        is_cancelled = await check(desk, client, handle, told)
        assert plan.cancel == is_cancelled, told
        seen["cancel kept"] += is_cancelled
        seen["cancel left out"] += not is_cancelled
        seen["everything"] += everything


async def check(desk: Desk, client: Client, handle: RunHandle[Any], where: str) -> bool:
    """Check a copy, and return if it has a cancel."""
    try:
        run = await client.runs.wait(handle.run_id, timeout="20s")
    except ResultTimeout as error:
        why = await client.why(handle.run_id)
        raise AssertionError(f"{where}: {why.because}") from error
    log = await log_of(handle)
    last = max(place for place, event in enumerate(log) if event.type == "WorkflowForked")
    calls = [event.key for event in log[:last] if event.type != VALUE_RECORDED]
    kept = called([key for key in calls if key is not None])
    trace = set(desk.traces.get(str(handle.run_id), []))
    if run.state != "failed":  # then it may have failed earlier than the other
        assert kept <= trace, f"kept {sorted(kept - trace)} without its cause: {where}"
    assert not kept & set(desk.done), f"made {sorted(kept & set(desk.done))} again: {where}"
    return any(event.type == "WorkflowCancelRequested" for event in log[:last])


@pytest.mark.timeout(300)
async def test_no_copy_keeps_what_was_called_because_of_a_cancel_that_it_lacks() -> None:
    desk, seen = Desk(), Counter[str]()
    store = MemoryStore(wall_clock)
    async with working(desk.app, store), Client(store=store, app=desk.app) as client:
        for seed in range(PROGRAMS):
            await explore(desk, client, seed, seen)
    ways = ("terminated", "cancelled", "failed", "completed", "forked", "everything")
    assert min(seen[way] for way in (*ways, "cancel kept", "cancel left out")) > 3, seen
