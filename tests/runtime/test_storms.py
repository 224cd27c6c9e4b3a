"""Signals that come faster than a run can commit: no replay for any of them, and no standstill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import App, Context
from holdfast.definitions.activities import Activity
from holdfast.events import (
    ACTIVITY_SCHEDULED,
    CAN_WAIT,
    CANCELLED,
    COMMAND_ENDS,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    TIMER_FIRED,
    WORKER_LOST,
    mark_seen,
    without_mark,
)
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.log.virtual_log import in_delivery_order
from holdfast.store.memory import MemoryStore
from holdfast.types import Committed, Event, NewRun, NewSignal, Suspend, TurnCommit
from tests.runtime.bench import SECOND, Bench, work
from tests.runtime.desk import eventually, working


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The runs whose code was built, once for each time: at the start, and for a replay."""
    runs: list[UUID] = []
    original = Instance.__init__

    def build(self: Instance, workflow: Any, info: Any, *args: Any) -> None:
        runs.append(info.run_id)
        original(self, workflow, info, *args)

    monkeypatch.setattr(Instance, "__init__", build)
    return runs


# One turn

ENDS: dict[str, Callable[[Bench], Event]] = {
    "an activity's end": lambda bench: bench.activity_completed(unended(bench), 1),
    "an activity's failure": lambda bench: bench.activity_failed(unended(bench), OSError()),
}
TAILS: dict[str, Callable[[Bench], Event]] = {
    **ENDS,
    "a signal": lambda bench: bench.signal("noise"),
    "an update": lambda bench: bench.update("noise", 1),
    "an activity's lost worker": lambda bench: bench.plain(
        WORKER_LOST, '{"task_key":"gone","lease_no":1}'
    ),
}


gone = Activity(work.fn, name="gone")


def unended(bench: Bench) -> str:
    """Return the key of an activity that has not ended."""
    ended = {event.key for event in bench.log if event.type in COMMAND_ENDS}
    return next(str(e.key) for e in bench.of_type(ACTIVITY_SCHEDULED) if e.key not in ended)


async def counting_beside(ctx: Context) -> list[object]:
    for item in range(3):
        gone(item)
    return await counting(ctx)


async def counting(ctx: Context) -> list[object]:
    found: list[object] = [await work(item) for item in range(3)]
    return [*found, await ctx.wait_for_signal("go")]


@pytest.mark.parametrize("tail", TAILS)
def test_a_signal_during_a_commit_leads_to_no_replay(tail: str, built: list[UUID]) -> None:
    """The result is committed behind it, and says what the code had seen."""
    bench = Bench(counting_beside if tail in ENDS else counting)
    bench.settle()
    first = len(bench.log)
    for count in range(3):
        bench.complete("work" if count == 0 else f"work#{count + 1}", count)
        bench.refuse(TAILS[tail](bench))
        bench.commit()
    assert len(built) == 1
    assert [done.get("seen") for done in bench.details_of(STEP_COMPLETED)] == [
        first,
        first + 2,
        first + 4,
    ]
    bench.settle()
    bench.resume(bench.signal("go", "gone"))
    bench.settle()
    assert bench.output == [0, 1, 2, "gone"]


def test_a_cancel_a_pause_or_a_decision_is_seen_first(built: list[UUID]) -> None:
    """Trap 16. A cancel, a pause and a decision hold from where they stand."""
    bench = Bench(counting)
    bench.complete("work")
    bench.refuse(bench.signal("noise"), bench.cancel_request())
    bench.settle()
    assert len(built) == 2
    assert not any("seen" in done for done in bench.details_of(STEP_COMPLETED))
    assert bench.types()[-1] == CANCELLED


def test_a_step_does_not_start_before_the_results_it_follows_are_durable() -> None:
    """Trap 30. The signal is durable, and what the code has seen before it is not."""
    bench = Bench(counting)
    bench.complete("work")
    bench.refuse(*(bench.signal("noise") for _ in range(9)))
    assert bench.turn.durable_length == 10
    assert bench.starts == ["work"]
    bench.commit()
    assert bench.starts == ["work", "work#2"]


def test_a_result_that_is_lost_before_its_commit_is_made_again_after_the_signal() -> None:
    """Traps 6 and 18. The log has the signal, and the code sees it without the lost result."""

    async def flow(ctx: Context) -> list[object]:
        return list(await asyncio.gather(work(1), ctx.wait_for_signal("go")))

    bench = Bench(flow)
    bench.complete("work", 1)
    bench.refuse(bench.signal("go", "kept"))
    bench.crash()
    assert bench.starts == ["work"]
    bench.complete("work", 2)
    bench.settle()
    assert bench.output == [2, "kept"]


def test_a_signal_that_comes_as_the_run_suspends_is_not_slept_through() -> None:
    """Trap 1. The suspension is refused as before; only the result stands behind the signal."""

    async def flow(ctx: Context) -> object:
        await work(1)
        return await ctx.wait_for_signal("go")

    bench = Bench(flow)
    bench.complete("work")
    assert isinstance(bench.commit_due and bench.commit_due.then, Suspend)
    bench.refuse(bench.signal("go", "now"))
    assert not bench.suspended
    bench.settle()
    assert bench.output == "now"


def test_a_timeout_that_the_code_saw_holds_although_the_signal_is_earlier_in_the_log() -> None:
    """Traps 5 and 7. One outcome on each replay; the signal is there for the next wait."""

    async def wait(ctx: Context) -> str:
        try:
            await ctx.wait_for_signal("go", timeout=60)
        except TimeoutError:
            return "timeout"
        return "in time"

    async def flow(ctx: Context) -> list[object]:
        found: list[object] = list(await asyncio.gather(wait(ctx), work(1)))
        return [*found, await ctx.wait_for_signal("go", timeout=1)]

    bench = Bench(flow)
    bench.pass_time(60)
    bench.refuse(bench.signal("go", "late"))
    bench.commit()
    for _ in range(2):
        bench.crash()
        assert bench.starts == ["work"]
    bench.complete("work", 1)
    bench.settle()
    assert bench.output == ["timeout", 1, "late"]
    [fired] = bench.details_of(TIMER_FIRED)
    assert fired["seen"] == 1


def test_only_a_commit_that_was_refused_three_times_is_appended_after_others() -> None:
    bench = Bench(counting)
    bench.complete("work")
    offered = []
    for _ in range(4):
        assert bench.commit_due is not None
        offered.append(bench.commit_due.after_others)
        bench.refuse(bench.signal("noise"))
    assert offered == [False, False, False, True]
    assert bench.commit_due is not None
    bench.log.append(bench.signal("go", "ahead"))
    bench.commit()
    for key, after_others in (("work#2", True), ("work#3", False)):
        bench.complete(key)
        assert bench.commit_due is not None
        assert bench.commit_due.after_others == after_others
        bench.commit()
    bench.settle()
    assert bench.output == [0, 0, 0, "ahead"]


def test_under_a_storm_only_the_first_commit_is_refused() -> None:
    """A signal for each commit: each commit that follows is one call."""
    bench = Bench(counting)
    refused = 0
    for key in ("work", "work#2", "work#3"):
        bench.complete(key)
        while bench.commit_due is not None and not bench.commit_due.after_others:
            bench.refuse(bench.signal("noise"))
            refused += 1
        bench.log.append(bench.signal("noise"))
        bench.commit()
    assert refused == 3


def test_a_suspension_is_never_appended_after_unseen_entries() -> None:
    """Trap 1. What led to it may: it is a commit of its own then."""
    bench = Bench(counting)
    for key in ("work", "work#2"):
        bench.complete(key)
        bench.commit()
    bench.complete("work#3")
    for _ in range(3):
        bench.refuse(bench.signal("noise"))
    assert bench.commit_due is not None
    assert (bench.commit_due.then, bench.commit_due.after_others) == (None, True)
    bench.commit()
    for _ in range(9):
        assert bench.commit_due is not None
        assert isinstance(bench.commit_due.then, Suspend)
        assert not bench.commit_due.after_others
        bench.refuse(bench.signal("noise"))


@pytest.mark.parametrize("again", [False, True])
def test_the_log_says_in_which_order_the_code_saw_it(again: bool) -> None:
    """Trap 29. A replay of a storm's log sees what the code saw, and the times at which it did."""

    async def flow(ctx: Context) -> list[object]:
        seen: list[object] = []

        async def listen() -> None:
            while True:
                seen.append([await ctx.wait_for_signal("tick"), ctx.now().timestamp()])

        listening = asyncio.create_task(listen())
        for item in range(4):
            seen.append([await work(item), ctx.now().timestamp()])
        listening.cancel()
        return seen

    bench = Bench(flow)
    for count in range(4):
        bench.now += SECOND
        bench.complete("work" if count == 0 else f"work#{count + 1}", count)
        for late in range(count):
            bench.now += SECOND
            bench.refuse(bench.signal("tick", f"{count}.{late}"))
        if count < 3:
            bench.commit()
    live = [entry for entry, _ in _seen(bench)]
    assert live[:4] == [0, 1, "1.0", 2]
    if again:
        expected = _seen(bench)
        bench.settle()
        bench.log, bench.lease = bench.log[:-1], 9
        bench.claim()
        assert _seen(bench) == expected
    bench.settle()
    assert [entry for entry, _ in bench.output] == live


def _seen(bench: Bench) -> list[Any]:
    root = bench.turn.instance.root
    assert root is not None
    found: list[Any] = json.loads(json.dumps(root.result()))
    return found


def test_marks_order_entries_and_leave_no_trace() -> None:
    step, noise = (
        Event(STEP_COMPLETED, "work", '{"name":"work"}', 0),
        [Event(SIGNAL_RECEIVED, None, str(n), 0) for n in range(4)],
    )
    marked = mark_seen(step, 11)
    assert mark_seen(marked, 12) is marked
    assert without_mark(marked) == step
    assert mark_seen(noise[0], 1) is noise[0]
    log = [noise[0], noise[1], marked, noise[2], mark_seen(step, 13), step, noise[3]]
    ordered = in_delivery_order(log, 10)
    assert [log.index(event) for event in ordered] == [0, 2, 1, 4, 3, 5, 6]
    plain = [*noise, step]
    assert in_delivery_order(plain, 10) is plain
    assert "WorkflowCancelRequested" not in CAN_WAIT


# A worker

app = App("storms")


@app.step
async def count(item: int) -> int:
    return item


@app.workflow
async def busy(ctx: Context, steps: int) -> int:
    return sum([await count(item) for item in range(steps)])


class Storm(MemoryStore):
    """Others signal a run whenever one of its commits is on its way, `each` times."""

    def __init__(self, run_id: UUID, each: int) -> None:
        super().__init__()
        self.run_id, self.each, self.calls = run_id, each, 0

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        if any(turn.run_id == self.run_id for turn in turns):
            self.calls += 1
            await self.signal_runs([NewSignal(self.run_id, "noise")] * self.each)
        return await super().commit(worker_id, token, turns)


@pytest.mark.parametrize("steps", [20, 60])
async def test_a_run_that_is_signalled_before_each_of_its_commits_ends(
    steps: int, built: list[UUID]
) -> None:
    """Its calls grow with its steps, and its code is built once. Its neighbour hears nothing."""
    hit, neighbour = uuid4(), uuid4()
    store = Storm(hit, each=3)
    await store.start_runs(
        [NewRun(run_id=run_id, name="storms/busy", input=str(steps)) for run_id in (hit, neighbour)]
    )
    async with working(app, store):

        async def ended() -> bool:
            runs = await store.get_runs([hit, neighbour])
            return {run.state for run in runs.values()} == {"completed"}

        await eventually(ended)
    assert (await store.get_runs([hit]))[hit].output == str(sum(range(steps)))
    assert built.count(hit) == built.count(neighbour) == 1
    assert store.calls <= 4 * (steps + 2)
    [log] = (await store.read_events([(hit, 0)])).values()
    recorded = [event.key for event in log if event.type == STEP_COMPLETED]
    assert len(recorded) == len(set(recorded)) == steps
