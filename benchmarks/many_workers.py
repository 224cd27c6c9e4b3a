"""What many workers cost: `python -m benchmarks.many_workers [--seconds 10] [--tasks 1000000]`.

With `--minutes N` or `--hour` only this: if what they cost stays the same (`benchmarks.flat`).

First, worker processes, 1 to 16 of them: statements a second while they are idle, and statements,
claims and processor time of a run under load. Then 16 and 100 workers in one process, which make
the calls of workers over 40 connections and execute nothing: statements while they are idle, and
what happens when a queue opens that was paused while a million tasks came due. Claims of each
100 ms, and the latency of a start on another queue, measured by another process before and after,
show if the workers come as a herd.

A call of holdfast is one statement in a transaction of its own, so statements are counted as
transactions of the database; claims and commits as calls of their functions. `start before` and
`start after` are p50/p99 in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID, uuid4

import asyncpg

from benchmarks import flat
from benchmarks.counting import count
from benchmarks.holdfast_app import app, many
from benchmarks.latency import percentile
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.worker import WorkerProcess, several
from holdfast import Client
from holdfast._version import __version__
from holdfast.store.port import WORK_TOPIC, Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import ClaimedTask, Event, Finish, Lease, TurnCommit, WorkerInfo
from holdfast.worker import WorkerOptions
from holdfast.worker.claimer import Claimer
from holdfast.worker.clock import EngineClock

DATABASE = "bench_many_workers"
PROCESSES = (1, 2, 4, 8, 16)
FLAT_PROCESSES = 8
WAITING = (16, 100)
SHARED_CONNECTIONS = 40
CONCURRENCY = WorkerOptions().concurrency
LEASE_SECONDS = WorkerOptions().lease_seconds
COMMITTED_TOGETHER = 50  # runs that a worker ends in one call
QUEUE = "herd"
IDLE_PART_SECONDS = 30.0
PART_SECONDS = 0.1  # of which claims are counted
PROBES_A_SECOND = 50
PATIENCE_SECONDS = 600
TASKS_A_STATEMENT = 100_000

# Runs without steps, due on a queue of their own.
DUE = """
with made as (
    insert into holdfast.runs (run_id, name, version, queue, priority, status, input, created_at)
    select holdfast.new_run_id(), 'bench/many', 1, $2, 2, 'running', '0', now()
    from generate_series(1, $1::int)
    returning run_id, created_at
), logged as (
    insert into holdfast.events (run_id, idx, event_type, at)
    select run_id, 0, 'WorkflowStarted', created_at from made
)
insert into holdfast.tasks (run_id, queue, handler, priority, visible_at)
select run_id, $2, 'bench/many@1', 2, created_at from made
"""


# Processes


class ProcessRow(NamedTuple):
    """What so many worker processes cost."""

    processes: int
    idle_statements: float  # a second, of all
    idle_cpu: float  # of the workers, share of one processor
    runs: float  # a second
    statements: float  # a run
    claims: float  # a run
    commits: float  # a run
    cpu: float  # of the workers, ms a run


async def measure_processes(url: str, processes: int, seconds: float, runs: int) -> ProcessRow:
    command = [sys.executable, "-m", "holdfast", "worker", "benchmarks.holdfast_app:app"]
    command += ["--database", url]
    connection = await asyncpg.connect(url)
    try:
        async with Client(url, app=app) as client:
            log = CACHE / "many_workers.log"
            with WorkerProcess(several(command, processes), log) as workers:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while len(await client.workers.list()) < processes:
                        workers.check()
                        await asyncio.sleep(0.1)
                started, used = await count(connection), workers.cpu_seconds()
                await asyncio.sleep(seconds)
                before = await count(connection)
                idle, idle_cpu = before.since(started), workers.cpu_seconds() - used
                used, began = workers.cpu_seconds(), time.monotonic()
                await client.start_many(many, [1] * runs)
                await _until_ended(connection)
                took = time.monotonic() - began
                cpu = workers.cpu_seconds() - used
                loaded = (await count(connection)).since(before)
            for each in await client.workers.list():  # killed: they do not sign off
                await connection.execute("select holdfast.remove_worker($1)", each.worker_id)
    finally:
        await connection.close()
    return ProcessRow(
        processes,
        idle.statements / idle.seconds,
        idle_cpu / idle.seconds,
        runs / took,
        *loaded.beyond(idle, runs),
        cpu / runs * 1e3,
    )


async def _until_ended(connection: asyncpg.Connection[Any]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await connection.fetchval("select exists (select from holdfast.tasks)"):
            await asyncio.sleep(0.02)


# Workers in one process


class CountingStore:
    """Passes every call on to a store, and notes when tasks were claimed, and how many."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claims: list[tuple[float, int]] = []

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    async def claim_tasks(self, *arguments: Any, **options: Any) -> Any:
        sent = time.time()
        found = await self._store.claim_tasks(*arguments, **options)
        self.claims.append((sent, len(found.tasks)))
        return found


class Waiting:
    """A worker as the database sees it: claims, heartbeats, and commits that end runs.

    The claimer is that of a worker. No code of workflows is executed, so that one process can be a
    hundred workers.
    """

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self.info = WorkerInfo(
            worker_id=f"waiting-{number}",
            hostname="here",
            pid=number,
            queues=("default", QUEUE),
            handlers=("bench/many@1",),
            concurrency=CONCURRENCY,
            holdfast_version=__version__,
            consumes=(),
        )
        self._held: dict[UUID, ClaimedTask] = {}
        self.claimer = Claimer(
            store,
            self.info,
            WorkerOptions(lease_seconds=LEASE_SECONDS),
            EngineClock(),
            lambda _: None,
            lambda _: None,
        )
        self.claimer.room.count(self._held)
        self._tasks = set[asyncio.Task[None]]()

    async def start(self) -> None:
        await self._store.listen(WORK_TOPIC, self.claimer.notified)
        self._begin(self._beat())
        await self.claimer.start({"workflow": self._take})

    async def stop(self) -> None:
        await self.claimer.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, tasks: Sequence[ClaimedTask]) -> None:
        self._held |= {task.run_id: task for task in tasks}
        for first in range(0, len(tasks), COMMITTED_TOGETHER):
            self._begin(self._end(tasks[first : first + COMMITTED_TOGETHER]))

    async def _end(self, tasks: Sequence[ClaimedTask]) -> None:
        event = Event("WorkflowCompleted", None, None, 0)
        turns = [
            TurnCommit(t.run_id, t.lease_no, t.log_length, [event], Finish("completed", "0"))
            for t in tasks
        ]
        await self._store.commit(self.info.worker_id, uuid4(), turns)
        for task in tasks:
            del self._held[task.run_id]
        self.claimer.room.freed()

    async def _beat(self) -> None:
        options = WorkerOptions()
        while True:
            leases = [Lease(t.run_id, t.key, t.lease_no, t.log_length) for t in self._held.values()]
            await self._store.heartbeat(
                self.info,
                leases,
                lease_seconds=LEASE_SECONDS,
                interval_seconds=options.heartbeat_seconds,
                silent_seconds=options.silent_seconds,
            )
            await asyncio.sleep(options.heartbeat_seconds)


@asynccontextmanager
async def working(url: str, workers: int) -> AsyncGenerator[CountingStore]:
    """Let so many workers wait in this process."""
    async with AsyncExitStack() as stack:
        plain = PostgresStore(url, connections=SHARED_CONNECTIONS, tells=True)
        await plain.open()
        stack.push_async_callback(plain.close)
        store = CountingStore(plain)
        for number in range(workers):
            worker = Waiting(cast("Store", store), number)
            await worker.start()
            stack.push_async_callback(worker.stop)
        yield store


class HerdRow(NamedTuple):
    """What workers did when a queue opened that had many due tasks."""

    workers: int
    idle: tuple[
        float, float, float
    ]  # statements a second, of all: mean, and of 30 s least and most
    claims: int  # in the first second
    claims_later: float  # a second, after it
    most_claims: int  # in 100 ms
    claimed: float  # tasks a second
    before: tuple[float, float]  # ms of a start on another queue: p50, p99
    after: tuple[float, float]
    worst_after: float


async def measure_herd(url: str, workers: int, seconds: float, idle_seconds: float) -> HerdRow:
    connection = await asyncpg.connect(url)
    try:
        async with Client(url, app=app) as client, working(url, workers) as store:
            idle = await _idle_rates(connection, idle_seconds)
            probe = _probe(url, 2 * seconds)
            await asyncio.sleep(seconds)
            store.claims.clear()
            opened = time.time()
            await client.queues.resume(QUEUE)
            await asyncio.sleep(seconds)
            claims = [(at - opened, tasks) for at, tasks in store.claims]
            await client.queues.pause(QUEUE)
            told = await asyncio.to_thread(probe.communicate)
    finally:
        await connection.close()
    probes: Sequence[tuple[float, float]] = json.loads(told[0])
    before = [took for at, took in probes if at < opened]
    after = [took for at, took in probes if opened <= at < opened + seconds]
    parts = Counter(int(at / PART_SECONDS) for at, _ in claims)
    first = sum(at < 1 for at, _ in claims)
    return HerdRow(
        workers,
        idle,
        first,
        (len(claims) - first) / max(seconds - 1, 1),
        max(parts.values(), default=0),
        sum(tasks for _, tasks in claims) / seconds,
        (percentile(before, 50), percentile(before, 99)),
        (percentile(after, 50), percentile(after, 99)),
        max(after),
    )


async def _idle_rates(
    connection: asyncpg.Connection[asyncpg.Record], seconds: float
) -> tuple[float, float, float]:
    """Return the statements a second: all in all, and in the calmest and the busiest 30 s."""
    counts = [await count(connection)]
    for _ in range(max(round(seconds / IDLE_PART_SECONDS), 1)):
        await asyncio.sleep(min(seconds, IDLE_PART_SECONDS))
        counts.append(await count(connection))
    whole = counts[-1].since(counts[0])
    parts = [after.since(before) for before, after in pairwise(counts)]
    rates = [part.statements / part.seconds for part in parts]
    return whole.statements / whole.seconds, min(rates), max(rates)


def _probe(url: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.many_workers", "--probe", url, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def probe(url: str, seconds: float) -> list[tuple[float, float]]:
    """Start runs on a queue that nobody serves; return when, and how many ms each took."""
    found: list[tuple[float, float]] = []
    async with Client(url, app=app) as client:
        until = time.time() + seconds
        while (at := time.time()) < until:
            began = time.perf_counter()
            await client.start(many, 1, queue="elsewhere")
            found.append((at, (time.perf_counter() - began) * 1e3))
            await asyncio.sleep(1 / PROBES_A_SECOND)
    return found


async def write_due(url: str, tasks: int) -> None:
    """Pause the queue, and let so many tasks come due in it."""
    async with Client(url, app=app) as client:
        await client.queues.pause(QUEUE)
    connection = await asyncpg.connect(url)
    try:
        for first in range(0, tasks, TASKS_A_STATEMENT):
            part = min(TASKS_A_STATEMENT, tasks - first)
            await connection.execute(DUE, part, QUEUE, timeout=PATIENCE_SECONDS)
        await connection.execute("vacuum analyze", timeout=PATIENCE_SECONDS)
        await connection.execute("checkpoint", timeout=PATIENCE_SECONDS)
    finally:
        await connection.close()


# Showing


def table_of_processes(rows: Sequence[ProcessRow]) -> str:
    if not rows:
        return ""
    heads = ("processes", "idle stmt/s", "each", "idle cpu %", "runs/s", "stmt/run", "claims/run")
    lines = ["".join(f"{head:>13}" for head in (*heads, "commits/run", "cpu ms/run"))]
    for row in rows:
        shown = (
            f"{row.processes}",
            f"{row.idle_statements:.1f}",
            f"{row.idle_statements / row.processes:.2f}",
            f"{row.idle_cpu * 100:.1f}",
            f"{row.runs:,.0f}",
            f"{row.statements:.2f}",
            f"{row.claims:.3f}",
            f"{row.commits:.3f}",
            f"{row.cpu:.2f}",
        )
        lines.append("".join(f"{each:>13}" for each in shown))
    return "\n".join(lines)


def table_of_herds(rows: Sequence[HerdRow]) -> str:
    if not rows:
        return ""
    heads = (
        "workers",
        "idle stmt/s",
        "each",
        "in 30 s",
        "claims, 1st s",
        "then /s",
        "most in 0.1 s",
    )
    last = ("tasks/s", "start before", "start after", "worst")
    lines = ["".join(f"{head:>14}" for head in (*heads, *last))]
    for row in rows:
        shown = (
            f"{row.workers}",
            f"{row.idle[0]:.1f}",
            f"{row.idle[0] / row.workers:.2f}",
            f"{row.idle[1]:.1f}-{row.idle[2]:.1f}",
            f"{row.claims:,}",
            f"{row.claims_later:,.0f}",
            f"{row.most_claims:,}",
            f"{row.claimed:,.0f}",
            f"{row.before[0]:.1f}/{row.before[1]:.1f}",
            f"{row.after[0]:.1f}/{row.after[1]:.1f}",
            f"{row.worst_after:.1f}",
        )
        lines.append("".join(f"{each:>14}" for each in shown))
    return "\n".join(lines)


def prepare(server: Server) -> str:
    """Make the database, whose functions are counted from the first connection on."""
    url = server.fresh_database(DATABASE)
    migrate = [sys.executable, "-m", "holdfast", "migrate", "--database", url]
    subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
    server.ask(f"alter database {DATABASE} set track_functions = 'pl'")
    return url


Found = dict[str, Sequence[ProcessRow | HerdRow | flat.Window]]  # by the part that was measured


def measure(server: Server, options: argparse.Namespace) -> tuple[Found, str]:
    """Return the figures, and the tables of them."""
    rows, herds = list[ProcessRow](), list[HerdRow]()
    url = prepare(server)
    for processes in PROCESSES if options.processes is None else options.processes:
        rows.append(asyncio.run(measure_processes(url, processes, options.seconds, options.runs)))
        print(f"{processes} processes measured", file=sys.stderr, flush=True)
    if options.waiting:
        asyncio.run(write_due(url, options.tasks))
        print(f"{options.tasks:,} tasks are due", file=sys.stderr, flush=True)
    for workers in options.waiting:
        herds.append(asyncio.run(measure_herd(url, workers, options.seconds, options.idle_seconds)))
        print(f"{workers} waiting workers measured", file=sys.stderr, flush=True)
    tables = filter(None, (table_of_processes(rows), table_of_herds(herds)))
    return {"processes": rows, "herds": herds}, "\n\n".join(tables)


def measure_flat(server: Server, options: argparse.Namespace) -> tuple[Found, str]:
    """Return the windows of each number of processes, and the tables of them."""
    found = dict[str, list[flat.Window]]()
    for processes in options.processes or (FLAT_PROCESSES,):
        found[f"flat, {processes} processes"] = asyncio.run(
            flat.measure(server, prepare(server), processes, options.minutes, options.rate)
        )
    tables = (f"{name}\n\n{flat.table(windows)}" for name, windows in found.items())
    return {**found}, "\n\n".join(tables)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_workers", description=__doc__)
    parser.add_argument("--database", metavar="URL", help="a server, instead of the embedded one")
    parser.add_argument(
        "--processes", type=_numbers, metavar="N,N", help="1,2,4,8,16; with --minutes 8"
    )
    parser.add_argument("--waiting", type=_numbers, default=WAITING, metavar="N,N")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--idle-seconds", type=float, default=120.0, help="of the waiting workers")
    parser.add_argument("--runs", type=int, default=5_000, help="of the load of processes")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="that come due while paused")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="only this: N minutes of a steady load"
    )
    parser.add_argument(
        "--hour", dest="minutes", action="store_const", const=60.0, help="the same as --minutes 60"
    )
    parser.add_argument("--rate", type=float, default=50.0, help="runs a second of --minutes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe is not None:
        print(json.dumps(asyncio.run(probe(options.probe[0], float(options.probe[1])))))
        return
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        try:
            found, shown = (measure_flat if options.minutes else measure)(server, options)
        finally:
            server.drop_database(DATABASE)
    if options.json:
        print(json.dumps({name: [each._asdict() for each in of] for name, of in found.items()}))
    else:
        print(shown)


if __name__ == "__main__":
    main()
