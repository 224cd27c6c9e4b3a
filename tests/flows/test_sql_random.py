"""Random flows under sessions that race: they claim, end, fail, lose leases and stop runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
from tests.graphs import Ended, Graph, faults

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

RUNS = 60
SESSIONS = 5
LEASES = [0.03, 0.3, 5.0]
CONTROLS = ["cancel_runs", "terminate_runs", "pause_runs", "resume_runs"]


@dataclass
class Scene:
    """The flows and runs of a test, and what became of calls."""

    graphs: dict[str, Graph]
    runs: dict[UUID, tuple[str, Any]] = field(default_factory=dict[UUID, tuple[str, Any]])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    over: bool = False

    @property
    def handlers(self) -> list[str]:
        return [f"{slug}@1" for slug in self.graphs]


async def define(connection: Connection, slug: str, graph: Graph) -> None:
    await connection.fetch("select holdfast.create_flow($1, 3, 0)", slug)
    for node in graph.nodes.values():
        await connection.fetch(
            "select holdfast.add_step($1, $2, $3, max_attempts => $4, step_type => $5,"
            " required_input_pattern => $6, forbidden_input_pattern => $7, when_unmet => $8,"
            " when_exhausted => $9)",
            slug,
            node.slug,
            list(node.deps),
            node.attempts,
            node.kind,
            None if node.required is None else json.dumps(node.required),
            None if node.forbidden is None else json.dumps(node.forbidden),
            node.unmet,
            node.exhausted,
        )


class Session:
    """A worker with a connection of its own, which at times forgets what it holds."""

    def __init__(self, scene: Scene, connection: Connection, number: int, chance: Random) -> None:
        self.scene, self.connection, self.chance = scene, connection, chance
        self.name = f"w{number}"
        self.held: list[tuple[UUID, str, str, int, Any]] = []

    async def work(self) -> None:
        while not self.scene.over:
            await self.beat()
            if self.chance.random() < 0.04:
                await self.control()
            elif len(self.held) < 30 and await self.claim() == 0 and not self.held:
                await asyncio.sleep(0.01)
            else:
                await self.end()

    async def beat(self) -> None:
        await self.connection.execute(
            "insert into holdfast.workers (worker_id, hostname, pid, queues, handlers, concurrency,"
            " holdfast_version, started_at, heard_at, heard_since) values ($1, 'h', 1, '{default}',"
            " $2, 9, '1', now(), now(), now() - interval '1 day')"
            " on conflict (worker_id) do update set heard_at = now()",
            self.name,
            self.scene.handlers,
        )

    async def control(self) -> None:
        function = self.chance.choice(CONTROLS)
        run_id = self.chance.choice(list(self.scene.runs))
        await self.connection.fetch(f"select * from holdfast.{function}(array[$1::uuid])", run_id)
        if function == "pause_runs":
            await self.connection.fetch(
                "select * from holdfast.resume_runs(array[$1::uuid])", run_id
            )

    async def claim(self) -> int:
        rows = await self.connection.fetch(
            "select * from holdfast.claim_tasks($1, '{default}', $2, $3, $4, 0.01, 0.1, 99)",
            self.name,
            self.scene.handlers,
            self.chance.choice([1, 5, 20]),
            self.chance.choice(LEASES),
        )
        tasks = [row for row in rows if row["run_id"]]
        self.held += [
            (t["run_id"], t["key"], t["handler"], t["lease_no"], json.loads(t["payload"]))
            for t in tasks
        ]
        for poisoned in [row["poisoned"] for row in rows if row["poisoned"]]:
            await self.connection.fetch("select holdfast.fail_poisoned($1, 99)", poisoned)
        return len(tasks)

    async def end(self) -> None:
        self.chance.shuffle(self.held)
        size = self.chance.choice([1, 3, 10, 30])
        batch, self.held = self.held[:size], self.held[size:]
        if not batch or self.chance.random() < 0.03:
            return  # a worker that never reports
        ends = [self.result(*task) for task in batch]
        rows = await self.connection.fetch(
            "select * from holdfast.end_step_tasks($1, $2, $3, $4, $5, $6, null, $7, '{default}',"
            " $8, $9)",
            self.name,
            [task[0] for task in batch],
            [task[1] for task in batch],
            [task[3] for task in batch],
            [output for output, _ in ends],
            [error for _, error in ends],
            self.chance.choice([0, len(batch)]),
            self.scene.handlers,
            self.chance.choice(LEASES),
        )
        self.scene.outcomes.update(rows[0]["outcomes"])
        self.held += [
            (t["run_id"], t["key"], t["handler"], t["lease_no"], json.loads(t["input"]))
            for t in rows[1:]
        ]
        self.scene.outcomes["handed"] += len(rows) - 1

    def result(
        self, _run: UUID, key: str, handler: str, _lease: int, given: object
    ) -> tuple[str | None, str | None]:
        if self.chance.random() < 0.12:
            return None, '{"kind": "Bad", "message": "no luck"}'
        graph = self.scene.graphs[handler.partition("@")[0]]
        return json.dumps(graph.output(key.partition(":")[0], given)), None


async def ended(connection: Connection, run_id: UUID) -> Ended:
    run = await connection.fetchrow("select * from holdfast.runs where run_id = $1", run_id)
    assert run is not None
    steps = await connection.fetch("select * from holdfast.flow_steps(array[$1::uuid])", run_id)
    entries = await connection.fetch(
        "select idx, event_type, key from holdfast.events where run_id = $1 order by idx", run_id
    )
    assert [entry["idx"] for entry in entries] == list(range(len(entries)))
    return Ended(
        run["status"],
        json.loads(run["output"] or "null"),
        {s["step_slug"]: dict(s) | {"output": json.loads(s["output"] or "null")} for s in steps},
        [(entry["event_type"], entry["key"]) for entry in entries],
    )


async def start(connection: Connection, scene: Scene, chance: Random) -> None:
    for number in range(RUNS):
        slug = chance.choice(list(scene.graphs))
        size = chance.choice([0, 1, 4, 30, 100])
        given: object = {"n": number}
        if scene.graphs[slug].maps_the_input:
            given = [chance.randrange(9) for _ in range(size)]
        run_id = await connection.fetchval(
            "select run_id from holdfast.start_flow($1, $2)", slug, json.dumps(given)
        )
        scene.runs[run_id] = (slug, given)


async def until_all_ended(connection: Connection) -> None:
    while await connection.fetchval("select count(*) from holdfast.runs where status = 'running'"):
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_run_ends_as_its_graph_says(database_url: str, seed: int) -> None:
    chance = Random(seed)
    scene = Scene({f"g{number}": Graph(chance) for number in range(8)})
    connections = [await asyncpg.connect(database_url) for _ in range(SESSIONS + 1)]
    observer, *others = connections
    try:
        for slug, graph in scene.graphs.items():
            await define(observer, slug, graph)
        await start(observer, scene, chance)
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            for number, connection in enumerate(others):
                session = Session(scene, connection, number, Random(f"{seed}/{number}"))
                group.create_task(session.work())
            await until_all_ended(observer)
            scene.over = True
        for run_id, (slug, given) in scene.runs.items():
            run = await ended(observer, run_id)
            assert (slug, faults(scene.graphs[slug], given, run)) == (slug, [])
        assert await observer.fetchval("select count(*) from holdfast.tasks") == 0
        assert {"recorded", "retried", "lost", "handed"} <= set(scene.outcomes)
    finally:
        for connection in connections:
            await connection.close()
