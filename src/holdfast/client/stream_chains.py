"""The runs whose streams are one: each was continued or, by key, retried as the next."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from holdfast.client.naming import RunRef
from holdfast.client.reading import get_record, store_of
from holdfast.client.session import Session
from holdfast.errors import RunNotFound
from holdfast.events import (
    ACTIVITY_COMPLETED,
    ACTIVITY_FAILED,
    FORKED,
    STEP_ENDS,
    STREAM_WRITTEN,
    read_stream_written,
)
from holdfast.insight.retries import find_retry
from holdfast.types import Event, Restarted, Status, StreamPart, StreamRead, continued_as
from holdfast.values.ids import retry_run_id

_WRITERS_ENDS: Final = STEP_ENDS | {ACTIVITY_COMPLETED, ACTIVITY_FAILED}
_PAGE: Final = 1000  # entries of a log
_CLIP: Final = 1000  # bytes of an entry, for the id of a run, and a close of a stream


class Next(NamedTuple):
    """The run that follows another; `kept` are the calls of that one whose ends it has copied.

    "" is among them if it has copied that the code closed the stream. None: it has copied nothing,
    as that one has continued as new.
    """

    run_id: UUID
    kept: frozenset[str] | None


class Passed(Protocol):
    """What was read of a stream in one run of the chain."""

    run_id: UUID
    status: Status | None
    base: int
    last_offset: int
    shown: set[str]

    async def part(self, read: StreamRead) -> StreamPart: ...


class StreamChain:
    """Finds the run that follows in a stream, and what of the runs before does not count there."""

    def __init__(self, session: Session, name: str, after: int, *, by_key: bool) -> None:
        self._session, self._name, self._after, self._by_key = session, name, after, by_key
        self._next: dict[UUID, Next] = {}
        self._shown = set[str]()  # calls whose values the caller has, as far as they count
        self._copied: list[tuple[Passed, frozenset[str]]] = []  # runs of which the next is a copy

    async def kept_after(self, run_id: UUID, status: Status) -> list[frozenset[str]]:
        """Return the calls of an ended run that its copies have kept, copy by copy."""
        kept = list[frozenset[str]]()
        while (found := await self._following(run_id, status)) and found.kept is not None:
            kept.append(found.kept)
            run_id = found.run_id
            status = (await get_record(self._session, run_id)).status
        return kept

    async def leave(self, passed: Passed) -> tuple[UUID | None, list[Restarted]]:
        """Return the run that follows one that was read to its end, and what restarts there."""
        found = await self._following(passed.run_id, passed.status)
        if found is None:
            return None, []
        if found.kept is None:
            self._shown.clear()
            self._copied.clear()
            return found.run_id, []
        self._shown |= passed.shown
        self._copied.append((passed, found.kept))
        if 0 < self._after <= passed.last_offset:
            self._shown |= await self._shown_before()
        gone = sorted(self._shown - found.kept - {""})  # what code has written stays
        self._shown &= found.kept
        return found.run_id, [Restarted(key, 1, self._copied[0][0].base) for key in gone]

    async def _shown_before(self) -> set[str]:
        """Return the calls whose values the caller had before it asked, as far as they count."""
        shown = set[str]()
        for passed, kept in self._copied:
            offset = passed.base
            while offset < self._after:
                part = await passed.part(StreamRead(passed.run_id, self._name, offset))
                shown |= {
                    chunk.writer.key
                    for chunk in part.chunks
                    if chunk.state != "dead" and chunk.last_offset - chunk.count < self._after
                }
                offset = part.chunks[-1].last_offset if part.chunks else self._after
            if passed is not self._copied[-1][0]:
                shown &= kept
        self._after = 0
        return shown

    async def _following(self, run_id: UUID, status: Status | None) -> Next | None:
        if run_id not in self._next:
            found: Next | None = None
            if status == "continued":
                found = await self._continued(run_id)
            elif self._by_key and status not in ("running", "completed"):
                found = await self._retried(run_id)
            if found is None:
                return None
            self._next[run_id] = found
        return self._next[run_id]

    async def _continued(self, run_id: UUID) -> Next | None:
        run = await get_record(self._session, run_id)
        if (next_id := continued_as(run)) is None:
            return None
        if run.last_failure is None and run.archive is None:  # it was not tried again
            return Next(next_id, None)
        return Next(next_id, await self._copied_ends(run_id, next_id))

    async def _retried(self, run_id: UUID) -> Next | None:
        """Return the retry of a run if it continues the stream.

        A retry of an earlier release does not, and a new start of the key has no copied log.
        """
        next_id = await _retry_of(self._session, run_id)
        if next_id is None or not await _base(self._session, next_id, self._name):
            return None
        kept = await self._copied_ends(run_id, next_id)
        return None if kept is None else Next(next_id, kept)

    async def _copied_ends(self, run_id: UUID, copy_id: UUID) -> frozenset[str] | None:
        """Return what a run has kept of another, see `Next`; None if it has not copied its log."""
        ends, copied = set[str](), None
        store, idx = await store_of(self._session, copy_id), 0
        while page := await store.read_log(copy_id, idx, limit=_PAGE, clip=_CLIP):
            for each in page:
                event = each.event
                if event.type in _WRITERS_ENDS and event.key is not None:
                    ends.add(event.key)
                elif event.type == STREAM_WRITTEN and _closes(event, self._name):
                    ends.add("")
                elif event.type == FORKED:  # the last one says where its own entries begin
                    copied = frozenset(ends)
                    if str(run_id) in (event.details or ""):
                        return copied
            idx += len(page)
        return copied


async def first_run(session: Session, run: RunRef, name: str, after: int, restarts: bool) -> UUID:
    """Return the run in which what follows an offset is, or begins: the chain is one stream.

    With `restarts`, also what was before it is looked at, if a retry may not count it.
    """
    first, newest = await session.id_of(run), await session.newest_of(run)
    if first == newest:
        return newest
    part = await session.stream_reads.submit(StreamRead(newest, name, after))
    is_after = after > part.base or (after == part.base and not restarts)
    if part.status is not None and (is_after or part.base == 0):
        return newest  # nothing before it is asked for, or it has a stream of its own
    begin: UUID | None = first
    run_id = first
    while run_id != newest:
        next_id: UUID | None = None
        try:
            next_id = continued_as(await get_record(session, run_id))
        except RunNotFound:  # it is deleted
            begin = None
        if next_id is None:
            next_id = await _retry_of(session, run_id)
            if next_id is None:  # what came before is deleted
                return newest
            if not await _base(session, next_id, name):
                begin = None
        begin, run_id = begin or next_id, next_id
    return begin or newest


async def _retry_of(session: Session, run_id: UUID) -> UUID | None:
    """Return the run that retries a run, or of an archived one the archived retry."""
    retry = await find_retry(session.store, run_id)
    if retry is not None:
        return retry.run_id
    if run_id in await session.store.get_runs([run_id], payloads=False):
        return None
    archived = await session.archived(retry_run_id(run_id))
    return None if archived is None else archived.record.run_id


async def _base(session: Session, run_id: UUID, name: str) -> int:
    """Return the last offset that a stream has of the runs before one."""
    store = await store_of(session, run_id)
    [part] = await store.read_streams([StreamRead(run_id, name)], limit=1, most_bytes=1)
    return part.base


def _closes(event: Event, name: str) -> bool:
    """Return True if the code has closed a stream by an event of it."""
    try:
        written = read_stream_written(event.details or "")
    except msgspec.DecodeError:  # it is cut: a close is short
        return False
    return written.closes and written.stream == name
