"""The run that tests drive by hand commits like a worker."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import Committed, NewSignal, TurnCommit
from tests.runtime.desk import Desk


class Meddled(MemoryStore):
    """Has a signal come before a commit, each time that it is told to."""

    def __init__(self) -> None:
        super().__init__(wall_clock)
        self.signals = 0

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        if self.signals:
            self.signals -= 1
            await self.signal_runs([NewSignal(turns[0].run_id, "go", "null")])
        return await super().commit(worker_id, token, turns)


async def test_a_desk_commits_again_where_others_wrote_to_its_log_meanwhile() -> None:
    store = Meddled()
    desk = await Desk(store, "media").open()
    store.signals = 2
    await desk.order("convert")
    assert await desk.types("convert") == ["ActivityScheduled"]


async def test_a_desk_that_lost_its_lease_fails_its_test() -> None:
    store = MemoryStore(wall_clock)
    desk = await Desk(store, "media").open()
    desk._lease_no += 1
    with pytest.raises(AssertionError, match="lost"):
        await desk.order("convert")
