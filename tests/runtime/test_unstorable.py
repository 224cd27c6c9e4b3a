"""Values that the database refuses, and more of them than one call can carry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import App, Context
from holdfast.definitions.steps import Step
from holdfast.errors import DatabaseUnavailable, StepFailed
from holdfast.events import FAILED, STEP_COMPLETED, STEP_FAILED
from holdfast.store.memory import MemoryStore
from holdfast.types import (
    HEAVY,
    Committed,
    Event,
    Finish,
    NewRun,
    Notice,
    Refusal,
    Suspend,
    TurnCommit,
)
from holdfast.worker.claimer import Room
from holdfast.worker.clock import EngineClock
from holdfast.worker.recording import Committer, weigh_part
from tests.runtime.bench import Bench
from tests.runtime.desk import eventually, working


@Step
def work(item: int) -> str:
    raise AssertionError("the test gives the results")


def refuse_value(bench: Bench, message: str = "too deep (54001)") -> None:
    """Let the database refuse a value of the commit in flight."""
    assert bench.commit_due is not None
    bench.commit_due = None
    bench.take(bench.turn.invalid(message))


async def trying(ctx: Context) -> list[str]:
    async def one(item: int) -> str:
        try:
            return await work(item)
        except StepFailed as failure:
            return str(failure.error)

    return await asyncio.gather(*(one(item) for item in range(3)))


def test_a_step_fails_if_the_database_refuses_its_result() -> None:
    """Trap 20. The other results of its commit are recorded, and no step runs again."""
    bench = Bench(trying)
    bench.complete("one/work", "a")
    for key, result in (("one#2/work", "bad"), ("one#3/work", "c")):
        bench.complete(key, result)
    bench.commit()  # a
    refuse_value(bench)  # bad and c
    refuse_value(bench)  # bad alone
    bench.settle()
    first, second, third = bench.output
    assert (first, third) == ("a", "c")
    assert "one#2/work cannot be stored: too deep (54001)" in second
    assert sorted(bench.starts) == ["one#2/work", "one#3/work", "one/work"]
    assert bench.types().count(STEP_FAILED) == 1
    bench.claim()
    assert bench.starts == []


def test_a_run_fails_if_the_database_refuses_its_output() -> None:
    """Its last step is recorded before; the failure says why."""

    async def flow(ctx: Context) -> str:
        return await work(1) + "!"

    bench = Bench(flow)
    bench.complete("work", "a")
    for _ in range(2):  # with the step's result, which then is durable; and alone
        refuse_value(bench)
        if bench.commit_due is not None and bench.commit_due.then is None:
            bench.commit()
    assert bench.commit().then is not None
    assert bench.types()[1:] == [STEP_COMPLETED, FAILED]
    assert "the run's end cannot be stored: too deep" in bench.error["message"]


def test_a_run_is_stuck_if_the_database_refuses_any_other_value() -> None:
    async def flow(ctx: Context) -> None:
        ctx.set_value("progress", "bad")
        await ctx.wait_for_signal("go")

    bench = Bench(flow)
    refuse_value(bench)
    if bench.commit_due is not None:
        refuse_value(bench)
    assert "ValueSet cannot be stored: too deep" in str(bench.stuck)


def test_a_commit_that_is_too_long_is_made_in_parts() -> None:
    """Trap 30. In order, and no step starts before what led to it is durable."""
    long = "x" * (HEAVY // 2 - 1000)

    async def flow(ctx: Context) -> str:
        found = await asyncio.gather(*(work(item) for item in range(7)))
        return await work(sum(len(each) for each in found))

    bench = Bench(flow)
    for place in range(7):
        bench.complete("work" if place == 0 else f"work#{place + 1}", long)
    parts: list[TurnCommit] = []
    while bench.commit_due is not None:
        assert "work#8" not in bench.starts
        parts.append(bench.commit())
    assert [len(part.events) for part in parts] == [1, 2, 2, 2]
    assert all(weigh_part(part) <= HEAVY for part in parts)
    assert bench.starts[-1] == "work#8"


def test_a_part_that_is_appended_after_a_signal_leaves_the_rest_uncertain() -> None:
    """Trap 30. What is still to come was seen before the signal, too."""
    long = "x" * (HEAVY // 2 - 1000)

    async def flow(ctx: Context) -> str:
        async def one(item: int) -> str:
            await work(item)
            return await work(10 + item)

        return str(await asyncio.gather(*(one(item) for item in range(4))))

    bench = Bench(flow)
    first = ["one/work", "one#2/work", "one#3/work", "one#4/work"]
    for key in first:
        bench.complete(key, long)
    bench.refuse(bench.signal("noise"))
    for started in (2, 4):
        assert bench.commit_due is not None
        assert len(bench.commit_due.events) == 2
        assert bench.starts == [*first, *(f"{key}#2" for key in first[: started - 2])]
        bench.commit()
    assert bench.starts == [*first, *(f"{key}#2" for key in first)]
    seen = [done["seen"] for done in bench.details_of(STEP_COMPLETED)]
    assert seen == [1, 1, 1, 1]


# Many runs at once


class Narrow(MemoryStore):
    """Takes calls of so much; a longer one is cut off, however often it is sent."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.calls = most, list[int]()

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        self.calls.append(sum(map(weigh_part, turns)))
        if self.calls[-1] > self.most:
            raise DatabaseUnavailable("cut off")
        return Committed(0, {}, [])


@pytest.mark.parametrize("then", [None, Suspend(), Finish("completed", "1")])
async def test_large_commits_of_one_moment_are_sent_in_calls_of_limited_size(
    then: Suspend | Finish | None,
) -> None:
    """120 MB of 30 runs; each answered once."""
    store, answers = Narrow(HEAVY), list[object]()
    sending = Committer(store, "w", EngineClock(), list[Notice]().extend, Room(30).lending)
    event = Event(STEP_COMPLETED, "work", "x" * 4_000_000, 0)
    for number in range(30):
        sending.submit(TurnCommit(UUID(int=number), 1, 1, [event], then), answers.append)
    await sending.flush()
    assert answers == [None] * 30
    assert sum(store.calls) >= 30 * 4_000_000
    assert max(store.calls) <= HEAVY


app = App("unstorable")


@app.step
async def produce(item: int) -> str:
    return "poison" if item == 3 else "fine"


@app.workflow
async def producing(ctx: Context, item: int) -> str:
    return await produce(item)


class Picky(MemoryStore):
    """Refuses one value, as a database does that cannot hold it, or fails at it."""

    def __init__(self, reason: Any) -> None:
        super().__init__()
        self.reason, self.refused = reason, 0

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        bad = {turn.run_id for turn in turns if "poison" in repr(turn)}
        self.refused += bool(bad)
        good = [turn for turn in turns if turn.run_id not in bad]
        committed = await super().commit(worker_id, token, good)
        refusals = {run_id: Refusal(self.reason, [], "too deep (54001)") for run_id in bad}
        return Committed(committed.now, committed.refused | refusals, committed.notices)


@pytest.mark.parametrize(("reason", "state"), [("invalid", "failed"), ("failed", "stuck")])
async def test_a_refused_value_concerns_its_own_run_alone(reason: str, state: str) -> None:
    """Traps 10 and 20. It is not offered for ever, and the reason is told."""
    store = Picky(reason)
    runs = [
        NewRun(run_id=uuid4(), name="unstorable/producing", input=str(item)) for item in range(8)
    ]
    await store.start_runs(runs)
    async with working(app, store):

        async def settled() -> bool:
            found = await store.get_runs([run.run_id for run in runs])
            return all(run.state in ("completed", state) for run in found.values())

        await eventually(settled)
        found = [(await store.get_runs([run.run_id]))[run.run_id] for run in runs]
        assert [run.state for run in found].count("completed") == 7
        told = found[3].error if reason == "invalid" else found[3].wait and found[3].wait.stuck
        assert "too deep (54001)" in str(told)
        assert store.refused <= 4
