"""The databases of an engine: each is opened when it can be; one that is away stops no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar
from uuid import UUID

from holdfast.errors import (
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    InsufficientRights,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    ShardsChanged,
    TransientDatabaseError,
)
from holdfast.store.port import Store
from holdfast.store.port.reads import note_away
from holdfast.store.port.shards import ShardAway
from holdfast.store.shards.homes import homes_of
from holdfast.store.shards.silence import Silence
from holdfast.store.shared_calls import taken_parts
from holdfast.types import MOST_SHARDS, Notice, ShardState
from holdfast.values.loggers import get_logger

T = TypeVar("T")

logger = get_logger("holdfast.shards")

_PAUSE_SECONDS: Final = 1.0  # after a database could not be opened, calls fail at once for so long
_NOTICE_SECONDS: Final = 2.0  # so old may be what lists know of shards that are added
_COUNTED_SECONDS: Final = 10.0  # so old may be what lists know, if all that are named are shards
_ADD: Final = "`holdfast shards add`"
_UNUSABLE: Final = (  # for now: lists do without it
    DatabaseUnavailable,
    InsufficientRights,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
)


class Member:
    """One database: its number, its store, and what it says of its engine; None if nothing yet."""

    def __init__(self, number: int, store: Store) -> None:
        self.number, self.store = number, store
        self.state: ShardState | None = None
        self._is_open = False
        self._silence = Silence(store.ping)
        self._opening = asyncio.Lock()
        self._failed_at = -_PAUSE_SECONDS
        self._failure = ""

    @property
    def is_open(self) -> bool:
        """True if its database has answered."""
        return self._is_open

    async def open(self) -> Store:
        """Return the open store. Raises what `Store.open` raises, and ConfigurationError."""
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await self._silence.bounded(self._connect)
        return self.store

    async def call(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Make a call to the open store. Raises DatabaseUnavailable also if it does not answer."""
        store = await self.open()
        return await self._silence.bounded(partial(getattr(store, name), *args, **options))

    async def _connect(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._failed_at < _PAUSE_SECONDS:
            raise DatabaseUnavailable(self._failure)
        try:
            await self.store.open()
            await self.look()
        except DatabaseUnavailable as error:
            self._failed_at, self._failure = now, str(error)
            raise
        self._is_open = True

    async def look(self) -> ShardState | None:
        """Read what the database says of its engine now. Raises ConfigurationError."""
        self.state = await self._silence.bounded(self.store.shard_state)
        if self.state is not None and self.state.number != self.number:
            raise ConfigurationError(
                f"database {self.number + 1} of those that are named is shard "
                f"{self.state.number}: name each shard once, in the order of their numbers"
            )
        return self.state

    async def close(self) -> None:
        self._is_open = False
        await self._silence.close()
        await self.store.close()


class Members:
    """All databases that are named. Those behind the last shard are spare until they are added."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.named = [Member(number, store) for number, store in enumerate(stores)]
        self.history: tuple[int, ...] = (len(stores),)
        self.known_since = 0.0  # when this client learned of the history, in seconds since 1970
        self._noticed_at = 0.0

    @property
    def count(self) -> int:
        """How many shards there are, as far as is known."""
        return max(self.history)

    async def open(self) -> None:
        """Open those that can be opened, and check that they are one engine. Idempotent.

        Raises what the first raised if none can be opened; ShardsChanged and ConfigurationError if
        they are not the shards of one engine.
        """
        found = await asyncio.gather(*(each.open() for each in self.named), return_exceptions=True)
        away = [each for each in found if isinstance(each, _UNUSABLE)]
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, _UNUSABLE):
                raise each
        if len(away) == len(found):
            raise away[0]
        for number, each in enumerate(found):
            if isinstance(each, BaseException):
                logger.warning("shard %d is away: %s", number, each)
        await self._check()
        self._noticed_at = asyncio.get_running_loop().time()

    async def _check(self) -> None:
        """Take the newest history that its shards know. Raises ShardsChanged, ConfigurationError.

        New shards are told before old ones: if one has not heard yet, nobody uses the new ones.
        """
        states = [each.state for each in self.named if each.state is not None]
        if not states:
            raise ConfigurationError(
                f"several databases are named, and none of them is a shard: {_ADD} makes them "
                "one engine. If an application runs with the first one, make that alone a shard "
                "before"
            )
        newest = max(states, key=lambda state: len(state.history))
        for state in states:
            if state.engine != newest.engine:
                raise ConfigurationError(
                    f"shard {state.number} and shard {newest.number} belong to different engines"
                )
        if newest.count > len(self.named):
            raise _too_few(newest.count, len(self.named))
        unsaid = [each for each in self.named if each.is_open and each.state is None]
        await asyncio.gather(*(each.look() for each in unsaid), return_exceptions=True)
        spare = min((each.number for each in unsaid if each.state is None), default=MOST_SHARDS)
        known = [state for state in states if state.count <= spare]
        if not known:
            raise ConfigurationError(
                f"database {spare + 1} of those that are named does not know that it is a shard: "
                f"if {_ADD} was cut off, run it again"
            )
        history = max((each.history for each in known), key=len)
        old = max(history[:-1], default=0)
        first = self.named[0].state
        if first is not None and history[-1] > 0:  # of new shards it is told last
            is_known = not old or first.history == history
        else:
            is_known = all(each.history == history for each in states if each.number < old)
        history = history if is_known else history[:-1]
        if self.history != history or not self.known_since:
            self.history, self.known_since = history, time.time()

    async def refresh(self) -> None:
        """Ask all databases that answer how many shards there are. Raises what `open` raises."""
        await asyncio.gather(*(each.look() for each in self.named), return_exceptions=True)
        await self._check()

    async def notice(self, older_than: float = 0.0) -> bool:
        """Look if spare databases have become shards; return True if some have.

        It does not look again if it has looked in so many seconds. Without a spare one it looks
        more seldom, and asks one shard: ShardsChanged is raised if that knows of more.
        """
        before, now = self.count, asyncio.get_running_loop().time()
        are_all = before == len(self.named)
        if now - self._noticed_at < (_COUNTED_SECONDS if are_all else older_than):
            return False
        self._noticed_at = now
        with suppress(DatabaseError):  # what was known still holds
            if not are_all:
                await self.refresh()
            elif (asked := next(filter(_is_open, self.named), None)) is not None:
                await asked.look()
        newest = max((x.state.count for x in self.named if x.state is not None), default=before)
        if newest > len(self.named):
            raise _too_few(newest, len(self.named))
        return self.count > before

    async def _sees_more(self) -> bool:
        """Look if there are more shards than are known. Raises ShardsChanged if not all are named.

        What a shard that is not named may have is not missing.
        """
        before = self.count
        try:
            await self.refresh()
        except ShardsChanged:
            raise
        except HoldfastError:
            return False  # what was known still holds
        return self.count > before

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self.named))

    async def call(self, number: int, name: str, /, *args: Any, **options: Any) -> Any:
        """Make a call to one shard.

        Raises ShardAway, with the shard's number, if it is away.
        """
        if number >= len(self.named):
            raise _too_few(number + 1, len(self.named))
        try:
            return await self.named[number].call(name, *args, **options)
        except DatabaseUnavailable as error:
            away = ShardAway(f"shard {number}: {error}", [number])
            away.unanswered = error.unanswered
            raise away from error

    async def each(self, name: str, /, *args: Any, **options: Any) -> list[Any]:
        """Make a call to all shards, also to new ones. Raises what the first that fails raises."""
        await self.notice()
        return await gather(
            self.call(number, name, *args, **options) for number in range(self.count)
        )

    async def present(self, name: str, /, *args: Any, **options: Any) -> dict[int, Any]:
        """Make a call that reads to all shards, and leave out those that cannot answer.

        They are noted for the caller of lists. Raises DatabaseError if no shard answers.
        """
        await self.notice(_NOTICE_SECONDS)
        answers, away = await answered(
            {number: self.call(number, name, *args, **options) for number in range(self.count)}
        )
        if not answers:
            raise away[0]
        return answers

    def away(self, answers: Mapping[int, object]) -> list[int]:
        """Return the shards that are not among those that have answered."""
        return [number for number in range(self.count) if number not in answers]

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[int, dict[UUID, UUID]]:
        """Return which shards have these runs, and as which run each continues there.

        They are looked for where their ids belong first, then in all shards: a child is with its
        parent. A run that no shard has is looked for in those that were added meanwhile.
        """
        homes: dict[int, list[UUID]] = {}
        for run_id in run_ids:
            for number in homes_of(run_id, self.history):
                homes.setdefault(number, []).append(run_id)
        found, _ = await answered(
            {number: self.call(number, "newest_runs", which) for number, which in homes.items()}
        )
        if missing := _missing(run_ids, found):
            everywhere = await self.present("newest_runs", missing)
            if _missing(missing, everywhere) and await self._sees_more():
                everywhere = await self.present("newest_runs", missing)
            for number, more in everywhere.items():
                found[number] = found.get(number, {}) | more
        return found

    async def agreed(self, number: int, history: tuple[int, ...]) -> None:
        """Make sure that a shard knows this history, so that it refuses callers that do not.

        Raises TransientDatabaseError while shards are being added or closed.
        """
        member, known = self.named[number], slice(len(history))
        if member.state is None or member.state.history[known] != history:
            member.state = await self.call(number, "shard_state")
        if member.state is None or member.state.history[known] != history:
            raise TransientDatabaseError(
                f"shard {number} has not heard yet what the shards are now: if the command that "
                "added or closed one was cut off, run it again"
            )


def _is_open(member: Member) -> bool:
    return member.is_open


def _too_few(count: int, named: int) -> ShardsChanged:
    return ShardsChanged(
        f"this engine has {count} shards, and {named} databases are named: name all of them, in "
        "the order of their numbers, and start again"
    )


async def answered(calls: Mapping[int, Awaitable[T]]) -> tuple[dict[int, T], list[DatabaseError]]:
    """Return the answers of the shards that answer, and the errors of the others.

    Those are noted for the caller of lists.
    """
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[int, T] = {}
    away: list[DatabaseError] = []
    for number, answer in zip(calls, found, strict=True):
        if isinstance(answer, (*_UNUSABLE, TransientDatabaseError)):
            away.append(answer)
            note_away([number])
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[number] = answer
    return answers, away


def _missing(run_ids: Sequence[UUID], found: Mapping[int, Mapping[UUID, UUID]]) -> list[UUID]:
    known = set(chain.from_iterable(found.values()))
    return [run_id for run_id in run_ids if run_id not in known]


async def gather_parts(
    members: Members,
    parts: Mapping[int, Sequence[int]],
    call: Callable[[int, Sequence[int]], Awaitable[tuple[Sequence[Any], Sequence[Notice]]]],
    lost: BaseException | None = None,
) -> list[tuple[Sequence[Any], Sequence[Notice]]]:
    """Call shards, each with the places of its items; return their answers, with wake-ups.

    `lost` is the error of items that are in no part. Raises it, or what the first that failed
    raised, after it has told what was answered by the others, see `TakingParts`, and sent their
    wake-ups. ShardsChanged comes before all others: the caller makes the call again.
    """
    found = await ended(call(number, which) for number, which in parts.items())
    errors = [each for each in found if isinstance(each, BaseException)]
    changed = (each for each in errors if isinstance(each, ShardsChanged))
    error = next(changed, lost or next(iter(errors), None))
    taken = taken_parts()
    answers: list[tuple[Sequence[Any], Sequence[Notice]]] = []
    for (number, which), each in zip(parts.items(), found, strict=True):
        if isinstance(each, BaseException):
            if taken is not None and isinstance(each, DatabaseUnavailable):
                taken.update(dict.fromkeys(which, each))
            continue
        answers.append(each)
        if error is not None:
            if taken is not None:
                taken.update(zip(which, each[0], strict=True))
            with suppress(DatabaseError):
                await members.call(number, "notify", each[1])
    if error is not None:
        raise error
    return answers


async def ended(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Make calls at the same time and end them all; return their answers and errors, in order."""
    made = list(calls)
    if len(made) != 1:
        return list(await asyncio.gather(*made, return_exceptions=True))
    try:  # without a task of its own, which a start would pay for
        return [await made[0]]
    except Exception as error:
        return [error]


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Make calls at the same time, end them all, and raise what the first that failed raised."""
    found = await ended(calls)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
