"""Absurd: the public SDK as client; its schema as `absurdctl` carries it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Sequence
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.engine import WorkerSetting

QUEUE = "bench"
POLL_SECONDS = 0.001  # the SDK's own wait doubles a pause of 50 ms: too coarse to measure by
ENDED = "('completed', 'failed', 'cancelled')"


class AbsurdEngine:
    """Absurd with several clients in one worker process, polling every 10 ms each."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> None:
        self._connection = psycopg.connect(self._url, autocommit=True)
        present = self._ask("select to_regnamespace('absurd') is not null")
        if not present:
            self._connection.execute(BUNDLED_SCHEMA_SQL)
            self._connection.execute("select absurd.create_queue(%s)", (QUEUE,))
        self._client = Absurd(self._connection, queue_name=QUEUE)

    async def close(self) -> None:
        self._connection.close()

    def worker_command(self, setting: WorkerSetting) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.worker_absurd", "--database", self._url]
        match setting.kind:
            case "throughput":
                batch = max(1, setting.at_once // 10)
                return [*command, "--clients=10", f"--batch={batch}", "--poll=0.01"]
            case "latency":
                return [*command, "--clients=10", "--batch=10", "--poll=0.01"]
            case "fan-out":
                return [*command, "--clients=0", "--batch=100", "--poll=0.001"]

    async def start(self, workflow: str, argument: float) -> str:
        spawned = self._client.spawn(workflow, {"n": argument}, queue=QUEUE)
        return str(spawned["task_id"])

    async def start_many(self, workflow: str, arguments: Sequence[float]) -> list[str]:
        rows = self._connection.execute(
            "select (absurd.spawn_task(%s, %s, p)).task_id"
            " from jsonb_array_elements(%s::jsonb) as p",
            (QUEUE, workflow, json.dumps([{"n": argument} for argument in arguments])),
        )
        return [str(row[0]) for row in rows]

    async def result(self, run_id: str) -> Any:
        while True:
            snapshot = self._client.fetch_task_result(run_id)
            if snapshot is not None and snapshot.state == "completed":
                return snapshot.result
            if snapshot is not None and snapshot.state in ("failed", "cancelled"):
                raise RuntimeError(f"task {run_id} ended as {snapshot}")
            await asyncio.sleep(POLL_SECONDS)

    async def run(self, workflow: str, argument: float) -> Any:
        return await self.result(await self.start(workflow, argument))

    async def expect(self, run_id: str) -> Awaitable[Any]:
        return self.result(run_id)

    async def inside_latency(self, count: int) -> float | None:
        return None

    async def signal(self, run_id: str) -> None:
        self._client.emit_event(f"go:{run_id}", {})

    async def unfinished(self) -> bool:
        return bool(
            self._ask(f"select exists (select from absurd.t_{QUEUE} where state not in {ENDED})")
        )

    async def completed(self) -> int:
        return self._ask(f"select count(*) from absurd.t_{QUEUE} where state = 'completed'")

    async def at_gate(self) -> int:
        return self._ask(f"select count(*) from absurd.w_{QUEUE}")

    async def add_waiting(self, count: int) -> None:
        # What spawn_task writes, in bulk: a task and its first run, due in a year.
        self._connection.execute(
            f"""with task as (
                insert into absurd.t_{QUEUE} (task_id, task_name, params, state, last_attempt_run)
                select gen_random_uuid(), 'many', '{{"n": 1}}', 'sleeping', gen_random_uuid()
                from generate_series(1, {count})
                returning task_id, last_attempt_run)
            insert into absurd.r_{QUEUE} (run_id, task_id, attempt, state, available_at)
            select last_attempt_run, task_id, 1, 'sleeping', now() + interval '1 year' from task"""
        )
        self._connection.execute(f"analyze absurd.t_{QUEUE}")
        self._connection.execute(f"analyze absurd.r_{QUEUE}")

    async def transactions(self) -> int:
        return self._ask(
            "select xact_commit + xact_rollback from pg_stat_database"
            " where datname = current_database()"
        )

    def _ask(self, query: str) -> int:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])
