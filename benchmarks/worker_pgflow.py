"""A worker of pgflow's flows: what its edge worker does, as a thin program over asyncpg.

It reads messages with `pgmq.read_with_poll`, starts their tasks with `pgflow.start_tasks`, runs
them at once, and calls `pgflow.complete_task` for each that has ended: the calls of the edge
worker, in the same order, for one flow as there. Settings, the edge worker's defaults in brackets:
100 tasks at once (10), messages read up to 100 at a time (10), again as soon as there is room (when
the whole batch has ended), 4 connections for the ends (4 in all), polls every 10 ms, for latency
every 2 ms (100 ms), statements prepared (not prepared). There is no logging and no validation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from string import ascii_lowercase
from typing import Any
from uuid import uuid4

import asyncpg
import uvloop

BATCH = 100
VISIBILITY_SECONDS = 5
POLL_SECONDS = 2

SIGN_ON = (
    "insert into pgflow.workers (worker_id, queue_name, function_name) values ($1, $2, 'bench')"
)
READ = "select msg_id from pgmq.read_with_poll($1, $2, $3, $4, $5)"
START = "select * from pgflow.start_tasks($1, $2, $3)"
COMPLETE = "select pgflow.complete_task($1, $2, $3, $4)"


def work(slug: str, given: Any, flow_input: Any) -> Any:
    """Run the code of a step."""
    if slug == "numbers":
        return list(range(flow_input))
    if slug == "bottom":
        return len(given)
    number = given if isinstance(given, int) else int(slug.strip(ascii_lowercase) or 0)
    return {"step": number, "ok": True}


class Worker:
    """One worker of one flow."""

    def __init__(self, url: str, flow: str, at_once: int, poll_milliseconds: int) -> None:
        self._url, self._flow, self._poll = url, flow, poll_milliseconds
        self._id = uuid4()
        self._room = at_once
        self._freed = asyncio.Event()

    async def serve(self, connections: int) -> None:
        """Work for ever."""
        reader = await asyncpg.connect(self._url)
        await reader.execute(SIGN_ON, self._id, self._flow)
        self._pool = await asyncpg.create_pool(
            self._url, min_size=connections, max_size=connections
        )
        async with asyncio.TaskGroup() as tasks:
            while True:
                if self._room == 0:
                    self._freed.clear()
                    await self._freed.wait()
                size = min(BATCH, self._room)
                messages = await reader.fetch(
                    READ, self._flow, VISIBILITY_SECONDS, size, POLL_SECONDS, self._poll
                )
                if not messages:
                    continue
                numbers = [message["msg_id"] for message in messages]
                started = await reader.fetch(START, self._flow, numbers, self._id)
                self._room -= len(started)
                for task in started:
                    tasks.create_task(self._execute(task))

    async def _execute(self, task: asyncpg.Record) -> None:
        flow_input = None if task["flow_input"] is None else json.loads(task["flow_input"])
        output = work(task["step_slug"], json.loads(task["input"]), flow_input)
        await self._pool.fetchval(
            COMPLETE, task["run_id"], task["step_slug"], task["task_index"], json.dumps(output)
        )
        self._room += 1
        self._freed.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--flow", required=True)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--poll", type=int, default=10, help="milliseconds")
    parser.add_argument("--connections", type=int, default=4)
    options = parser.parse_args()
    worker = Worker(options.database, options.flow, options.at_once, options.poll)
    uvloop.run(worker.serve(options.connections))


if __name__ == "__main__":
    main()
