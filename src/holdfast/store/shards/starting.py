"""Where new runs begin: each in the shard of its id, those of one key in one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    ShardsChanged,
    TransientDatabaseError,
)
from holdfast.store.port.shards import known_history
from holdfast.store.shards.homes import home_of, homes_of, open_shards
from holdfast.store.shards.members import Members, ended, gather_parts
from holdfast.store.shards.places import Places
from holdfast.store.shards.router import in_order, in_parts, notices_of
from holdfast.types import NewRun, Notice, RulesOfStart, StartedRun
from holdfast.values.ids import keyed_run_id

_read_rules: Final = msgspec.json.Decoder(RulesOfStart).decode

_TRIES: Final = 10
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

        Each shard starts its runs or none of them. Raises what the call raises, and
        TransientDatabaseError if some shards do not know of all for long.
        """
        for _ in range(_TRIES):
            try:
                return await self._start(call, runs)
            except ShardsChanged:
                await self._members.refresh()
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TransientDatabaseError(
            "shards are being added or closed: if `holdfast shards` was cut off, run it again"
        )

    async def _start(
        self, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        history = self._members.history  # of all that follows: it may change meanwhile
        places, lost = await self._places_of(runs, history)
        by_shard = in_parts(places)

        async def start(number: int, which: Sequence[int]) -> tuple[list[StartedRun], list[Notice]]:
            token = known_history.set(len(history))
            try:
                told = await self._members.call(number, call, [runs[at] for at in which])
            finally:
                known_history.reset(token)
            started, notices = told
            self._places.keep((each.run_id for each in started), number)
            return started, notices

        answers = await gather_parts(
            self._members, by_shard, start, lost if None in places else None
        )
        started: list[StartedRun] = in_order(by_shard, [found for found, _ in answers])
        return started, notices_of(by_shard, [told for _, told in answers])

    async def _places_of(
        self, runs: Sequence[NewRun], history: tuple[int, ...]
    ) -> tuple[list[int | None], DatabaseError | None]:
        """Return the shard of each start, None if one cannot tell that may have it, and its error.

        Runs of workflows with rules for starts are in shard 0, as these hold for all together.
        """
        ruled, shards = await self._workflows_with_rules(), open_shards(history)
        anchors = [
            each.run_id if each.key is None else keyed_run_id(each.name, each.key) for each in runs
        ]
        at_home = [each.name in ruled or _has_rules(each) for each in runs]
        again = {
            anchor: is_ruled
            for each, anchor, is_ruled in zip(runs, anchors, at_home, strict=True)
            if each.key is not None or self._may_be_again(each.run_id)
        }
        begun, lost = await self._begun(again, history)
        places = [
            begun.get(anchor, 0 if is_ruled else home_of(anchor, shards))
            for anchor, is_ruled in zip(anchors, at_home, strict=True)
        ]
        return places, lost

    def _may_be_again(self, run_id: UUID) -> bool:
        """Return True for an id that was made before the shards became what they are now.

        Its run may have begun where it belonged then: the start is repeated. What has no time in
        its id was given by the caller.
        """
        return run_id.version != 7 or (run_id.int >> 80) / 1000 < self._members.known_since

    async def _begun(
        self, anchors: Mapping[UUID, bool], history: tuple[int, ...]
    ) -> tuple[dict[UUID, int | None], DatabaseError | None]:
        """Return where runs are that began elsewhere than they would now.

        Other shards were open then, or the workflow, which has rules if it is true, had none. None
        for a run that may be in a shard that cannot tell, with its error.
        """
        asked: dict[int, list[UUID]] = {}
        for anchor, is_ruled in anchors.items():
            for number in homes_of(anchor, history)[0 if is_ruled else 1 :]:
                if number != 0 or not is_ruled:
                    asked.setdefault(number, []).append(anchor)
        if not asked:
            return {}, None
        answers = await ended(self._kept(n, which, history) for n, which in asked.items())
        found: dict[UUID, int | None] = {}
        silent: dict[UUID, int | None] = {}
        lost: DatabaseError | None = None
        for (number, which), kept in zip(asked.items(), answers, strict=True):
            if isinstance(kept, DatabaseUnavailable | TransientDatabaseError):
                lost = lost or kept
                silent.update(dict.fromkeys(which))
            elif isinstance(kept, BaseException):
                raise kept
            else:
                for run_id in kept:
                    found.setdefault(run_id, number)
        return silent | found, lost

    async def _kept(
        self, number: int, run_ids: Sequence[UUID], history: tuple[int, ...]
    ) -> Iterable[UUID]:
        await self._members.agreed(number, history)
        kept: dict[UUID, UUID] = await self._members.call(number, "newest_runs", run_ids)
        return kept

    async def _workflows_with_rules(self) -> frozenset[str]:
        """Return the workflows that have rules: the workers of each shard declare them there."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= _BELIEVED_SECONDS:
            known = await self._members.present("list_start_rules")
            self._ruled = frozenset(
                each.name for part in known.values() for each in part if each.rules is not None
            )
            self._asked_at = now
        return self._ruled


def _has_rules(run: NewRun) -> bool:
    if run.rules is None:
        return False
    rules = _read_rules(run.rules)
    return rules.declared is not None or rules.given is not None
