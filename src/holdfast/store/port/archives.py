"""The part of the port for archives: choose ended runs, read all of them, delete them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import ExportedRuns, LeasedRun, LeasedRuns, Restoring


class ArchiveStore(Protocol):
    """Gives out ended runs to be archived, deletes them after that, and takes them back."""

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
