"""The worker of the limit: one event a run and commit, two commits under way at a time.

An event is durable before the next one of its run is written, as in any engine. The runs are in two
halves with a connection each, so that the server has work while this process prepares the next.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from uuid import UUID

import asyncpg
import uvloop

POLL_SECONDS = 0.005
HALVES = 2
READ_AT_ONCE = 1000

READ = (
    "select run_id, steps, number from runs where status = 'running' and number > $1"
    " order by number limit $2"
)
INSERT = """
    insert into events (run_id, idx, event_type, key, details, at)
    select run_id, idx, event_type, key, details::json, now()
    from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[])
        as event (run_id, idx, event_type, key, details)
"""
INSERT_AND_END = f"""
    with inserted as ({INSERT})
    update runs set status = 'completed' where run_id = any ($6::uuid[])
"""


class Run:
    """One run, and the index of the event that it writes next."""

    __slots__ = ("idx", "run_id", "steps")

    def __init__(self, run_id: UUID, steps: int) -> None:
        self.run_id, self.steps, self.idx = run_id, steps, 1

    @property
    def at_end(self) -> bool:
        return self.idx > self.steps


class Half:
    """Half of the runs under way, and the connection that writes for them."""

    def __init__(self, connection: asyncpg.Connection, room: int) -> None:
        self._connection, self._room = connection, room
        self._runs: list[Run] = []

    async def write(self, waiting: deque[Run]) -> bool:
        """Commit the next event of each run; return False if there is none."""
        while waiting and len(self._runs) < self._room:
            self._runs.append(waiting.popleft())
        runs = sorted(self._runs, key=lambda run: run.run_id.bytes)
        if not runs:
            return False
        ends = [run.run_id for run in runs if run.at_end]
        await self._connection.execute(
            INSERT_AND_END if ends else INSERT,
            [run.run_id for run in runs],
            [run.idx for run in runs],
            ["WorkflowCompleted" if run.at_end else "StepCompleted" for run in runs],
            [None if run.at_end else f"work#{run.idx}" for run in runs],
            [f'{{"result":{{"step":{run.idx},"ok":true}}}}' for run in runs],
            *([ends] if ends else []),
        )
        self._runs = [run for run in runs if not run.at_end]
        for run in self._runs:
            run.idx += 1
        return True


async def serve(url: str, at_once: int) -> None:
    """Write the events of all runs that appear, for ever."""
    reader = await asyncpg.connect(url)
    room = max(1, at_once // HALVES)
    halves = [Half(await asyncpg.connect(url), room) for _ in range(HALVES)]
    waiting: deque[Run] = deque()

    async def keep_writing(half: Half) -> None:
        while True:
            if not await half.write(waiting):
                await asyncio.sleep(POLL_SECONDS)

    async def keep_reading() -> None:
        last = 0
        while True:
            rows = await reader.fetch(READ, last, READ_AT_ONCE)
            for run_id, steps, number in rows:
                waiting.append(Run(run_id, steps))
                last = number
            if not rows:
                await asyncio.sleep(POLL_SECONDS)

    await asyncio.gather(keep_reading(), *(keep_writing(half) for half in halves))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--at-once", type=int, default=100)
    options = parser.parse_args()
    uvloop.run(serve(options.database, options.at_once))


if __name__ == "__main__":
    main()
