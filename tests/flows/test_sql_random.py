"""Random flows under sessions that race: they claim, end, fail, lose leases and stop runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.graphs import ENDED, Ended, Graph, faults

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

Held: TypeAlias = "tuple[UUID, str, str, int, Any]"  # run, key, handler, lease number, input

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
            " when_exhausted => $9, trigger_rule => $10, tolerated_count => $11,"
            " concurrency => $12)",
            slug,
            node.slug,
            list(node.deps),
            node.attempts,
            node.kind,
            None if node.required is None else json.dumps(node.required),
            None if node.forbidden is None else json.dumps(node.forbidden),
            node.unmet,
            node.exhausted,
            node.rule,
            node.tolerated,
            node.concurrency,
        )


class Session:
    """A worker with a connection of its own, which reports some ends when all is over."""

    def __init__(self, scene: Scene, connection: Connection, number: int, chance: Random) -> None:
        self.scene, self.connection, self.chance = scene, connection, chance
        self.name = f"w{number}"
        self.held: list[Held] = []
        self.late: list[Held] = []

    async def work(self) -> None:
        while not self.scene.over:
            await self.beat()
            if self.chance.random() < 0.04:
                await self.control()
            elif len(self.held) < 30 and await self.claim() == 0 and not self.held:
                await asyncio.sleep(0.1)
            else:
                await self.end()
        await self.report(self.late)

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
            self.chance.choice(LEASES) if self.late else LEASES[0],
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
        if not self.late or self.chance.random() < 0.03:
            self.late += batch
        else:
            await self.report(batch)

    async def report(self, batch: list[Held]) -> None:
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


@asynccontextmanager
async def sessions(url: str) -> AsyncGenerator[list[Connection]]:
    async with AsyncExitStack() as stack:
        connections: list[Connection] = []
        for _ in range(SESSIONS + 1):
            connections.append(await asyncpg.connect(url))
            stack.push_async_callback(connections[-1].close)
        yield connections


async def work(connections: list[Connection], scene: Scene, seed: int) -> None:
    """Work on the runs of a scene until all have ended."""
    observer, *others = connections
    scene.over = False
    async with asyncio.timeout(250), asyncio.TaskGroup() as group:
        for number, connection in enumerate(others):
            session = Session(scene, connection, number, Random(f"{seed}/{number}"))
            group.create_task(session.work())
        await until_all_ended(observer)
        scene.over = True
    assert await observer.fetchval("select count(*) from holdfast.tasks") == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_run_ends_as_its_graph_says(database_url: str, seed: int) -> None:
    chance = Random(seed)
    scene = Scene({f"g{number}": Graph(chance) for number in range(8)})
    async with sessions(database_url) as connections:
        for slug, graph in scene.graphs.items():
            await define(connections[0], slug, graph)
        await start(connections[0], scene, chance)
        await work(connections, scene, seed)
        for run_id, (slug, given) in scene.runs.items():
            run = await ended(connections[0], run_id)
            assert (slug, faults(scene.graphs[slug], given, run)) == (slug, [])
        assert {"recorded", "retried", "lost", "handed"} <= set(scene.outcomes)


async def retry(connection: Connection, scene: Scene, chance: Random) -> dict[UUID, Ended]:
    """Retry the runs of a scene, some from a step on; return the runs that were retried."""
    origins: dict[UUID, Ended] = {}
    first, scene.runs = scene.runs, {}
    for run_id, (slug, given) in first.items():
        origin = await ended(connection, run_id)
        step = chance.choice([*scene.graphs[slug].nodes, None])
        if origin.status == "completed" and step is None:
            continue
        new = uuid4()
        outcome = await connection.fetchval(
            "select outcome from holdfast.retry_flow($1, $2, $3)", run_id, new, step
        )
        assert outcome == "started"
        scene.runs[new], origins[new] = (slug, given), origin
    return origins


def with_copied_entries(run: Ended, origin: Ended) -> Ended:
    """Return a run with the entries of the steps that it has from the run that it retries."""
    told = {key for _, key in run.entries}
    copied = [
        (event_type, key)
        for event_type, key in origin.entries
        if key is not None and key not in told and run.steps[key]["status"] in ENDED
    ]
    return replace(run, entries=[*run.entries, *copied])


@pytest.mark.parametrize("seed", [4, 5])
async def test_every_retry_ends_as_its_graph_says(database_url: str, seed: int) -> None:
    """A second retry has what the first one copied."""
    chance = Random(seed)
    scene = Scene({f"g{number}": Graph(chance) for number in range(8)})
    async with sessions(database_url) as connections:
        for slug, graph in scene.graphs.items():
            await define(connections[0], slug, graph)
        await start(connections[0], scene, chance)
        await work(connections, scene, seed)
        origins = await retry(connections[0], scene, chance)
        await work(connections, scene, seed + 10)
        assert len(origins) > RUNS / 3
        for run_id, (slug, given) in scene.runs.items():
            run = with_copied_entries(await ended(connections[0], run_id), origins[run_id])
            assert (slug, faults(scene.graphs[slug], given, run)) == (slug, [])
        again = await retry(connections[0], scene, chance)
        await work(connections, scene, seed + 20)
        for run_id in again:
            run = await ended(connections[0], run_id)
            found = [
                fault for fault in faults(*_told(scene, run_id), run) if "log says" not in fault
            ]
            assert found == []


def _told(scene: Scene, run_id: UUID) -> tuple[Graph, Any]:
    slug, given = scene.runs[run_id]
    return scene.graphs[slug], given
