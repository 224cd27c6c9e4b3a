"""Where new runs begin: each in the shard of its id, those of one key in one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import DatabaseUnavailable, ShardsChanged
from holdfast.store.port.shards import known_count
from holdfast.store.shards.homes import home_of, homes_of
from holdfast.store.shards.members import Members, gather
from holdfast.store.shards.places import Places
from holdfast.types import NewRun, Notice, RulesOfStart, StartedRun
from holdfast.values.ids import keyed_run_id

_read_rules: Final = msgspec.json.Decoder(RulesOfStart).decode

_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.1
_BELIEVED_SECONDS: Final = 5.0  # that a workflow has no rules for starts


class Starting:
    """Starts runs over all shards."""

    def __init__(self, members: Members, places: Places) -> None:
        self._members, self._places = members, places
        self._ruled: frozenset[str] = frozenset()
        self._asked_at = -_BELIEVED_SECONDS

    async def start(
        self, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs by a call of the port; also while shards are being added.

        Each shard starts its runs or none of them. Raises what the call raises.
        """
        for left in reversed(range(_TRIES)):
            try:
                return await self._start(call, runs)
            except ShardsChanged:
                if not left:
                    raise
            await self._members.refresh()
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try has returned or raised")

    async def _start(
        self, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        places = await self._places_of(runs)
        by_shard: dict[int, list[int]] = {}
        for at, number in enumerate(places):
            by_shard.setdefault(number, []).append(at)
        answers = await gather(
            self._start_in(number, call, [runs[at] for at in which])
            for number, which in by_shard.items()
        )
        started: dict[int, StartedRun] = {}
        notices: list[Notice] = []
        for (number, which), (found, told) in zip(by_shard.items(), answers, strict=True):
            self._places.keep((each.run_id for each in found), number)
            started.update(zip(which, found, strict=True))
            notices += told
        return [started[at] for at in range(len(runs))], notices

    async def _start_in(
        self, number: int, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        token = known_count.set(self._members.count)
        try:
            found: tuple[list[StartedRun], list[Notice]] = await self._members.call(
                number, call, runs
            )
        finally:
            known_count.reset(token)
        return found

    async def _places_of(self, runs: Sequence[NewRun]) -> list[int]:
        """Return the shard of each start.

        Runs of workflows with rules for starts are in shard 0, as these hold for all together.
        """
        ruled, count = await self._workflows_with_rules(), self._members.count
        moved: dict[UUID, int] = {}
        if len(self._members.counts) > 1:
            keyed = {keyed_run_id(each.name, each.key) for each in runs if each.key is not None}
            moved = await self._older(keyed)
        places: list[int] = []
        for each in runs:
            anchor = each.run_id if each.key is None else keyed_run_id(each.name, each.key)
            if each.name in ruled or _has_rules(each):
                places.append(0)
            else:
                places.append(moved.get(anchor, home_of(anchor, count)))
        return places

    async def _older(self, anchors: Iterable[UUID]) -> dict[UUID, int]:
        """Return where runs of keys are that began while there were fewer shards."""
        counts = self._members.counts
        asked: dict[int, list[UUID]] = {}
        for anchor in anchors:
            for number in homes_of(anchor, counts)[1:]:
                asked.setdefault(number, []).append(anchor)
        found: dict[UUID, int] = {}
        for number, which in asked.items():
            await self._members.agreed(number)
            for run_id in await self._members.call(number, "newest_runs", which):
                found.setdefault(run_id, number)
        return found

    async def _workflows_with_rules(self) -> frozenset[str]:
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= _BELIEVED_SECONDS:
            self._asked_at = now
            with suppress(DatabaseUnavailable):  # then what was known still holds
                known = await self._members.call(0, "list_start_rules")
                self._ruled = frozenset(each.name for each in known if each.rules is not None)
        return self._ruled


def _has_rules(run: NewRun) -> bool:
    if run.rules is None:
        return False
    rules = _read_rules(run.rules)
    return rules.declared is not None or rules.given is not None
