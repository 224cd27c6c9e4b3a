"""Forks and retries: new runs with copies of other runs' logs."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import join_results
from holdfast.types import Fork, Forking, Notice, RetryPlan


class PostgresForks(Part):
    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        row = await self._database.row(
            "fork_run",
            fork.run_id,
            fork.new_run_id,
            fork.until,
            fork.retry,
            fork.input,
            join_results(fork.results),
            fork.version,
            fork.failed_steps,
        )
        return row["outcome"], read_notices(row["notices"])

    async def retry_plan(self, run_id: UUID, *, failed_steps: bool = False) -> RetryPlan:
        keys: dict[str, list[str]] = {"kept": [], "failed": [], "after": [], "cancel": []}
        for row in await self._database.rows("retry_plan", run_id, failed_steps):
            keys[row["fate"]].append(row["key"])
        return RetryPlan(
            kept=tuple(keys["kept"]),
            failed=tuple(keys["failed"]),
            after=tuple(keys["after"]),
            cancel=bool(keys["cancel"]),
        )
