"""Which shard has a run. A run never moves, so what was found once is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from holdfast.errors import DatabaseUnavailable
from holdfast.store.port.reads import noting_reads
from holdfast.store.shards.homes import home_of
from holdfast.store.shards.members import Members

_MOST: Final = 100_000


class Places:
    """Finds runs."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._known: dict[UUID, int] = {}

    def keep(self, run_ids: Iterable[UUID], number: int) -> None:
        """Remember that these runs are in a shard."""
        known = self._known
        for run_id in run_ids:
            known[run_id] = number
        while len(known) > _MOST:
            del known[next(iter(known))]

    async def find(self, run_ids: Iterable[UUID]) -> dict[UUID, int]:
        """Return which shards have these runs. One that none has is where its id belongs.

        Raises DatabaseUnavailable for a run that no other shard has while one is away.
        """
        found, lost = await self.find_most(run_ids)
        if lost is not None:
            raise lost
        return found

    async def find_most(
        self, run_ids: Iterable[UUID]
    ) -> tuple[dict[UUID, int], DatabaseUnavailable | None]:
        """Return which shards have these runs, and what is to be said of those that may be away."""
        asked = list(dict.fromkeys(run_ids))
        known, count, lost = self._known, self._members.count, None
        if unknown := [run_id for run_id in asked if run_id not in known]:
            lost = await self._look(unknown)
        if lost is not None:
            return {each: known[each] for each in asked if each in known}, lost
        return {
            each: known[each] if each in known else home_of(each, count) for each in asked
        }, None

    async def find_one(self, run_id: UUID) -> int:
        """Return which shard has a run."""
        known = self._known.get(run_id)
        return (await self.find([run_id]))[run_id] if known is None else known

    async def _look(self, run_ids: list[UUID]) -> DatabaseUnavailable | None:
        with noting_reads() as notes:
            found = await self._members.newest_runs(run_ids)
        for number, newest in found.items():
            self.keep(newest, number)
        missing = [run_id for run_id in run_ids if run_id not in self._known]
        if not missing or not notes.away:
            return None
        away = ", ".join(map(str, sorted(notes.away)))
        return DatabaseUnavailable(
            f"shard {away} is away, and may have run {missing[0]}: no other shard has it"
        )
