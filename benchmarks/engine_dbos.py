"""DBOS: a queue with a short polling interval, and its public client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Sequence
from typing import Any

import psycopg
import sqlalchemy
from dbos import DBOSClient, EnqueueOptions, run_dbos_database_migrations

from benchmarks.engine import WorkerSetting

QUEUE = "bench"
POLL_SECONDS = 0.001


class DbosEngine:
    """DBOS with one queue, polled every 10 ms for throughput and every 2 ms for latency."""

    CHAIN = "many"  # the workflow that runs steps one after the other

    def __init__(self, url: str) -> None:
        self._url = url
        self._keyed: set[str] = set()  # workflows whose inputs are keys of limits

    async def open(self) -> None:
        run_dbos_database_migrations(self._url)
        self._connection = psycopg.connect(self._url, autocommit=True)
        self._client = DBOSClient(system_database_url=self._url)
        self._pool = sqlalchemy.create_engine(
            sqlalchemy.make_url(self._url).set(drivername="postgresql+psycopg")
        )

    async def close(self) -> None:
        self._client.destroy()
        self._pool.dispose()
        self._connection.close()

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        poll = 0.01 if setting.kind == "throughput" else 0.002
        keys = ["--one-a-key"] if self._keyed else []
        return [*self._worker(), f"--at-once={setting.at_once}", f"--poll={poll}", *keys]

    async def start(self, workflow: str, argument: float) -> str:
        return self._client.enqueue(self._options(workflow, argument), argument).get_workflow_id()

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        with self._pool.begin() as connection:  # there is no bulk start: one transaction for all
            handles = [
                self._client.enqueue_in_transaction(
                    connection, self._options(workflow, argument), argument
                )
                for argument in arguments
            ]
        return [handle.get_workflow_id() for handle in handles]

    async def result(self, run_id: str) -> Any:
        handle = self._client.retrieve_workflow(run_id)
        return handle.get_result(polling_interval_sec=POLL_SECONDS)

    async def run(self, workflow: str, argument: float) -> Any:
        return await self.result(await self.start(workflow, argument))

    async def expect(self, run_id: str) -> Awaitable[Any]:
        return self.result(run_id)

    async def inside_latency(self, count: int) -> float | None:
        command = [*self._worker(), f"--inside={count}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await process.communicate()
        return float(output)

    async def signal(self, run_id: str) -> None:
        self._client.send(run_id, {}, "go")

    async def cancel_tree(self, run_id: str) -> None:
        self._client.cancel_workflow(run_id, cancel_children=True)

    async def fork(self, run_id: str, steps: int) -> None:
        self._client.fork_workflow(run_id, steps + 1)  # the step to continue with

    async def unfinished(self) -> bool:
        return bool(
            self._ask(
                "select exists (select from dbos.workflow_status"
                " where status in ('ENQUEUED', 'PENDING'))"
            )
        )

    async def completed(self) -> int:
        return self._ask("select count(*) from dbos.workflow_status where status = 'SUCCESS'")

    async def at_gate(self) -> int:
        # recv records its time-out as a sleep before it waits.
        return self._ask(
            "select count(*) from dbos.operation_outputs o join dbos.workflow_status s"
            " using (workflow_uuid) where function_name = 'DBOS.sleep' and status = 'PENDING'"
        )

    async def add_waiting(self, count: int) -> None:
        options = EnqueueOptions(workflow_name="many", queue_name=QUEUE, delay_seconds=365 * 86400)
        run_id = self._client.enqueue(options, 1).get_workflow_id()
        ids = f"(select gen_random_uuid()::text as id from generate_series(1, {count}))"
        self._connection.execute(f"create temporary table ids as {ids}")
        for table in ("workflow_status", "workflow_input"):
            names = self._connection.execute(
                "select string_agg(quote_ident(column_name), ', ') from information_schema.columns"
                " where table_schema = 'dbos' and table_name = %s"
                " and column_name <> 'workflow_uuid' and is_generated = 'NEVER'",
                (table,),
            ).fetchone()
            assert names is not None
            self._connection.execute(
                f"insert into dbos.{table} (workflow_uuid, {names[0]})"
                f" select id, {names[0]} from ids, dbos.{table} where workflow_uuid = '{run_id}'"
            )
            self._connection.execute(f"analyze dbos.{table}")

    async def limit_keys(self, workflow: str) -> None:
        self._keyed.add(workflow)  # the next worker sets the limit on its queue

    async def create_schedules(self, count: int, cron: str, workflow: str) -> None:
        for n in range(count):
            self._client.create_schedule(
                schedule_name=f"tick-{n}",
                workflow_name=workflow,
                schedule=cron,
                cron_timezone="Europe/Berlin",
                queue_name=QUEUE,
            )

    async def lateness(self) -> list[float]:
        # A run of a schedule has the tick's moment in its id.
        rows = self._connection.execute(
            "select created_at / 1e3 - extract(epoch from"
            " regexp_replace(workflow_uuid, '^sched-tick-[0-9]+-', '')::timestamptz)::float8"
            " from dbos.workflow_status where workflow_uuid like 'sched-tick-%'"
        )
        return [row[0] for row in rows]

    async def outputs(self, workflow: str) -> list[float]:
        runs = self._client.list_workflows(name=workflow, status="SUCCESS")
        return [run.output for run in runs]

    async def transactions(self) -> int:
        return self._ask(
            "select xact_commit + xact_rollback from pg_stat_database"
            " where datname = current_database()"
        )

    def _options(self, workflow: str, argument: float) -> EnqueueOptions:
        name = self.CHAIN if workflow == "many" else workflow
        options = EnqueueOptions(workflow_name=name, queue_name=QUEUE)
        if workflow in self._keyed:
            options["queue_partition_key"] = str(argument)
        return options

    def _worker(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.worker_dbos", "--database", self._url]

    def _ask(self, query: str) -> int:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


class DbosAsyncEngine(DbosEngine):
    """DBOS with its chains of steps as asynchronous workflows."""

    CHAIN = "many-async"

    async def inside_latency(self, count: int) -> float | None:
        return None  # measured with the synchronous ones
