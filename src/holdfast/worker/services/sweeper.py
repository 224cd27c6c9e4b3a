"""Deleting ended runs whose retention is over."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.errors import HoldfastError, ObjectsUnavailable
from holdfast.retention import Archive
from holdfast.retention.deletion import sweep_batches
from holdfast.values.loggers import get_logger
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.maintenance")

_BATCHES: Final = 200  # in a pass; the next begins a moment later
_REST: Final = 2.0  # after a batch, as a multiple of the time that it took: runs come first


class Sweeper(Service):
    """Delete ended runs, in batches with pauses, so that runs are not held up.

    The workers of a database take turns: one of them sweeps, and the others leave it to that one
    until the next interval.
    """

    def __init__(
        self, context: ServiceContext, archive: Archive | None, interval_seconds: float
    ) -> None:
        """With an `archive`, runs are written there before they are deleted."""
        super().__init__(context._replace(interval_seconds=interval_seconds))
        self._archive, self._observing = archive, context.observing
        self._warned = False

    async def run_once(self) -> None:
        """Delete what is due, up to a limit; continue soon if there is more."""
        archive = None if self._archive is None else self._archive.url
        begun = await self._store.begin_deletions(
            self._worker_id, interval_seconds=self._interval, archive=archive
        )
        if begun == "archive" and not self._warned:
            self._warned = True
            logger.warning(
                "ended runs of this database are archived in %s, and this worker has %s: it "
                "deletes none",
                (await self._store.get_sweeper(limit=0)).archive,
                "no archive" if archive is None else f"the archive {archive}",
            )
        if begun != "begun":
            return
        deleted, has_more, error = 0, True, None
        try:
            batches, began = 0, _local_time()
            async for swept in sweep_batches(self._store, self._archive):
                batches, deleted, has_more = batches + 1, deleted + swept.deleted, swept.has_more
                self._observing.swept(swept.deleted)
                if batches == _BATCHES:
                    break
                await asyncio.sleep(_REST * (_local_time() - began) if has_more else 0)
                began = _local_time()
        except ObjectsUnavailable as failure:
            error = str(failure)
            logger.warning("runs are not deleted, because they cannot be archived: %s", failure)
        except HoldfastError as failure:
            error = str(failure)
            raise
        finally:
            await self._store.end_deletions(
                self._worker_id, deleted=deleted, has_more=has_more and error is None, error=error
            )
        if deleted:
            logger.info("deleted %d run(s) whose retention is over", deleted)
        if has_more and error is None:
            self.due_at(self._clock.now())


def _local_time() -> float:
    return asyncio.get_running_loop().time()
