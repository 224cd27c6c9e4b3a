"""holdfast: `holdfast worker` as it is installed, and its public client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.engine import WorkerSetting
from benchmarks.holdfast_flows import FLOWS
from holdfast import App, Client, Fairness, Limit, RunHandle
from holdfast.errors import UnknownFlow

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
APP = "benchmarks.holdfast_app:app"
FLOWS_APP = "benchmarks.holdfast_flows:app"
RUN_TABLES = ("runs", "events", "tasks")


class HoldfastEngine:
    """holdfast with its defaults: on one database, or on several as one engine."""

    def __init__(self, *urls: str) -> None:
        self._urls, self._url = urls, " ".join(urls)
        self._handles: dict[str, RunHandle[Any]] = {}

    async def open(self) -> None:
        await self._prepare("migrate")
        if len(self._urls) > 1:
            await self._prepare("shards", "add")
        self._client = Client(database=self._url)
        await self._client.__aenter__()
        settings = {"search_path": "holdfast"}
        self._connections = [
            await asyncpg.connect(url, server_settings=settings) for url in self._urls
        ]
        self._connection = self._connections[0]

    async def _prepare(self, *command: str) -> None:
        called = [HOLDFAST, *command, "--database", self._url]
        process = await asyncio.create_subprocess_exec(*called, stdout=subprocess.DEVNULL)
        if await process.wait() != 0:
            raise RuntimeError(f"holdfast {' '.join(command)} failed")

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
        await self._client.__aexit__(None, None, None)

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        app = APP if setting.flow is None else FLOWS_APP
        command = [HOLDFAST, "worker", app, "--database", self._url]
        command += ["--concurrency", str(setting.at_once)]
        return command if setting.queue is None else [*command, "--queue", setting.queue]

    async def start(self, workflow: str, argument: float) -> str:
        return self._keep(await self._client.start(_startable(workflow), argument))

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        while True:
            try:
                handles = await self._client.start_many(_startable(workflow), arguments)
            except UnknownFlow:  # the worker brings it, and has only just been started
                await asyncio.sleep(0.05)
            else:
                return [self._keep(handle) for handle in handles]

    async def result(self, run_id: str) -> Any:
        return await self._handles[run_id].result()

    async def run(self, workflow: str, argument: float) -> Any:
        return await self._client.run(_startable(workflow), argument)

    async def expect(self, run_id: str) -> Awaitable[Any]:
        return asyncio.create_task(self.result(run_id))

    async def inside_latency(self, count: int) -> float | None:
        return None

    async def signal(self, run_id: str) -> None:
        await self._handles[run_id].signal("go", {})

    async def cancel_tree(self, run_id: str) -> None:
        await self._client.runs.cancel(UUID(run_id))

    async def fork(self, run_id: str, steps: int) -> None:
        await self._client.runs.fork(UUID(run_id), index=1 + steps)  # after the event of its start

    async def unfinished(self) -> bool:
        return bool(
            await self._sum("select exists (select from runs where status = 'running')::int")
        )

    async def completed(self) -> int:
        return await self._sum(
            "select count(*) from runs where status = 'completed' and name <> 'bench/old'"
        )

    async def at_gate(self) -> int:
        return await self._ask(
            "select count(*) from tasks where worker is null and 'go' = any (awaiting)"
        )

    async def add_waiting(self, count: int) -> None:
        """Copy one delayed run."""
        await self._copy(await self._client.start("bench/many", 1, delay="365d"), count)

    async def limit_keys(self, workflow: str) -> None:
        await self._client.limits.set(Limit(1, key="input"), workflow=f"bench/{workflow}")

    async def share_fairly(self) -> None:
        await self._client.limits.set(Fairness("input"), queue="default")

    async def add_blocked(self, count: int) -> None:
        """Copy one run that waits for its limit."""
        await self._copy(await self._client.start("bench/keyed", 0), count)

    async def _copy(self, run: RunHandle[Any], count: int) -> None:
        """Copy a run, table by table, under new ids."""
        run_id = self._keep(run)
        await self._ask(
            "create temporary table ids as"
            f" select new_run_id() as id from generate_series(1, {count})"
        )
        for table in RUN_TABLES:
            names = await self._ask(
                "select string_agg(quote_ident(column_name), ', ') from information_schema.columns"
                f" where table_schema = 'holdfast' and table_name = '{table}'"
                " and column_name <> 'run_id'"
            )
            await self._ask(
                f"insert into {table} (run_id, {names})"
                f" select id, {names} from ids, {table} where run_id = '{run_id}'"
            )
            await self._ask(f"analyze {table}")

    async def add_ended(self, count: int, steps: int) -> None:
        """Write ended runs of so many steps whose retention is over."""
        await self._ask(
            "create temporary table old as select new_run_id() as id,"
            f" now() - interval '2 days' as at from generate_series(1, {count})"
        )
        await self._ask(
            "insert into runs (run_id, name, version, queue, priority, status, input, output,"
            " retention, created_at, started_at, completed_at, delete_after) select id,"
            " 'bench/old', 1, 'default', 2, 'completed', '1', '[1]', interval '1 day', at, at, at,"
            " at + interval '1 day' from old"
        )
        await self._ask(
            "insert into events (run_id, idx, event_type, key, details, at) select id, n,"
            f" case n when 0 then 'WorkflowStarted' when {steps + 1} then 'WorkflowCompleted'"
            " else 'StepCompleted' end,"
            f" case when n between 1 and {steps} then 'step#' || n end,"
            f" case when n between 1 and {steps} then"
            " json_build_object('name', 'step', 'args', 0, 'result', 1,"
            " 'started_at', 0) end,"
            f" at from old, generate_series(0, {steps + 1}) as n"
        )
        for statement in ("drop table old", "analyze runs", "analyze events"):
            await self._ask(statement)

    async def sweep(self, archive: str | None = None) -> None:
        """Delete what is due; to a place for objects first, if one is given."""
        if archive is None:
            await self._client.retention.sweep()
            return
        async with Client(self._url, app=App("bench", archive=archive)) as client:
            await client.retention.sweep()

    async def stored_runs(self) -> int:
        """Count the runs that are in the database."""
        return await self._sum("select count(*) from runs")

    async def create_schedules(self, count: int, cron: str, workflow: str) -> None:
        await self._connection.fetch(
            "select create_schedule('bench/tick-' || n, $2, $3, p_timezone => 'Europe/Berlin',"
            " p_input => '0', p_overlap => 'allow') from generate_series(1, $1) as n",
            count,
            f"bench/{workflow}",
            cron,
        )

    async def subscribe(self, pattern: str, workflows: Sequence[str]) -> None:
        for workflow in workflows:
            await self._client.topics.subscribe(pattern, workflow=f"bench/{workflow}")

    async def add_listening(self, count: int) -> None:
        await self._ask(
            "with waiting as (select n, new_run_id() as run_id from"
            f" generate_series(1, {count}) as n), runs as (insert into runs (run_id, name, version,"
            " queue, priority, input, created_at) select run_id, 'bench/waits', 1, 'default', 2,"
            " 'null', now() from waiting), logs as (insert into events (run_id, idx, event_type,"
            " at) select run_id, 0, 'WorkflowStarted', now() from waiting), turns as (insert into"
            " tasks (run_id, queue, handler, priority, visible_at, awaiting) select run_id,"
            " 'default', 'bench/waits@1', 2, 'infinity', array['event:bench.*.paid?' || n] from"
            " waiting) insert into subscriptions (pattern, path, match, match_digest, match_key,"
            " kind, run_id, signal, created_at) select 'bench.*.paid', 'bench.*.paid.',"
            " jsonb_build_object('order', n), n::text,"
            " _match_key(jsonb_build_object('order', n)), 'run', run_id,"
            " 'event:bench.*.paid?' || n, now() from waiting"
        )
        await self._ask("analyze subscriptions")

    async def publish(self, topic: str, payload: object) -> None:
        await self._client.topics.publish(topic, payload)

    async def lateness(self) -> list[float]:
        rows = await self._connection.fetch(
            "select extract(epoch from handled_at - tick_at)::float8 from schedule_buckets"
            " where outcome = 'started'"
        )
        return [row[0] for row in rows]

    async def outputs(self, workflow: str) -> list[float]:
        rows = await self._connection.fetch(
            "select (output #>> '{}')::float8 from runs where name = $1 and output is not null",
            f"bench/{workflow}",
        )
        return [row[0] for row in rows]

    async def transactions(self) -> int:
        return await self._sum(
            "select xact_commit + xact_rollback from pg_stat_database"
            " where datname = current_database()"
        )

    def _keep(self, handle: RunHandle[Any]) -> str:
        run_id = str(handle.run_id)
        self._handles[run_id] = handle
        return run_id

    async def _sum(self, query: str) -> int:
        """Return the sum of what all databases answer."""
        return sum([int(await each.fetchval(query)) for each in self._connections])

    async def _ask(self, query: str) -> Any:
        return await self._connection.fetchval(query)


def _startable(workflow: str) -> Any:
    """Return a flow, which is started by its definition, or the name of a workflow."""
    return FLOWS.get(workflow, f"bench/{workflow}")
