"""The part of the port for what is deleted: ended runs, after they are archived, and objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.objects import Objects
from holdfast.store.port.readable import readable
from holdfast.types import (
    BegunDeletions,
    ExportedRuns,
    FailingPut,
    LeasedRun,
    LeasedRuns,
    Restoring,
    SweeperState,
    SweepShare,
    Swept,
    UnneededPayloads,
)


class RetentionStore(Protocol):
    """Deletes ended runs, a batch at a time, and their objects; knows who does so."""

    @readable
    async def begin_deletions(
        self,
        holder: str,
        *,
        interval_seconds: float,
        lease_seconds: float = 60.0,
        archive: str | None = None,
    ) -> BegunDeletions:
        """Begin a pass, unless another process sweeps or did so less than half an interval ago.

        'archive' means that runs are archived before they are deleted, elsewhere than `archive`.
        """
        ...

    @readable
    async def end_deletions(
        self, holder: str, *, deleted: int, has_more: bool, error: str | None = None
    ) -> None:
        """Record what came of a pass."""
        ...

    @readable
    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        """Delete ended runs whose retention is over: at most `limit`, with about `rows` rows.

        A run is kept while a child of it has not ended, and while the run that continues or
        retries it is there. Raises InvalidInput if runs are archived before they are deleted.
        """
        ...

    @readable
    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        """Return what would be done with the first `limit` runs that are due, by workflow."""
        ...

    @readable
    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        """Return who sweeps, and how many runs are due; counts at most `limit` of them."""
        ...

    @readable
    async def lease_due_runs(
        self, *, limit: int = 1000, rows: int = 20_000, lease_seconds: float = 600.0
    ) -> LeasedRuns:
        """Choose runs whose retention is over; no other sweeper is given them meanwhile.

        At most `limit` runs with about `rows` rows. A single run may have more.
        """
        ...

    @readable
    async def export_runs(self, afters: Mapping[UUID, str | None]) -> ExportedRuns:
        """Return the next part of all that runs are, as lines of JSON; the first has the runs.

        `afters` say where the parts begin: None for the beginning, else what was `unfinished`. The
        lines take some 16 MB together, or one value more; a run that this does not come to has no
        line, and is unfinished. A run that is not there as a whole has neither: what was read of
        it before is not all.
        """
        ...

    @readable
    async def delete_archived(
        self, runs: Sequence[LeasedRun], *, rows: int = 20_000
    ) -> tuple[int, list[UUID]]:
        """Delete runs that are in the archive; return how many, and those that are left in part.

        The call is to be repeated with these: a run with more than `rows` rows is deleted in parts.
        Runs that must be kept, or that others hold, stay, and those whose labels have changed.
        """
        ...

    @readable
    async def restore_run(self, lines: Sequence[str], *, retention_seconds: float) -> Restoring:
        """Make an ended run of the lines that `export_runs` returned for it."""
        ...

    @readable
    async def forget_archive(self) -> str | None:
        """Delete runs without archiving them from now on; return where they were archived."""
        ...

    @readable
    def objects_at(self, url: str) -> Objects:
        """Return the objects at a URL. A store in memory has them in memory, whatever the URL.

        Raises ConfigurationError as `open_objects` does.
        """
        ...

    @readable
    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        """Note that runs are about to have objects at a URL; they need not exist yet.

        `users` are parallel to `owners`: the run that will refer to the objects, if it is another.
        Call this before the first object is put, and put and commit within an hour. Returns the
        owners whose objects from before are being deleted: wait a little and call again for these.
        """
        ...

    @readable
    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        """Note that a payload of a run could not be put, and why; None: now it could."""
        ...

    @readable
    async def failing_puts(self, run_id: UUID) -> list[FailingPut]:
        """Return where payloads of a run could not be put in the last two minutes, by URL."""
        ...

    @readable
    async def due_payloads(
        self, *, limit: int = 100, lease_seconds: float = 600.0
    ) -> list[UnneededPayloads]:
        """Return owners whose objects nobody needs, to be deleted within the lease."""
        ...

    @readable
    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        """Forget owners whose objects were deleted."""
        ...
