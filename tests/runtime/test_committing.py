"""How the committer gathers turns' parts into calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.store.memory import MemoryStore
from holdfast.types import Committed, Event, Finish, NewRun, Notice, Refusal, Suspend, TurnCommit
from holdfast.worker.claimer import Room
from holdfast.worker.clock import EngineClock
from holdfast.worker.recording import Batcher, Committer
from tests.runtime.desk import eventually, working

STEP = Event("StepCompleted", "work", "{}", 0)


class Recorder(MemoryStore):
    """Keeps which parts came in each call. Takes them all, but for those it is told to refuse."""

    def __init__(self, refuse: Sequence[Literal["conflict", "lost", "busy"]] = ()) -> None:
        super().__init__()
        self.calls: list[list[UUID]] = []
        self.tokens: list[UUID] = []
        self.repeated = asyncio.Event()
        self._refuse = list(refuse)

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        self.calls.append([turn.run_id for turn in turns])
        self.tokens.append(token)
        if len(self.calls) > 1:
            self.repeated.set()
        refused = {turns[0].run_id: Refusal(self._refuse.pop(0), [])} if self._refuse else {}
        return Committed(0, refused, [])


class Stalling(MemoryStore):
    """Answers no commit."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        self.under_way += 1
        try:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")
        finally:
            self.under_way -= 1


class Overlapping(MemoryStore):
    """Lets calls overlap, and keeps the runs of which two parts were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.under_way, self.doubled = 0, list[UUID](), set[UUID]()

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        runs = [turn.run_id for turn in turns]
        self.doubled.update(run for run in runs if run in self.under_way)
        self.under_way += runs
        self.most = max(self.most, len(runs))
        for _ in range(token.int % 4):
            await asyncio.sleep(0)
        committed = await super().commit(worker_id, token, turns)
        for run in runs:
            self.under_way.remove(run)
        return committed


def committer(store: MemoryStore) -> Committer:
    return Committer(store, "w", EngineClock(), list[Notice]().extend, Room(100).lending)


def parts(count: int, then: Suspend | Finish | None = None) -> list[TurnCommit]:
    """Return a part for each of so many runs, which continue or do `then`."""
    return [TurnCommit(UUID(int=number), 1, 1, [STEP], then) for number in range(count)]


async def calls_for(turns: list[TurnCommit]) -> list[int]:
    """Submit parts at the same moment, and return the sizes of the calls."""
    store, answers = Recorder(), list[Refusal | None]()
    sending = committer(store)
    for part in turns:
        sending.submit(part, answers.append)
    await sending.flush()
    assert answers == [None] * len(turns)
    return [len(call) for call in store.calls]


@pytest.mark.parametrize(
    ("turns", "calls"),
    [
        (parts(1), [1]),
        (parts(63), [63]),
        (parts(64), [32, 32]),
        (parts(101), [51, 50]),
        (parts(900), [400, 400, 100]),
    ],
)
async def test_many_checkpoints_of_one_moment_are_sent_as_two_calls(
    turns: list[TurnCommit], calls: list[int]
) -> None:
    """Else the worker waits while the database works, and then the other way round."""
    assert await calls_for(turns) == calls


@pytest.mark.parametrize("then", [Finish("completed", "1"), Suspend(None, ("go",))])
async def test_parts_that_end_or_suspend_share_one_call(then: Suspend | Finish) -> None:
    assert await calls_for(parts(100, then)) == [100]
    assert await calls_for([*parts(99), TurnCommit(UUID(int=99), 1, 1, [STEP], then)]) == [100]


def keeper(answers: dict[UUID, str | None], run_id: UUID) -> Callable[[Refusal | None], None]:
    """Return what notes a run's answer, and that there is only one."""

    def keep(refusal: Refusal | None) -> None:
        assert run_id not in answers
        answers[run_id] = None if refusal is None else refusal.reason

    return keep


async def test_a_refusal_in_one_half_concerns_its_own_run_alone() -> None:
    store, answers = Recorder(refuse=["conflict", "lost"]), dict[UUID, str | None]()
    sending = committer(store)
    for part in parts(100):
        sending.submit(part, keeper(answers, part.run_id))
    await sending.flush()
    assert len(answers) == 100
    refused = {run_id: reason for run_id, reason in answers.items() if reason}
    assert refused == {UUID(int=0): "conflict", UUID(int=50): "lost"}


async def test_busy_parts_of_both_halves_are_repeated_each_with_its_own_token() -> None:
    """The token of a call is how the store knows the events of its first try."""
    store, answers = Recorder(refuse=["busy", "busy"]), dict[UUID, str | None]()
    sending = committer(store)
    for part in parts(100):
        sending.submit(part, keeper(answers, part.run_id))
    await sending.flush()
    assert list(answers.values()) == [None] * 100
    assert store.calls[2:] == [[UUID(int=0)], [UUID(int=50)]]
    assert store.tokens[2:] == store.tokens[:2]
    assert len(set(store.tokens)) == 2


async def test_stop_cancels_both_halves_and_answers_no_run() -> None:
    store, answers = Stalling(), list[Refusal | None]()
    sending = committer(store)
    for part in parts(1_000):
        sending.submit(part, answers.append)
    await eventually(lambda: store.under_way == 2)
    await sending.stop()
    assert (store.under_way, sending.idle, answers) == (0, True, [])


async def test_stop_cancels_what_an_answer_on_its_way_would_repeat() -> None:
    """What came back busy as the worker stopped is not sent to a store that is closed by then."""
    store = Recorder(refuse=["busy", "busy"])
    sending = committer(store)
    [part] = parts(1)
    sending.submit(part, lambda _: None)
    await store.repeated.wait()
    await sending.stop()
    assert sending.idle
    assert len(store.calls) == 2


async def test_stop_ends_although_a_call_has_ended_at_this_moment() -> None:
    """Fault: since Python 3.12 it held the event loop for ever."""
    ended = asyncio.Event()

    async def send(entries: list[int]) -> None:
        ended.set()

    sending = Batcher(send, bearable=len)
    sending.add(1)
    await ended.wait()
    assert not sending.idle
    await sending.stop()
    assert sending.idle


async def test_a_run_that_was_let_go_of_and_claimed_again_does_not_spoil_its_batch() -> None:
    """The store refuses calls with two parts of a run as a whole: the older one is left out."""
    store, answers = Recorder(), list[list[Refusal | None]]()
    sending = committer(store)
    [part, other] = parts(2)
    for one in (part, other, part):
        answers.append([])
        sending.submit(one, answers[-1].append)
    await sending.flush()
    assert store.calls == [[other.run_id, part.run_id]]
    assert answers == [[Refusal("lost", [])], [None], [None]]


async def test_a_run_never_has_two_parts_under_way() -> None:
    """Trap 1. However many runs continue at one moment, and however the answers overlap."""
    app, store = App("shop"), Overlapping()

    @app.step
    async def work(item: int) -> int:
        return item

    @app.workflow
    async def order(ctx: Context) -> int:
        await work(1)
        one, two = await asyncio.gather(work(2), work(3))
        return one + two + await work(4)

    runs = [NewRun(run_id=UUID(int=number + 1), name="shop/order") for number in range(150)]
    await store.start_runs(runs)
    async with working(app, store, concurrency=200):

        async def ended() -> bool:
            found = await store.get_runs([run.run_id for run in runs])
            return {info.state for info in found.values()} == {"completed"}

        await eventually(ended)
    assert store.doubled == set()
    assert store.most >= 64
