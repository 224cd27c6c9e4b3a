"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from collections.abc import Generator
from uuid import UUID

from holdfast.client.archive import Archives
from holdfast.client.naming import RunRef
from holdfast.retention import ArchivedRun, ArchiveEntry
from holdfast.sync.base import SyncGroup
from holdfast.values.durations import Duration


class SyncArchives(SyncGroup[Archives], of=Archives):
    """The archive of a database: of the client's app, of $HOLDFAST_ARCHIVE, or the one in
    use.
    """

    def url(self) -> str | None:
        """Return where runs are archived, None for nowhere."""
        return self._call(self._target.url)

    def list(self, workflow: str | None = None) -> Generator[ArchiveEntry]:
        """Iterate over archived runs, those that were archived last first; those of a workflow."""
        return self._portal.iterate(self._target.list(workflow))

    def get(self, run: RunRef) -> ArchivedRun:
        """Return an archived run: its row, its log, and the lines that it was written as."""
        return self._call(self._target.get, run)

    def restore(self, run: RunRef, retention: Duration | None = None) -> UUID:
        """Make an archived run an ended run of the database again, and return its id."""
        return self._call(self._target.restore, run, retention)

    def forget(self) -> str | None:
        """Let runs be deleted without being archived; return where they were archived."""
        return self._call(self._target.forget)
