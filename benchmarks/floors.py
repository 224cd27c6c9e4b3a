"""What starts and signals cost at least: `python -m benchmarks.floors [--rounds 3]`.

Each row of the first table does more than the one above it, in the same database: a statement
that does nothing, committed inserts by bare asyncpg, holdfast's own function by bare asyncpg, and
`Client.start`. The two event loops take turns. The second table is the floor of a signal and
its answer: three transactions, each begun when NOTIFY tells of the one before, of two processes.
Shown are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from uuid import uuid4

import asyncpg
import uvloop

from benchmarks.holdfast_app import app, many
from benchmarks.latency import BETWEEN_SECONDS
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from holdfast import Client

DATABASE = "bench_floors"
CALLS, WARM, EXCHANGES = 600, 50, 100
PATIENCE_SECONDS = 10
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
# As many rows and indexes as a start writes at least: the run, its first event, its task.
TABLES = (
    "create table floor_runs"
    " (id uuid primary key, name text, input json, at timestamptz default now())",
    "create table floor_events"
    " (id uuid, index int, name text, input json, primary key (id, index))",
    "create table floor_tasks (id uuid, key text, due timestamptz, primary key (id, key))",
    "create index on floor_tasks (key, due)",
    "create table floor_signals (id uuid primary key, state int)",
    """
    create function floor_start(id uuid, name text, input json) returns uuid language plpgsql as $$
    begin
        insert into floor_runs values (id, name, input);
        insert into floor_events values (id, 0, name, input);
        insert into floor_tasks values (id, '', now());
        return id;
    end $$
    """,
)
CLAIM = "update floor_signals set state = state + 1 where id = $1"
TELL = "with told as (insert into floor_events values ($2, $3, '')) select pg_notify($1, $2::text)"
Figures = dict[str, float]


async def starts(url: str) -> Figures:
    """Return the µs of each kind of call, one after the other on one connection."""
    connection = await asyncpg.connect(url)
    insert = "insert into floor_runs values ($1, 'bench/many', '1')"
    three = "select floor_start($1, 'bench/many', '1')"
    start_one = "select * from holdfast.start_one($1, 'bench/many', '1')"
    try:
        async with Client(url, app=app) as client:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "select 1": lambda: connection.fetchrow("select 1"),
                "one insert": lambda: connection.fetchrow(insert, uuid4()),
                "three inserts, one function": lambda: connection.fetchrow(three, uuid4()),
                "start_one": lambda: connection.fetchrow(start_one, uuid4()),
                "Client.start": lambda: client.start(many, 1),
            }
            return {name: await _microseconds(call) for name, call in calls.items()}
    finally:
        await connection.close()


async def _microseconds(call: Callable[[], Awaitable[object]]) -> float:
    for _ in range(WARM):
        await call()
    began = time.perf_counter()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter() - began) / CALLS * 1e6


class Teller:
    """Commits a row and tells a channel of it; `heard` holds what its own channel told."""

    def __init__(self, works: asyncpg.Connection, listens: asyncpg.Connection) -> None:
        self._works = works
        self._listens = listens
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    @classmethod
    async def connect(cls, url: str, channel: str) -> Teller:
        teller = cls(await asyncpg.connect(url), await asyncpg.connect(url))
        await teller._listens.add_listener(channel, lambda *told: teller.heard.put_nowait(told[3]))
        return teller

    async def run(self, statement: str, *values: object) -> None:
        await self._works.execute(statement, *values)

    async def close(self) -> None:
        await self._listens.close()
        await self._works.close()


async def answer(url: str) -> None:
    """Claim and answer each signal, until the process is ended."""
    teller = await Teller.connect(url, "floor_signal")
    print("ready", flush=True)
    while True:
        told = await teller.heard.get()
        await teller.run(CLAIM, told)
        await teller.run(TELL, "floor_answer", told, 2)


async def signals(url: str) -> Figures:
    """Return the median µs from a signal to the answer of the process that `answering` runs."""
    teller = await Teller.connect(url, "floor_answer")
    try:
        idle = await _exchanges(teller, BETWEEN_SECONDS)
        busy = await _exchanges(teller, 0)
    finally:
        await teller.close()
    return {"signal and answer, when idle": idle, "signal and answer": busy}


async def _exchanges(teller: Teller, rest: float) -> float:
    took: list[float] = []
    for _ in range(EXCHANGES):
        signal = uuid4()
        await teller.run("insert into floor_signals values ($1, 0)", signal)
        await asyncio.sleep(rest)
        began = time.perf_counter()
        await teller.run(TELL, "floor_signal", signal, 1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await teller.heard.get() != str(signal):
                pass
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


@contextmanager
def answering(url: str) -> Generator[None]:
    """Run the other process, which answers each signal."""
    command = [sys.executable, "-m", "benchmarks.floors", "--answer", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit("the process that answers did not begin: see its error above")
            yield
        finally:
            process.kill()


def prepare(url: str) -> None:
    """Install holdfast and the tables of the floors."""
    migrate = [sys.executable, "-m", "holdfast", "migrate", "--database", url]
    subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
    Server(url, "").ask(*TABLES)


def measure(url: str, rounds: int) -> dict[str, Figures]:
    """Return medians of the rounds, in µs: for each row its figure by event loop."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    prepare(url)
    with answering(url):
        for number in range(rounds):
            for loop in LOOPS if number % 2 else reversed(LOOPS):
                for part in (starts, signals):
                    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                        for name, figure in runner.run(part(url)).items():
                            found[name][loop].append(figure)
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        name: {loop: statistics.median(by_loop[loop]) for loop in LOOPS}
        for name, by_loop in found.items()
    }


def table(figures: dict[str, Figures]) -> str:
    """Return a line for each row: µs, and calls a second, by event loop."""
    lines = ["".join([f"{'µs (a second)':32}", *(f"{loop:>20}" for loop in LOOPS)])]
    for name, by_loop in figures.items():
        shown = (f"{took:.0f} ({1e6 / took:,.0f})" for took in (by_loop[loop] for loop in LOOPS))
        lines.append("".join([f"{name:32}", *(f"{one:>20}" for one in shown)]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floors", description=__doc__)
    parser.add_argument("--database", metavar="URL", help="a server, instead of the embedded one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, in µs")
    parser.add_argument("--answer", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer is not None:
        asyncio.run(answer(options.answer))
        return
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        url = server.fresh_database(DATABASE)
        try:
            figures = measure(url, options.rounds)
        finally:
            server.drop_database(DATABASE)
    print(json.dumps(figures) if options.json else table(figures))


if __name__ == "__main__":
    main()
