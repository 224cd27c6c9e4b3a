"""`client.archive`: find, read and restore runs that were archived before they were deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.client.naming import RunRef
from holdfast.client.session import Group
from holdfast.errors import ConfigurationError, RunExists, RunNotFound
from holdfast.types import RunRecord
from holdfast.values.durations import Duration
from holdfast.values.retention import DEFAULT_RETENTION_SECONDS, kept_seconds

if TYPE_CHECKING:
    from holdfast.retention import Archive, ArchivedRun, ArchiveEntry


class Archives(Group):
    """The archive of a database: of the client's app, of $HOLDFAST_ARCHIVE, or the one in use.

    Its methods raise ConfigurationError if there is none, and ObjectsUnavailable if it cannot be
    reached.
    """

    async def url(self) -> str | None:
        """Return where runs are archived, None for nowhere.

        ```python
        print(await client.archive.url() or "runs are not archived")
        ```
        """
        archive = await self._session.archive()
        return None if archive is None else archive.url

    async def list(self, workflow: str | None = None) -> AsyncGenerator[ArchiveEntry]:
        """Iterate over archived runs, those that were archived last first; those of a workflow.

        The workflow is `app/name`, or a name alone for those of all apps.

        ```python
        async for entry in client.archive.list("checkout"):
            print(entry.run_id, entry.status)
        ```
        """
        async for entry in (await self._archive()).entries(workflow):
            yield entry

    async def get(self, run: RunRef) -> ArchivedRun:
        """Return an archived run: its row, its log, and the lines that it was written as.

        Raises RunNotFound.

        ```python
        archived = await client.archive.get(run_id)
        print(archived.record.status, len(archived.events))
        ```
        """
        run_id = await self._session.id_of(run)
        archive = await self._archive()
        found = await self._session.archived(run_id)
        if found is None and self._session.narrowing is not None:
            raise RunNotFound(run_id)
        if found is None:
            kept = run_id in await self._session.store.get_runs([run_id])
            where = "; the database has it" if kept else ", nor has the database"
            raise RunNotFound(run_id, f"the archive {archive.url} has no run {run_id}{where}")
        return found

    async def restore(self, run: RunRef, retention: Duration | None = None) -> UUID:
        """Make an archived run an ended run of the database again, and return its id.

        It can be read, forked and retried, and is kept for the `retention` from now on: if that is
        left out, as long as it was kept after its end. Its parent and children are not restored.
        The archive keeps it as well. Raises RunNotFound, and RunExists if there is a run with its
        id.

        ```python
        await client.archive.restore(run_id, retention="7d")
        ```
        """
        archived = await self.get(run)
        default = archived.retention_seconds
        kept = kept_seconds(retention, DEFAULT_RETENTION_SECONDS if default is None else default)
        store, run_id = self._session.store, archived.record.run_id
        if await store.restore_run(archived.lines, retention_seconds=kept) == "exists":
            raise RunExists(run_id, await self._why_not_restored(archived.record))
        return run_id

    async def _why_not_restored(self, archived: RunRecord) -> str:
        run_id = archived.run_id
        kept = (await self._session.store.get_runs([run_id], payloads=False)).get(run_id)
        if kept is None or kept.completed_at == archived.completed_at:
            return f"run {run_id} is in the database: it need not be restored"
        return (
            f"run {run_id} cannot be restored: its key was used again, so the database has another"
            " run with its id"
        )

    async def forget(self) -> str | None:
        """Let runs be deleted without being archived; return where they were archived.

        The archive keeps what it has. Workers that still have the option or the variable archive
        again, so take it away from them first.

        ```python
        print(await client.archive.forget())
        ```
        """
        return await self._session.store.forget_archive()

    async def _archive(self) -> Archive:
        archive = await self._session.archive()
        if archive is None:
            raise ConfigurationError(
                "runs of this database are not archived: set HOLDFAST_ARCHIVE, or App(archive=…)"
            )
        return archive
