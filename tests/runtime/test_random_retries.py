"""Random programs that fail, compensate and are retried: what is kept, and what is made again.

A2. After the retries a program has done what it does if the calls that ended its runs succeed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from holdfast import App, Client, Context, Retry
from holdfast.codec import describe
from holdfast.definitions.steps import Step
from holdfast.errors import CallFailed, RunFailed
from holdfast.store.memory import MemoryStore, wall_clock
from tests.runtime.desk import working

PROGRAMS, CALLS, MOST_RETRIES = 120, 24, 12
Program = list[list[Any]]
Call = Callable[[str], Awaitable[None]]


def made(chance: random.Random) -> Program:
    """Make a random program in which each call has a name of its own."""
    names = iter(f"s{number}" for number in range(CALLS))
    return list(block(chance, names, chance.choice(["gather", "group"]), depth=0))


def block(chance: random.Random, names: Iterator[str], fan: str, depth: int) -> Iterator[list[Any]]:
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(["call", "call", "handle", "undo", "finally", "gather", fan])
        if kind == "call" or depth == 3:
            if (name := next(names, None)) is not None:
                yield ["call", name]
        elif kind in ("gather", "group"):
            count = chance.randint(2, 3)
            yield [kind, [list(block(chance, names, fan, depth + 1)) for _ in range(count)]]
        else:
            first = list(block(chance, names, fan, depth + 1))
            yield [kind, first, list(block(chance, names, fan, depth + 1))]


async def perform(program: Program, call: Call, trace: list[Any]) -> None:
    """Run a program; the trace has its calls in order, and branches beside each other."""
    for kind, *parts in program:
        match kind:
            case "call":
                trace.append(parts[0])
                await call(parts[0])
            case "handle" | "undo":
                try:
                    await perform(parts[0], call, trace)
                except (CallFailed, ExceptionGroup):
                    await perform(parts[1], call, trace)
                    if kind == "undo":
                        raise
            case "finally":
                try:
                    await perform(parts[0], call, trace)
                finally:
                    await perform(parts[1], call, trace)
            case "gather":
                traces: list[list[Any]] = [[] for _ in parts[0]]
                trace.append(traces)
                work = [perform(*each) for each in zip_with(parts[0], call, traces)]
                found = await asyncio.gather(*work, return_exceptions=True)
                if errors := [each for each in found if isinstance(each, Exception)]:
                    raise ExceptionGroup("in a gather", errors)
            case _:
                traces = [[] for _ in parts[0]]
                trace.append(traces)
                async with asyncio.TaskGroup() as group:
                    for each in zip_with(parts[0], call, traces):
                        group.create_task(perform(*each))


def zip_with(
    programs: list[Program], call: Call, traces: list[list[Any]]
) -> Iterator[tuple[Program, Call, list[Any]]]:
    for program, trace in zip(programs, traces, strict=True):
        yield program, call, trace


def check_order(trace: list[Any], fresh: set[str], is_late: bool = False) -> bool:
    """Check that no branch has a kept call after one that was made again."""
    for each in trace:
        if isinstance(each, list):
            branches = cast("list[list[Any]]", each)
            found = [check_order(branch, fresh, is_late) for branch in branches]
            is_late = is_late or any(found)
        elif each in fresh:
            is_late = True
        else:
            assert not is_late, f"{each} is kept, although a call before it was made again"
    return is_late


def names_in(trace: list[Any]) -> Iterator[str]:
    for each in trace:
        if isinstance(each, list):
            yield from names_in(cast("list[Any]", each))
        else:
            yield each


def called(*keys: Sequence[str]) -> set[str]:
    """Return the names of calls, of which each has a key of its own."""
    return {key.rpartition("/")[2] for each in keys for key in each}


class Desk:
    """Runs programs; `broken` calls fail, `done` are the calls of the newest run."""

    def __init__(self) -> None:
        self.app = App("desk", retry=Retry.NEVER)
        self.broken: set[str] = set()
        self.done: list[str] = []
        self.steps = {name: self._step(name) for name in (f"s{n}" for n in range(CALLS))}

        @self.app.workflow
        async def run(ctx: Context, program: Program) -> list[Any]:
            trace: list[Any] = []
            await perform(program, lambda name: self.steps[name](), trace)
            return trace

    def _step(self, name: str) -> Step[[], None]:
        async def act() -> None:
            self.done.append(name)
            if name in self.broken:
                raise LookupError(name)

        return self.app.step(name=name)(act)

    def begin(self, broken: set[str]) -> None:
        self.broken = broken
        self.done.clear()


async def explore(desk: Desk, client: Client, seed: int, seen: Counter[str]) -> None:
    """Let a program fail, and retry it until it completes."""
    chance = random.Random(seed)
    program = made(chance)
    share = chance.choice([0.1, 0.3])
    desk.begin({name for name in desk.steps if chance.random() < share})
    handle = await client.start("run", program)
    failed: set[str] = set()  # calls whose failures are kept
    kept: set[str] = set()
    is_ordered = True
    for attempt in range(MOST_RETRIES):
        try:
            trace = cast("list[Any]", await handle.result(timeout="60s"))
        except RunFailed:
            failed |= desk.broken & set(desk.done)
        else:
            break
        everything = chance.random() < 0.3
        is_ordered = is_ordered and not everything
        plan = await client.runs.retry_plan(handle.run_id, failed_steps=everything)
        again, kept = called(plan.failed, plan.after), called(plan.kept)
        assert plan.failed, f"program {seed}: nothing is made again"
        assert not again & kept
        failed &= kept  # a call that was cancelled may have run, and has no end
        assert not (everything and failed), f"program {seed}: a failure is kept"
        seen["everything"] += everything
        seen["after"] += bool(plan.after)
        seen["handled"] += bool(kept & failed)
        desk.begin({name for name in desk.steps if attempt == 0 and chance.random() < share / 2})
        handle = await client.runs.retry(handle.run_id, failed_steps=everything)
    else:
        raise AssertionError(f"program {seed} failed {MOST_RETRIES} times")
    seen["retried"] += attempt > 0
    fresh = set(desk.done)
    failed |= desk.broken & fresh
    assert not fresh & kept, f"program {seed}: made again, although it was kept"
    assert fresh | kept <= set(names_in(trace)), f"program {seed}: kept what it does not do"
    if "group" not in str(program):  # how far the branches of a group come depends on chance
        assert set(names_in(trace)) == fresh | kept
        assert trace == await plain(program, failed), f"program {seed}"
    if is_ordered:  # what was called after a failure that the code had handled is kept
        check_order(trace, fresh)


async def plain(program: Program, failed: set[str]) -> list[Any]:
    """Return the trace of a program without a workflow, in which these calls fail."""
    trace: list[Any] = []

    async def call(name: str) -> None:
        if name in failed:
            raise CallFailed(name, describe(LookupError(name)))

    await perform(program, call, trace)
    return trace


@pytest.mark.timeout(300)
async def test_after_its_retries_a_program_has_done_what_it_does_without_the_failures() -> None:
    desk, seen = Desk(), Counter[str]()
    store = MemoryStore(wall_clock)
    async with working(desk.app, store), Client(store=store, app=desk.app) as client:
        for seed in range(PROGRAMS):
            await explore(desk, client, seed, seen)
    ways = ("retried", "after", "handled", "everything")
    assert min(seen[way] for way in ways) > PROGRAMS // 20, seen
