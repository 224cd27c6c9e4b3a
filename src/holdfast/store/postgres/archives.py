"""Archives: choose ended runs, read all of them, delete them; take them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast
from uuid import UUID

from holdfast.store.postgres.database import Part, columns
from holdfast.types import ExportedRuns, LeasedRun, LeasedRuns, Restoring

_PATIENCE: Final = 3  # these calls read and write more than others


class PostgresArchives(Part):
    async def lease_due_runs(
        self, *, limit: int = 1000, rows: int = 20_000, lease_seconds: float = 600.0
    ) -> LeasedRuns:
        found = await self._database.rows(
            "lease_due_runs", limit, rows, lease_seconds, patience=_PATIENCE
        )
        runs = [
            LeasedRun(row["run_id"], row["completed_at"], row["row_count"], row["is_written"])
            for row in found
            if row["run_id"] is not None
        ]
        return LeasedRuns(runs, found[0]["has_more"])

    async def export_runs(self, afters: Mapping[UUID, str | None]) -> ExportedRuns:
        found = await self._database.rows(
            "export_runs", list(afters), list(afters.values()), patience=_PATIENCE
        )
        return ExportedRuns(
            {row["run_id"]: row["line"] for row in found if row["line"] is not None},
            {
                row["run_id"]: row["after"]
                for row in found
                if row["after"] is not None or row["line"] is None
            },
            {row["run_id"]: row["labels"] for row in found if row["labels"] is not None},
        )

    async def delete_archived(
        self, runs: Sequence[LeasedRun], *, rows: int = 20_000
    ) -> tuple[int, list[UUID]]:
        [row] = await self._database.rows(
            "delete_archived",
            *columns(runs, "run_id", "completed_at"),
            rows,
            [run.labels for run in runs],
            patience=_PATIENCE,
        )
        return row["deleted"], row["remaining"]

    async def restore_run(self, lines: Sequence[str], *, retention_seconds: float) -> Restoring:
        [row] = await self._database.rows(
            "restore_run", lines, retention_seconds, patience=_PATIENCE
        )
        return cast("Restoring", row[0])

    async def forget_archive(self) -> str | None:
        archive: str | None = await self._database.value("forget_archive")
        return archive
