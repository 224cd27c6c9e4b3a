"""How the committer gathers turns' parts into calls."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from holdfast.runtime.clock import EngineClock
from holdfast.runtime.committing.committer import Committer
from holdfast.store.memory import MemoryStore
from holdfast.types import Committed, Event, Finish, Notice, Refusal, Suspend, TurnCommit

STEP = Event("StepCompleted", "work", "{}", 0)


class Recorder(MemoryStore):
    """Takes every part, and keeps how many came in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        self.calls.append(len(turns))
        return Committed(0, {}, [])


def parts(count: int, then: Suspend | Finish | None = None) -> list[TurnCommit]:
    """Parts of as many runs, which go on or do `then`."""
    return [TurnCommit(UUID(int=number), 1, 1, [STEP], then) for number in range(count)]


async def calls_for(turns: list[TurnCommit]) -> list[int]:
    """Submit parts at the same moment, and return the sizes of the calls."""
    store, answers = Recorder(), list[Refusal | None]()
    committer = Committer(store, "w", EngineClock(), list[Notice]().extend)
    for part in turns:
        committer.submit(part, answers.append)
    await committer.settle()
    assert answers == [None] * len(turns)
    return store.calls


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
async def test_many_checkpoints_of_one_moment_take_both_lanes(
    turns: list[TurnCommit], calls: list[int]
) -> None:
    """Else the worker waits while the database works, and then the other way round."""
    assert await calls_for(turns) == calls


@pytest.mark.parametrize("then", [Finish("completed", "1"), Suspend(None, ("go",))])
async def test_parts_that_end_or_suspend_share_one_call(then: Suspend | Finish) -> None:
    assert await calls_for(parts(100, then)) == [100]
    assert await calls_for([*parts(99), TurnCommit(UUID(int=99), 1, 1, [STEP], then)]) == [100]
