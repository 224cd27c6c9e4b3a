"""Forks and retries: new runs with copies of other runs' logs."""

from __future__ import annotations

from holdfast.store.postgres.database import Part, join_results, read_notices
from holdfast.types import Fork, Forking, Notice


class PostgresForks(Part):
    """Forks and retries runs."""

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log; see `ForkStore.fork_run`."""
        row = await self._database.row(
            "fork_run",
            fork.run_id,
            fork.new_run_id,
            fork.until,
            fork.retry,
            fork.input,
            join_results(fork.results),
            fork.version,
        )
        return row["outcome"], read_notices(row["notices"])
