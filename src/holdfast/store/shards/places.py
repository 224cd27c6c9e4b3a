"""Which shard has a run. A run never moves, so what was found once is kept.

The id of a key comes again after its run was deleted: once shards were added, in another one. So
what is known of it counts for a while only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from holdfast.errors import DatabaseUnavailable
from holdfast.store.port.reads import noting_reads
from holdfast.store.port.shards import MayBeAway
from holdfast.store.shards.homes import home_of, open_shards
from holdfast.store.shards.members import Members

_MOST: Final = 100_000
_BELIEVED_SECONDS: Final = 30.0  # of a key, if there were fewer shards
_OF_KEYS: Final = 0xFF  # the first byte of their ids


class Places:
    """Finds runs."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._known: dict[UUID, tuple[int, float]] = {}  # with the loop's time

    def keep(self, run_ids: Iterable[UUID], number: int) -> None:
        """Remember that these runs are in a shard."""
        known, now = self._known, asyncio.get_running_loop().time()
        for run_id in run_ids:
            known[run_id] = number, now
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
        lost = None
        if unknown := [run_id for run_id in asked if self.known(run_id) is None]:
            lost = await self._look(unknown)
        found = {each: known[0] for each in asked if (known := self._known.get(each))}
        if lost is None:
            shards = open_shards(self._members.history)
            found |= {each: home_of(each, shards) for each in asked if each not in found}
        return found, lost

    async def find_one(self, run_id: UUID) -> int:
        known = self.known(run_id)
        return (await self.find([run_id]))[run_id] if known is None else known

    def known(self, run_id: UUID) -> int | None:
        """Return which shard has a run, if it is remembered."""
        number, at = self._known.get(run_id, (None, 0.0))
        if number is None or len(self._members.history) == 1 or run_id.bytes[0] != _OF_KEYS:
            return number
        if asyncio.get_running_loop().time() - at < _BELIEVED_SECONDS:
            return number
        del self._known[run_id]
        return None

    async def _look(self, run_ids: list[UUID]) -> DatabaseUnavailable | None:
        with noting_reads() as notes:
            found = await self._members.newest_runs(run_ids)
        for number, newest in found.items():
            self.keep(newest, number)
        missing = [run_id for run_id in run_ids if run_id not in self._known]
        if not missing or not notes.away:
            return None
        away = ", ".join(map(str, sorted(notes.away)))
        return MayBeAway(
            f"shard {away} is away, and may have run {missing[0]}: no other shard has it",
            notes.away,
        )
