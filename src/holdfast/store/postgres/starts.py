"""Start runs of workflows over the store's connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Database, Part
from holdfast.store.postgres.packing import Packing
from holdfast.store.postgres.rows import reader
from holdfast.store.postgres.start_values import one_run, rules_of, workflow_runs
from holdfast.types import NewRun, Notice, StartedRun

_ALWAYS_SET: Final[Packing] = ((1, "text"), (2, "json"))

_read_started = reader(StartedRun)


class PostgresStarts(Part):
    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`. A refused value refuses the whole call."""
        tell = self._database.tell_starts
        if len(runs) == 1:
            found = await self._database.rows(
                "start_one", *one_run(runs[0]), tell, runs[0].rules, True
            )
        else:
            arguments = (*workflow_runs(runs), tell, rules_of(runs), True)
            found = await self._database.rows("start_runs", *arguments, packing=_ALWAYS_SET)
        started = [_read_started(row) for row in found]
        untold = [
            run for run, row in zip(runs, found, strict=True) if row["created"] and not row["told"]
        ]
        return started, await work_notices(self._database, untold)


async def work_notices(database: Database, started: Sequence[NewRun]) -> list[Notice]:
    """Return the notices of runs that were started, of workflows; also if code says the queue."""
    queues = dict.fromkeys(run.queue for run in started)
    if None in queues:
        unknown = [run.run_id for run in started if run.queue is None]
        queues |= dict.fromkeys(row[0] for row in await database.rows("queues_of_runs", unknown))
    return [Notice(WORK_TOPIC, queue) for queue in queues if queue is not None]
