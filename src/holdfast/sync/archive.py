"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from collections.abc import Generator
from uuid import UUID

from holdfast.client.archive import Archives
from holdfast.client.naming import RunRef
from holdfast.retention import ArchivedRun, ArchiveEntry
from holdfast.sync.base import SyncGroup
from holdfast.values.durations import Duration


class SyncArchives(SyncGroup[Archives]):
    """The archive of a database: of the client's app, of $HOLDFAST_ARCHIVE, or the one in use.

    Its methods raise ConfigurationError if there is none, and ObjectsUnavailable if it cannot be
    reached.
    """

    def url(self) -> str | None:
        """Return where runs are archived, None for nowhere.

        ```python
        print(client.archive.url() or "runs are not archived")
        ```
        """
        return self._call(self._target.url)

    def list(self, workflow: str | None = None) -> Generator[ArchiveEntry]:
        """Iterate over archived runs, those that were archived last first; those of a workflow.

        The workflow is `app/name`, or a name alone for those of all apps.

        ```python
        for entry in client.archive.list("checkout"):
            print(entry.run_id, entry.status)
        ```
        """
        return self._portal.iterate(self._target.list(workflow))

    def get(self, run: RunRef) -> ArchivedRun:
        """Return an archived run: its row, its log, and the lines that it was written as.

        Raises RunNotFound.

        ```python
        archived = client.archive.get(run_id)
        print(archived.record.status, len(archived.events))
        ```
        """
        return self._call(self._target.get, run)

    def restore(self, run: RunRef, retention: Duration | None = None) -> UUID:
        """Make an archived run an ended run of the database again, and return its id.

        It can be read, forked and retried, and is kept for the `retention` from now on: if that is
        left out, as long as it was kept after its end. Its parent and children are not restored.
        The archive keeps it as well. Raises RunNotFound, and RunExists if there is a run with its
        id.

        ```python
        client.archive.restore(run_id, retention="7d")
        ```
        """
        return self._call(self._target.restore, run, retention)

    def forget(self) -> str | None:
        """Let runs be deleted without being archived; return where they were archived.

        The archive keeps what it has. Workers that still have the option or the variable archive
        again, so take it away from them first.

        ```python
        print(client.archive.forget())
        ```
        """
        return self._call(self._target.forget)
