"""The limit: what the server could do if an engine cost nothing.

No engine stands behind it. A worker writes as many events a run as holdfast does, in group commits
over bare asyncpg, and runs no user code; holdfast's share of its figures is what the engine leaves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from uuid import UUID

import asyncpg

from benchmarks.engine import WorkerSetting

SCHEMA = """
create table runs (
    run_id uuid primary key,
    steps int not null,
    status text not null default 'running',
    number bigint generated always as identity
);
create index runs_by_number on runs (number) where status = 'running';
create table events (
    run_id uuid not null,
    idx int not null,
    event_type text not null,
    key text,
    details json,
    at timestamptz not null,
    primary key (run_id, idx)
);
"""


class LimitEngine:
    """Two tables without an engine: only what the throughput workloads ask for."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self._url)
        await self._connection.execute(SCHEMA)

    async def close(self) -> None:
        await self._connection.close()

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.worker_limit", "--database", self._url]
        return [*command, "--at-once", str(setting.at_once)]

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        run_ids = sorted(UUID(bytes=os.urandom(16)) for _ in arguments)
        await self._connection.execute(
            "with run as ("
            " insert into runs (run_id, steps) select * from unnest($1::uuid[], $2::int[])"
            " returning run_id)"
            " insert into events select run_id, 0, 'WorkflowStarted', null, null, now() from run",
            run_ids,
            [int(steps) for steps in arguments],
        )
        return [str(run_id) for run_id in run_ids]

    async def unfinished(self) -> bool:
        found = await self._connection.fetchval(
            "select exists (select from runs where status = 'running')"
        )
        return bool(found)

    async def completed(self) -> int:
        return await self._connection.fetchval(
            "select count(*) from runs where status = 'completed'"
        )
