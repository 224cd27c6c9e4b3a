"""Delete the ended runs of a database whose retention is over, batch by batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final
from uuid import UUID

from holdfast.archive import Archive
from holdfast.archive.archive import ArchiveObject
from holdfast.store.port import Store
from holdfast.types import LeasedRun, Swept

_ARCHIVED_RUNS: Final = 10_000  # of an object, at most
_ARCHIVED_ROWS: Final = 100_000
_ROWS: Final = 5_000  # that are read, or deleted, at once
_AT_ONCE: Final = 2  # parts that are read at the same time
_OBJECT_BYTES: Final = 32 * 1024 * 1024


async def sweep_batches(store: Store, archive: Archive | None = None) -> AsyncGenerator[Swept]:
    """Delete what is due, and yield what came of each batch.

    With an archive, runs are written there before they are deleted. Several processes may sweep at
    the same time: each passes over what another has. Raises InvalidInput without an archive if the
    runs of this database are archived, and ObjectsUnavailable; then nothing is deleted that is not
    in the archive.
    """
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
    """Write runs to objects and delete them: what was written is deleted while more is written."""
    await archive.check()
    deleting: asyncio.Task[int] | None = None
    has_more = True
    try:
        while has_more:
            leased = await store.lease_due_runs(limit=_ARCHIVED_RUNS, rows=_ARCHIVED_ROWS)
            has_more, runs = leased.has_more, leased.runs
            while runs:
                count, written = await _write(store, archive, runs)
                done = [run for run in runs[:count] if run.is_written or run.run_id in written]
                runs = runs[count:]
                if deleting is not None:
                    yield Swept(deleted=await deleting, kept=0, has_more=True)
                deleting = asyncio.create_task(_delete(store, done))
        deleted = 0 if deleting is None else await deleting
        yield Swept(deleted=deleted, kept=0, has_more=False)
    finally:
        if deleting is not None:
            await asyncio.gather(deleting, return_exceptions=True)


async def _write(
    store: Store, archive: Archive, runs: Sequence[LeasedRun]
) -> tuple[int, set[UUID]]:
    """Write runs to an object until it is large enough.

    Return how many were dealt with, and the ids of those that the archive has now.
    """
    made, count = ArchiveObject(await store.now()), 0
    parts = _parts(runs)
    reading: deque[asyncio.Task[list[list[str]]]] = deque()
    try:
        for place, part in enumerate(parts):
            for ahead in parts[place + len(reading) : place + _AT_ONCE]:
                reading.append(asyncio.create_task(_read(store, ahead)))
            await asyncio.to_thread(made.add, await reading.popleft())
            count += len(part)
            if made.size >= _OBJECT_BYTES:
                break
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return count, await archive.write(made)


async def _read(store: Store, runs: Sequence[LeasedRun]) -> list[list[str]]:
    """Return the lines of runs that are there as a whole until all is read, and are not written.

    Another sweeper may delete a run meanwhile, if this one is slower than its lease: what was read
    by then is not all of the run.
    """
    lines: dict[UUID, list[str]] = {run.run_id: [] for run in runs if not run.is_written}
    asked, part = list(lines), 0
    while asked:
        exported = await store.export_runs(asked, part=part)
        for run_id, line in exported.lines.items():
            lines[run_id].append(line)
        for run_id in set(asked) - exported.lines.keys():
            del lines[run_id]
        asked, part = exported.unfinished, part + 1
    return list(lines.values())


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
