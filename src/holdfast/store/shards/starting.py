"""Where new runs begin: each in the shard of its id, those of one key in one shard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    ShardsChanged,
    TransientDatabaseError,
)
from holdfast.store.port.shards import KnownShards, digest_of, known_shards
from holdfast.store.shards.homes import home_of, homes_of, open_shards
from holdfast.store.shards.members import Members, ended, gather_parts
from holdfast.store.shards.places import Places
from holdfast.store.shards.router import in_order, in_parts, notices_of
from holdfast.store.shared_calls import TakingParts, taken_parts
from holdfast.types import NewRun, Notice, RulesOfStart, StartedRun
from holdfast.values.ids import keyed_run_id

_read_rules: Final = msgspec.json.Decoder(RulesOfStart).decode

_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.1
_OF_NONE: Final = digest_of(())
_COMING_SECONDS: Final = 0.5  # the same, while some have not heard of a rule yet
_BELIEVED_SECONDS: Final = 5.0  # which workflows have rules: a shard refuses who does not know


class _Rules(NamedTuple):
    """The workflows with rules for starts. They are in force once all shards have them.

    Before, a start by a client that knows of a rule could meet one of a client that does not, in
    another shard, which has not heard of it either.
    """

    names: frozenset[str] = frozenset()
    digests: Mapping[int, str] = {}  # of those of each shard that has answered
    known_since: float = 0.0  # in seconds since 1970


class Starting:
    """Starts runs over all shards."""

    def __init__(self, members: Members, places: Places) -> None:
        self._members, self._places = members, places
        self._rules = _Rules()
        self._names: dict[int, frozenset[str]] = {}  # of workflows with rules, by shard
        self._ask_at = 0.0

    async def start(
        self, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs by a call of the port; also while shards are being added.

        Each shard starts its runs or none of them. Raises what the call raises, and
        TransientDatabaseError if some shards do not know of all for long.
        """
        answered: dict[int, StartedRun] = {}
        try:
            notices = await self._start_all(call, runs, answered)
        except HoldfastError:
            if (taken := taken_parts()) is not None:
                taken.update(answered)
            raise
        return [answered[at] for at in range(len(runs))], notices

    async def _start_all(
        self, call: str, runs: Sequence[NewRun], answered: dict[int, StartedRun]
    ) -> list[Notice]:
        """Start runs until each is answered, by its place: a try may be answered in part."""
        for _ in range(_TRIES):
            left = [at for at in range(len(runs)) if at not in answered]
            part: dict[int, StartedRun | BaseException] = {}
            try:
                with TakingParts(part):
                    found, notices = await self._start(call, [runs[at] for at in left])
                part.update(enumerate(found))
                return notices
            except ShardsChanged:
                await self._members.refresh()
                self._ask_at = 0.0
            finally:
                for at, started in part.items():
                    if isinstance(started, StartedRun):  # else the error of its shard
                        answered[left[at]] = started
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TransientDatabaseError(
            "shards are being added or closed: if `holdfast shards` was cut off, run it again"
        )

    async def _start(
        self, call: str, runs: Sequence[NewRun]
    ) -> tuple[list[StartedRun], list[Notice]]:
        history = self._members.history  # of all that follows: it may change meanwhile
        rules = await self._known_rules()
        places, lost = await self._places_of(runs, history, rules)
        by_shard = in_parts(places)

        async def start(number: int, which: Sequence[int]) -> tuple[list[StartedRun], list[Notice]]:
            known = KnownShards(len(history), rules.digests.get(number, _OF_NONE))
            token = known_shards.set(known)
            try:
                told = await self._members.call(number, call, [runs[at] for at in which])
            finally:
                known_shards.reset(token)
            started, notices = told
            self._places.keep((each.run_id for each in started), number)
            return started, notices

        answers = await gather_parts(
            self._members, by_shard, start, lost if None in places else None
        )
        started: list[StartedRun] = in_order(by_shard, [found for found, _ in answers])
        return started, notices_of(by_shard, [told for _, told in answers])

    async def _places_of(
        self, runs: Sequence[NewRun], history: tuple[int, ...], rules: _Rules
    ) -> tuple[list[int | None], DatabaseError | None]:
        """Return the shard of each start, None if one cannot tell that may have it, and its error.

        Runs of workflows with rules for starts are in shard 0, as these hold for all together.
        """
        shards, since = open_shards(history), self._members.known_since
        anchors = [
            each.run_id if each.key is None else keyed_run_id(each.name, each.key) for each in runs
        ]
        at_home = [each.name in rules.names or _has_rules(each) for each in runs]
        again = {
            anchor: is_ruled
            for each, anchor, is_ruled in zip(runs, anchors, at_home, strict=True)
            if each.key is not None
            or _is_older(each.run_id, max(since, rules.known_since) if is_ruled else since)
        }
        begun, lost = await self._begun(again, history)
        places = [
            begun.get(anchor, 0 if is_ruled else home_of(anchor, shards))
            for anchor, is_ruled in zip(anchors, at_home, strict=True)
        ]
        return places, lost

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

    async def _known_rules(self) -> _Rules:
        now = asyncio.get_running_loop().time()
        if now >= self._ask_at:
            known = await self._members.present("list_start_rules")
            names = self._names  # of one that is away those that it had
            for number, part in known.items():
                names[number] = frozenset(each.name for each in part)
            in_force = frozenset[str].intersection(*names.values())
            is_same = in_force == self._rules.names
            self._rules = _Rules(
                in_force,
                {number: digest_of(some) for number, some in names.items()},
                self._rules.known_since if is_same else time.time(),
            )
            some_lack = any(in_force != has for has in names.values())
            self._ask_at = now + (_COMING_SECONDS if some_lack else _BELIEVED_SECONDS)
        return self._rules


def _has_rules(run: NewRun) -> bool:
    if run.rules is None:
        return False
    rules = _read_rules(run.rules)
    return rules.declared is not None or rules.given is not None


def _is_older(run_id: UUID, since: float) -> bool:
    """Return True for an id that was made before the shards or the rules became what they are now.

    Its run may have begun where it belonged then: the start is repeated. What has no time in its id
    was given by the caller.
    """
    return run_id.version != 7 or (run_id.int >> 80) / 1000 < since
