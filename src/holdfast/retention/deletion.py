"""Delete the ended runs of a database whose retention is over, batch by batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import ObjectsUnavailable
from holdfast.payloads import delete_unneeded, refers, with_objects
from holdfast.payloads.unneeded import LOST_SECONDS
from holdfast.retention import Archive
from holdfast.retention.archive import ArchiveObject
from holdfast.retention.reading import read_head
from holdfast.store.port import Store
from holdfast.store.port.run_lines import read_line
from holdfast.types import LeasedRun, Swept
from holdfast.values.moments import to_datetime

_ARCHIVED_RUNS: Final = 10_000  # of an object, at most
_ARCHIVED_ROWS: Final = 100_000
_ROWS: Final = 5_000  # that are read, or deleted, at once
_AT_ONCE: Final = 2  # parts that are read at the same time
_OBJECT_BYTES: Final = 32 * 1024 * 1024
_MISSING_DAYS: Final = 30  # that a run is left after its retention, if an object is missing


async def sweep_batches(store: Store, archive: Archive | None = None) -> AsyncGenerator[Swept]:
    """Delete what is due, and yield what came of each batch.

    With an archive, runs are written there before they are deleted. Several processes may sweep at
    the same time: each passes over what another has. Raises InvalidInput without an archive if the
    runs of this database are archived, and ObjectsUnavailable; then nothing is deleted that is not
    in the archive. At last the objects of large payloads go that no run needs any more.
    """
    async for swept in _run_batches(store, archive):
        if not swept.has_more:
            await delete_unneeded(store)
        yield swept


async def _run_batches(store: Store, archive: Archive | None) -> AsyncGenerator[Swept]:
    if archive is not None:
        async for swept in _archive_batches(store, archive):
            yield swept
        return
    after: int | None = None
    while True:
        swept = await store.sweep_runs(after=after)
        yield swept
        if not swept.has_more:
            return
        after = swept.after


async def _archive_batches(store: Store, archive: Archive) -> AsyncGenerator[Swept]:
    """Write runs to objects and delete them: what was written is deleted while more is written.

    Raises ObjectsUnavailable at the end if runs were left whose large payloads cannot be read.
    """
    await archive.check()
    contents = _Contents(store, await store.now())
    deleting: asyncio.Task[int] | None = None
    has_more = True
    try:
        while has_more:
            leased = await store.lease_due_runs(limit=_ARCHIVED_RUNS, rows=_ARCHIVED_ROWS)
            has_more, runs = leased.has_more, leased.runs
            reads = await store.fresh_reads()
            while runs:
                dealt_with, written = await _write(reads, archive, runs, contents)
                done = [
                    replace(run, labels=written.get(run.run_id))
                    for run in runs
                    if run.run_id in dealt_with and (run.is_written or run.run_id in written)
                ]
                runs = [run for run in runs if run.run_id not in dealt_with]
                if deleting is not None:
                    yield Swept(deleted=await deleting, kept=0, has_more=True)
                deleting = asyncio.create_task(_delete(store, done))
        deleted = 0 if deleting is None else await deleting
        yield Swept(deleted=deleted, kept=0, has_more=False)
    finally:
        if deleting is not None:
            await asyncio.gather(deleting, return_exceptions=True)
    if contents.error is not None:
        raise contents.error


async def _write(
    reads: Store, archive: Archive, runs: Sequence[LeasedRun], contents: _Contents
) -> tuple[set[UUID], dict[UUID, str]]:
    """Write runs, as `reads` has them, to an object until it is large enough.

    Return the ids of those that were dealt with, and the labels of those that the archive has now.
    """
    made = ArchiveObject(await contents.store.now())
    dealt_with, labels = set[UUID](), dict[UUID, str]()
    parts = _parts(runs)
    reading: deque[asyncio.Task[dict[UUID, list[str]]]] = deque()
    try:
        for place, part in enumerate(parts):
            for ahead in parts[place + len(reading) : place + _AT_ONCE]:
                reading.append(asyncio.create_task(_read(reads, ahead, labels)))
            left = await _add(contents, made, await reading.popleft())
            dealt_with |= {run.run_id for run in part} - left
            if made.size >= _OBJECT_BYTES:
                break
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return dealt_with, {run_id: labels[run_id] for run_id in await archive.write(made)}


class _Contents:
    """Puts the contents of large payloads into runs; leaves those whose objects are not read.

    One object that was changed keeps no other run from the archive. An object store that does not
    answer costs a pass a minute. A run is also left if an object is not there: its folder may not
    be mounted, say. It is archived without it 30 days after its retention.
    """

    def __init__(self, store: Store, now: int) -> None:
        self.store, self._now = store, to_datetime(now)
        self.error: ObjectsUnavailable | None = None
        self._left_seconds = LOST_SECONDS

    async def of(self, lines: list[str]) -> list[list[str]]:
        """Return the lines of a run with the contents, nothing if the run is to be left."""
        if self._left_seconds <= 0:
            return []
        time = asyncio.get_running_loop().time
        began = time()
        try:
            return [await with_objects(self.store, lines, skips_absent=self._gives_up(lines[0]))]
        except ObjectsUnavailable as error:
            self._left_seconds -= time() - began
            self.error = self.error or error
            return []

    def _gives_up(self, line: str) -> bool:
        """Return True if a run, given by its first line, is archived without missing objects."""
        kept = timedelta(seconds=read_line(line).retention_seconds or 0, days=_MISSING_DAYS)
        return self._now > read_head(line).completed_at + kept


async def _add(contents: _Contents, made: ArchiveObject, runs: dict[UUID, list[str]]) -> set[UUID]:
    """Add runs, given as their lines, to an object, with the contents of large payloads.

    Runs with such are added one by one: return the ids of those that are left when it is large
    enough.
    """
    large = {run_id: lines for run_id, lines in runs.items() if refers(lines)}
    await asyncio.to_thread(
        made.add, [lines for run_id, lines in runs.items() if run_id not in large]
    )
    for run_id in list(large):
        if made.size >= _OBJECT_BYTES:
            break
        await asyncio.to_thread(made.add, await contents.of(large.pop(run_id)))
    return set(large)


async def _read(
    store: Store, runs: Sequence[LeasedRun], labels: dict[UUID, str]
) -> dict[UUID, list[str]]:
    """Return the lines of runs that are there as a whole until all is read, and are not written.

    Add the labels of the runs to `labels`. Another sweeper may delete a run meanwhile, if this one
    is slower than its lease: what was read by then is not all of the run.
    """
    lines: dict[UUID, list[str]] = {run.run_id: [] for run in runs if not run.is_written}
    afters: dict[UUID, str | None] = dict.fromkeys(lines)
    while afters:
        exported = await store.export_runs(afters)
        labels |= exported.labels
        for run_id, line in exported.lines.items():
            lines[run_id].append(line)
        for run_id in afters.keys() - exported.lines.keys() - exported.unfinished.keys():
            del lines[run_id]
        afters = exported.unfinished
    return lines


async def _delete(store: Store, runs: Sequence[LeasedRun]) -> int:
    """Delete runs that the archive has; return how many."""
    deleted = 0
    for part in _parts(runs):
        remaining = {run.run_id for run in part}
        while remaining:
            left = [run for run in part if run.run_id in remaining]
            count, unfinished = await store.delete_archived(left)
            deleted, remaining = deleted + count, set(unfinished)
    return deleted


def _parts(runs: Sequence[LeasedRun]) -> list[list[LeasedRun]]:
    """Divide runs into parts that are read and deleted at once."""
    parts: list[list[LeasedRun]] = []
    rows = _ROWS
    for run in runs:
        if rows + run.row_count > _ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(run)
        rows += run.row_count
    return parts
