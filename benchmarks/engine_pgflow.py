"""pgflow: its SQL on the same server, a thin client, and a thin worker in its worker's place.

Nothing of pgflow is part of this repository: who measures it says where its SQL is, a file or a
directory (`--pgflow PATH`, or HOLDFAST_BENCH_PGFLOW). In a directory, `pgmq.sql` comes first, then
the other files by name. To get one:

    git clone --depth 1 https://github.com/pgflow-dev/pgflow
    git clone --depth 1 --branch v1.5.1 https://github.com/pgmq/pgmq
    mkdir pgflow-sql
    cp pgflow/pkgs/core/supabase/migrations/*.sql pgmq/pgmq-extension/sql/pgmq.sql pgflow-sql

What the SQL expects of a Supabase server is replaced by schemas that do nothing: broadcasts, which
are a row each there, cost it nothing here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.engine import WorkerSetting
from benchmarks.engines import PGFLOW_SQL
from benchmarks.flow_shapes import CHAIN_STEPS, FLOWS, SIDES

POLL_SECONDS = 0.001
SUPABASE = """
create schema pgmq; create schema realtime; create schema vault; create schema cron;
create schema net;
create function realtime.send(payload jsonb, event text, topic text, private boolean default true)
returns void language sql as '';
create function cron.schedule(job_name text, schedule text, command text)
returns bigint language sql return 1;
create function cron.unschedule(job_name text) returns boolean language sql return true;
create table cron.job_run_details ();
create table vault.decrypted_secrets (name text, decrypted_secret text);
"""


class PgflowEngine:
    """pgflow with one worker process for the flow that is measured."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self._url)
        await self._connection.execute(SUPABASE)
        for file in sql_files(Path(os.environ[PGFLOW_SQL])):
            sql = re.sub(r"(?im)^create extension[^;]*;", "", file.read_text())
            await self._connection.execute(f"set check_function_bodies = off;\n{sql}")
            await self._connection.execute("reset all")
        for flow in FLOWS:
            await self._define(flow)

    async def close(self) -> None:
        await self._connection.close()

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.worker_pgflow", "--database", self._url]
        command += ["--flow", str(setting.flow), f"--at-once={setting.at_once}"]
        return [*command, f"--poll={10 if setting.kind == 'throughput' else 2}"]

    async def start(self, workflow: str, argument: float) -> str:
        (run_id,) = await self.start_many(workflow, [argument])
        return run_id

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        rows = await self._connection.fetch(
            "select (pgflow.start_flow($1, to_jsonb(a))).run_id from unnest($2::int[]) as a",
            workflow,
            arguments,
        )
        return [str(row[0]) for row in rows]

    async def result(self, run_id: str) -> Any:
        while True:
            status, output = await self._connection.fetchrow(
                "select status, output from pgflow.runs where run_id = $1", UUID(run_id)
            )
            if status == "completed":
                return json.loads(output)
            if status != "started":
                raise RuntimeError(f"run {run_id} is {status}")
            await asyncio.sleep(POLL_SECONDS)

    async def run(self, workflow: str, argument: float) -> Any:
        return await self.result(await self.start(workflow, argument))

    async def expect(self, run_id: str) -> Awaitable[Any]:
        return asyncio.create_task(self.result(run_id))

    async def unfinished(self) -> bool:
        found = await self._connection.fetchval(
            "select exists (select from pgflow.runs where status = 'started')"
        )
        return bool(found)

    async def completed(self) -> int:
        return await self._connection.fetchval(
            "select count(*) from pgflow.runs where status = 'completed'"
        )

    async def _define(self, flow: str) -> None:
        await self._connection.execute("select pgflow.create_flow($1)", flow)
        for step, deps, kind in _steps(flow):
            await self._connection.execute(
                "select pgflow.add_step($1, $2, deps_slugs => $3, step_type => $4)",
                flow,
                step,
                deps,
                kind,
            )


def sql_files(path: Path) -> list[Path]:
    """Return the files of pgflow's SQL in the order in which they are applied."""
    if path.is_file():
        return [path]
    return sorted(path.glob("*.sql"), key=lambda file: (file.name != "pgmq.sql", file.name))


def _steps(flow: str) -> list[tuple[str, list[str], str]]:
    """Return the steps of a flow: name, the names of those that it depends on, kind."""
    sides = [f"side{n}" for n in range(SIDES)]
    match flow:
        case "one":
            return [("work", [], "single")]
        case "chain":
            names = [f"work{n}" for n in range(CHAIN_STEPS)]
            return [(name, names[n - 1 : n] if n else [], "single") for n, name in enumerate(names)]
        case "wide":
            return [("numbers", [], "single"), ("work", ["numbers"], "map")]
        case _:
            middle = [(side, ["top"], "single") for side in sides]
            return [("top", [], "single"), *middle, ("bottom", sides, "single")]
