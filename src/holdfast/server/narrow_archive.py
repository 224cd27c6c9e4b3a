"""What callers that see less are shown of the archive: runs that they may see, and no payloads.

What they change is judged by all that there is: see `NarrowClient`.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from holdfast.client import Client
from holdfast.client.session import Session
from holdfast.payloads import Payloads, with_payloads
from holdfast.retention import Archive, ArchivedRun
from holdfast.server.access import Principal
from holdfast.server.hiding import hide, without_payloads
from holdfast.server.narrow_runs import without_parent
from holdfast.store.port import Store


class NarrowArchive:
    """The archive of a server, as a principal sees it; see `ArchiveNarrowing`."""

    def __init__(self, session: Session, principal: Principal, payloads: Payloads) -> None:
        """`session` sees all of it, and `payloads` is what it reads payloads with."""
        self._session, self._principal, self._payloads = session, principal, payloads

    async def archive(self) -> Archive | None:
        """Return the archive with the runs that are seen; None if runs are not archived."""
        archive, principal = await self._session.archive(), self._principal
        return archive and archive.narrowed(principal.sees) if principal.only else archive

    async def run(self, run: ArchivedRun) -> ArchivedRun:
        """Return an archived run as it is shown. Its lines, which nobody is shown, stay."""
        parent = run.record.parent_run_id
        if parent is not None and not await self._has(parent):
            run = replace(run, record=without_parent(run.record))
        return self._session.opened(run) if self._principal.payloads else hide(run)

    async def _has(self, run_id: UUID) -> bool:
        found = (await self._session.store.get_runs([run_id], payloads=False)).get(run_id)
        if found is not None:
            return self._principal.sees(found.full_name)
        archive = await self.archive()
        return archive is not None and run_id in await archive.find([run_id])

    def store(self, store: Store) -> Store:
        """Return a store of an archived run as it is shown."""
        readable = with_payloads(store, self._payloads)
        return readable if self._principal.payloads else without_payloads(readable)


class NarrowClient(Client):
    """A client over a store that shows less, which does not look past that into the archive.

    It retries no run that another one may do again, even if the caller does not see that one.
    """

    def __init__(
        self, store: Store, principal: Principal, whole: Client, payloads: Payloads
    ) -> None:
        """`whole` sees all, and `payloads` is what it reads payloads with."""
        super().__init__(store=store)
        self._session.whole = whole._session
        self._session.narrowing = NarrowArchive(whole._session, principal, payloads)
