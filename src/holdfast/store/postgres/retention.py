"""What is deleted: ended runs, after they are archived, and objects of large payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast
from uuid import UUID

from holdfast.objects import Objects, open_objects
from holdfast.store.postgres.database import Part, columns
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

_PATIENCE: Final = 3  # these calls read and write more than others


class PostgresRetention(Part):
    async def begin_deletions(
        self,
        holder: str,
        *,
        interval_seconds: float,
        lease_seconds: float = 60.0,
        archive: str | None = None,
    ) -> BegunDeletions:
        begun: BegunDeletions = await self._database.value(
            "begin_deletions", holder, interval_seconds, lease_seconds, archive
        )
        return begun

    async def end_deletions(
        self, holder: str, *, deleted: int, has_more: bool, error: str | None = None
    ) -> None:
        await self._database.rows("end_deletions", holder, deleted, has_more, error)

    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        [row] = await self._database.rows("sweep_runs", limit, rows, after, patience=_PATIENCE)
        return Swept(**dict(row))

    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        found = await self._database.rows("preview_sweep", limit, patience=_PATIENCE)
        return [SweepShare(**dict(row)) for row in found]

    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        return SweeperState(**dict(await self._database.row("get_sweeper", limit)))

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

    def objects_at(self, url: str) -> Objects:
        return open_objects(url)

    async def own_payloads(
        self, url: str, owners: Sequence[UUID], users: Sequence[UUID | None]
    ) -> list[UUID]:
        return list(await self._database.value("own_payloads", url, list(owners), list(users)))

    async def note_put(self, url: str, owner: UUID, error: str | None) -> None:
        await self._database.rows("note_put", url, owner, error)

    async def failing_puts(self, run_id: UUID) -> list[FailingPut]:
        rows = await self._database.rows("failing_puts", run_id)
        return [FailingPut(row["url"], row["failed_at"], row["error"]) for row in rows]

    async def due_payloads(
        self, *, limit: int = 100, lease_seconds: float = 600.0
    ) -> list[UnneededPayloads]:
        found = await self._database.rows("due_payloads", limit, lease_seconds)
        return [UnneededPayloads(row["owner"], row["url"]) for row in found]

    async def forget_payloads(self, deleted: Sequence[UnneededPayloads]) -> None:
        await self._database.rows("forget_payloads", *columns(deleted, "owner", "url"))
