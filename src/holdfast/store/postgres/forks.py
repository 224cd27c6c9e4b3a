"""Forks and retries: new runs with copies of other runs' logs."""

from __future__ import annotations

import msgspec

from holdfast.store.postgres.database import Part, read_notices
from holdfast.types import Fork, Forking, Notice


class PostgresForks(Part):
    """Forks and retries runs."""

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log; see `ForkStore.fork_run`."""
        results = {key: msgspec.Raw(text.encode()) for key, text in fork.results.items()}
        row = await self._database.row(
            "fork_run",
            fork.run_id,
            fork.new_run_id,
            fork.until,
            fork.retry,
            fork.input,
            msgspec.json.encode(results).decode() if results else None,
            fork.version,
        )
        return row["outcome"], read_notices(row["notices"])
