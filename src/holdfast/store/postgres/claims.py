"""Claims: lease due tasks, and give them back.

Until the table is vacuumed, its index keeps an entry for each task that was ever due, and a long
transaction anywhere in the server prevents vacuuming. Therefore a claim searches only after the
worker's watermark: for tasks that came due since its last claims. From time to time it searches for
tasks that those claims missed: they were committed late, their rows were locked, or their leases
expired. If a search of the whole past is cheap, it does that. Otherwise the past is cut into parts
that are cheap, and each claim searches one part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import asyncpg
import msgspec

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Database, Part, columns, read_headers, read_notices
from holdfast.types import ClaimedTask, Claims, Event, Notice, Release

_EMPTY_PAGES: Final = 80  # pages that a search costs for one handler in one queue if nothing is due
_HORIZON_SECONDS: Final = 10.0  # how far a claim looks ahead if there are many dead entries

_SECOND: Final = 1_000_000
_OVERLAP: Final = _SECOND  # a task's row is committed within this time after its clock was read
_LAG: Final = 10 * _SECOND  # the next claim searches this far back for tasks that a claim missed
_SWEEP_EVERY: Final = 50  # claims
_SWEEP_SECONDS: Final = 0.05
_EXPENSIVE: Final = 200  # pages; a part that costs more is cut
_PARTS: Final = 16  # one part is cut into at most so many
_AGES: Final = [round(60 * _SECOND * 4**n) for n in range(10)]  # from a minute to half a year
_WHOLE_AGAIN: Final = 100_000  # µs
_PARTS_AGAIN: Final = 400_000


_decode_tail = msgspec.json.Decoder(list[tuple[str, str | None, str | None, int]]).decode
_task = itemgetter("run_id", "key", "kind", "queue")
_turn = itemgetter(
    *("attempts", "lease_no", "log_length", "started_at", "input"),
    *("payload", "deadline_at", "heartbeat", "parent_run_id", "tail_from"),
)
_more = itemgetter("handler", "tail", "run_key", "headers", "first_claimed_at", "shape_hash")


class PostgresClaims(Part):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        # By worker, then by handlers.
        self._watermarks: dict[str, dict[tuple[str, ...], Watermark]] = {}

    async def claim_tasks(
        self,
        worker_id: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        ahead_seconds: float = 0.0,
        sticky_seconds: float = 0.25,
        max_attempts: int = 5,
        seeks_leases: bool = False,
    ) -> Claims:
        of_worker = self._watermarks.setdefault(worker_id, {})
        watermark = of_worker.setdefault(tuple(handlers), Watermark())
        usual = _EMPTY_PAGES * len(queues) * len(handlers)

        async def search(look: Look, limit: int) -> tuple[list[asyncpg.Record], asyncpg.Record]:
            """Claim what is due in a range; return the tasks, and the row about the whole claim."""
            *found, whole = await self._database.rows(
                "claim_tasks",
                worker_id,
                queues,
                handlers,
                limit,
                lease_seconds,
                ahead_seconds,
                sticky_seconds,
                max_attempts,
                *(look.since, look.until, look.leased_since),
                _HORIZON_SECONDS if watermark.is_cut else None,
                *(True, True),  # details are returned as text; with the properties of runs
            )
            if whole["pages"] is not None:
                watermark.paid(look, whole["now"], max(0, whole["pages"] - usual))
            return found, whole

        # What is due after the watermark, then, with room left, what was missed before it.
        first, *others = watermark.looks(seeks_leases=seeks_leases)
        found, whole = await search(first, limit)
        notices, suspects = await self._fail_poisoned(whole, max_attempts), [whole["suspects"]]
        now, next_due_at, wanting = whole["now"], whole["next_due_at"], len(found) < limit
        watermark.advance(now, whole["watermark"], wanting=wanting)
        watermark.searched(first, full=not wanting)
        for look in others if wanting else ():
            left, part = await search(look, limit - len(found))
            found += left
            watermark.searched(look, full=len(found) >= limit)
            notices += await self._fail_poisoned(part, max_attempts)
            suspects.append(part["suspects"])
        again = watermark.again_after(first)
        if wanting and again is not None:  # for the tasks that it passed over
            next_due_at = now + again if next_due_at is None else min(next_due_at, now + again)
        tasks, limited = [*map(claimed_task, found)], bool(whole["limited"])
        suspected = next((flag for flag in (True, False) if flag in suspects), None)
        return Claims(now, tasks, next_due_at, notices, limited=limited, suspects=suspected)

    async def _fail_poisoned(self, whole: asyncpg.Record, max_attempts: int) -> list[Notice]:
        """Fail the runs that a claim did not lease because they have lost too many workers."""
        if whole["poisoned"] is None:
            return []
        row = await self._database.row("fail_poisoned", whole["poisoned"], max_attempts)
        return read_notices(row[0])

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        queues = await self._database.rows(
            "release_tasks",
            worker_id,
            *columns(releases, "run_id", "key", "lease_no", "visible_at", "stuck"),
        )
        return [Notice(WORK_TOPIC, row[0]) for row in queues]

    async def remove_worker(self, worker_id: str, *, with_messages: bool = False) -> None:
        self._watermarks.pop(worker_id, None)
        await self._database.row("remove_worker", worker_id, with_messages)


def claimed_task(row: asyncpg.Record) -> ClaimedTask:
    handler, tail, run_key, headers, *others = _more(row)
    events = () if tail is None else [Event(*event) for event in _decode_tail(tail)]
    last = events, run_key, read_headers(headers), *others
    fields: tuple[Any, ...] = (*_task(row), *_name_and_version(handler), *_turn(row), *last)
    return ClaimedTask(*fields)


@lru_cache(maxsize=1024)
def _name_and_version(handler: str) -> tuple[str, int]:
    name, _, version = handler.rpartition("@")
    return name, int(version.partition("+")[0])  # of a pinned run its build follows


class Look(msgspec.Struct, frozen=True):
    """A range of due times: `since` None is the beginning, `until` None is now."""

    since: int | None = None
    until: int | None = None
    leased_since: int | None = None  # for expired leases; None: the same as `since`
    is_part: bool = False


class Watermark(msgspec.Struct):
    """How far a worker's claims have come, and which part of the past is next."""

    reached: int | None = None
    wanting: bool = False
    clock: Callable[[], float] = time.monotonic
    _claims: int = 0
    _sweeps_after: float = 0.0
    _swept_at: int = 0  # engine time of the last search for expired leases
    _edges: list[int] = []  # between the parts, the newest first
    _part: int = 0
    _last_pages: int = 0
    _unfinished: Look | None = None  # a search for missed tasks that found more than it could take

    @property
    def is_cut(self) -> bool:
        """True while a search of the whole past would cost too much."""
        return bool(self._edges)

    def looks(self, *, seeks_leases: bool = False) -> list[Look]:
        """Return the ranges in which the next claim looks, one after another while it has room.

        With `seeks_leases` it looks for missed tasks now, whenever it did so last.
        """
        self._claims += 1
        if self.reached is None:
            return [self._sweep(Look())]
        since = self.reached - _OVERLAP
        if self._unfinished is not None:
            return [Look(since), self._unfinished]
        past_pause = self.clock() >= self._sweeps_after
        is_time = past_pause and (self.wanting or self._claims >= _SWEEP_EVERY)
        if not (is_time or seeks_leases):
            return [Look(since)]
        if not self._edges:
            return [self._sweep(Look())]
        part = self._next_part(self.reached)
        return [self._sweep(Look(since, leased_since=self._swept_at - _OVERLAP)), part]

    def advance(self, now: int, reached: int | None, *, wanting: bool) -> None:
        """Record how far a claim came, and whether it found less than it asked for."""
        self.wanting = wanting
        self.reached = max(self.reached or 0, reached or 0, now - _LAG if wanting else 0) or None
        if self.reached is not None and self.reached > now + _LAG:
            self.reached = None  # the clock was set back

    def searched(self, look: Look, *, full: bool) -> None:
        """Record whether a search for missed tasks may have left some.

        Then the next claim searches again: a transaction that began many tasks took longer than a
        claim's overlap, and all of them were missed.
        """
        if look.since is None or look.is_part or look == self._unfinished:
            self._unfinished = Look(look.since, look.until, look.leased_since) if full else None

    def paid(self, look: Look, now: int, pages: int) -> None:
        """Record what a search for missed tasks cost: cut an expensive part, join cheap parts."""
        self._swept_at = now
        self._sweeps_after = self.clock() + _SWEEP_SECONDS * max(1.0, pages / _EXPENSIVE)
        if look.is_part or look == Look():
            self._record_part(look, now, pages)

    def again_after(self, first: Look) -> int | None:
        """Return in how many µs to search for missed tasks again; None if all was searched."""
        if self._edges:
            return _PARTS_AGAIN if self._part else None
        return None if first.since is None else _WHOLE_AGAIN

    def _sweep(self, look: Look) -> Look:
        self._claims = 0
        return look

    def _next_part(self, reached: int) -> Look:
        since = self._edges[self._part] if self._part < len(self._edges) else None
        until = self._edges[self._part - 1] if self._part else reached
        return Look(since, until, since, is_part=True)

    def _record_part(self, look: Look, now: int, pages: int) -> None:
        if pages > _EXPENSIVE:
            cuts = _cuts(look, self.reached or now, pages)
            self._edges[self._part : self._part] = cuts
            self._part += len(cuts) + 1
        elif self._part and pages + self._last_pages < _EXPENSIVE // 4:
            del self._edges[self._part - 1]
            pages += self._last_pages
        else:
            self._part += 1
        self._last_pages = pages
        if self._part > len(self._edges):
            self._part = 0


def _cuts(look: Look, now: int, pages: int) -> list[int]:
    """Return where to cut a part, the newest edge first."""
    until = now if look.until is None else look.until
    if look.since is None:
        return [now - age for age in _AGES if now - age < until]
    count = min(_PARTS, 1 + pages // _EXPENSIVE, max(1, (until - look.since) // 1000))
    width = (until - look.since) / count
    return [round(until - width * place) for place in range(1, count)]
