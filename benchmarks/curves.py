"""How holdfast grows: `python -m benchmarks.curves [--processes 1,2,4,8] [--shards 1,2,4]`.

W1, W5 and LK with so many worker processes; E, starts one after another, with so many programs that
start; idle: transactions a second of so many workers that have nothing to do. With `--shards` also
over numbers of databases, all on the one server, of which each has as many workers. Beside each
figure stands what bounded it: the processor time of each side, and what the connections of the
database did while it was measured. It takes some minutes, and writes the curves as a file of
benchmarks/machines, the table in RESULTS.md and a picture. With `--write` alone only these two.

To publish those of another machine, measure with `--name` and send the file. `--database` takes a
server, which may be elsewhere: then its processor time is not known.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import curves_document, machine
from benchmarks.bench import Bench
from benchmarks.counting import SETTLE_SECONDS
from benchmarks.engine import AT_ONCE, WorkerSetting
from benchmarks.engine_holdfast import HoldfastEngine
from benchmarks.limits import WARM_UP
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.throughput import drain
from benchmarks.watching import Usage, watched
from benchmarks.worker import WorkerProcess, several, together
from holdfast import Client
from holdfast._version import __version__

MACHINES = Path(__file__).parent / "machines"
DATABASE = "bench_curves"
IDLE_SECONDS = 20.0
START_SECONDS = 5.0


@dataclass(frozen=True)
class Watched(Bench):
    """A bench that keeps what its last wait for the end of all runs used."""

    url: str = ""  # of all databases
    server_pid: int = 0
    usages: list[Usage] = field(default_factory=list)

    @asynccontextmanager
    async def watch(self, worker: WorkerProcess | None) -> AsyncIterator[None]:
        """Keep what is used meanwhile."""
        async with watched(self.url, self.server_pid, worker) as usage:
            yield
        self.usages[:] = [usage]

    @contextmanager
    def worker(self, setting: WorkerSetting) -> Iterator[WorkerProcess]:
        """Run worker processes, as `holdfast worker` starts them for each of its databases."""
        command, shards = self.engine.worker_command(setting), len(self.url.split())
        commands = [
            [*command, "--shard", str(number % shards)] if shards > 1 else command
            for number in range(setting.processes)
        ]
        with WorkerProcess(together(commands), self.log) as process:
            yield process

    async def wait_until_ended(self, worker: WorkerProcess) -> None:
        """Wait until no run is left unfinished."""
        async with self.watch(worker):
            await super().wait_until_ended(worker)


async def _w1(bench: Watched, processes: int) -> float:
    runs = bench.count(10_000)
    return runs / await drain(bench, WorkerSetting(processes=processes), "many", [1] * runs)


async def _w5(bench: Watched, processes: int) -> float:
    runs = bench.count(5_000)
    return 5 * runs / await drain(bench, WorkerSetting(processes=processes), "many", [5] * runs)


async def _lk(bench: Watched, processes: int) -> float:
    await bench.engine.limit_keys("keyed")
    keys, setting = range(1, 1 + bench.count(10_000)), WorkerSetting(processes=processes)
    return len(keys) / await drain(bench, setting, "keyed", keys, warm_up=WARM_UP)


async def _e(bench: Watched, processes: int) -> float:
    seconds = max(1.0, START_SECONDS * bench.scale)
    command = [sys.executable, "-m", "benchmarks.curves", "--start", bench.url, str(seconds)]
    with WorkerProcess(several(command, processes), bench.log) as programs:
        while await bench.engine.stored_runs() < processes * 100:
            programs.check()
            await asyncio.sleep(0.05)
        before = await bench.engine.stored_runs()
        async with bench.watch(programs):
            await asyncio.sleep(seconds / 2)
        return (await bench.engine.stored_runs() - before) / bench.usages[0].seconds


async def _idle(bench: Watched, processes: int) -> float:
    with bench.worker(WorkerSetting(processes=processes)) as workers:
        await bench.warm_up(workers)
        await asyncio.sleep(SETTLE_SECONDS)
        before = await bench.engine.transactions()
        async with bench.watch(workers):
            await asyncio.sleep(max(5.0, IDLE_SECONDS * bench.scale))
        usage = bench.usages[0]
        return (await bench.engine.transactions() - before - usage.looks) / usage.seconds


@dataclass(frozen=True)
class Curve:
    """What is measured over numbers of processes."""

    title: str
    unit: str
    measure: Callable[[Watched, int], Awaitable[float]]


CURVES = {
    "W1": Curve("runs of 1 step", "runs/s", _w1),
    "W5": Curve("runs of 5 steps", "steps/s", _w5),
    "LK": Curve("runs with a limit for each of 10,000 keys", "runs/s", _lk),
    "E": Curve("starts, one after another in each program", "runs/s", _e),
    "idle": Curve("workers with nothing to do", "transactions/s", _idle),
}


async def measure(
    urls: Sequence[str], server_pid: int, name: str, processes: int, scale: float
) -> tuple[float, Usage]:
    """Measure one point in empty databases."""
    engine = HoldfastEngine(*urls)
    await engine.open()
    try:
        bench = Watched(engine, CACHE / "curves.log", scale, " ".join(urls), server_pid)
        return await CURVES[name].measure(bench, processes), bench.usages[0]
    finally:
        await engine.close()


def points(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every point, by turns, and return the round of the median of each."""
    places = [
        (name, processes, shards)
        for name in options.curves
        for processes in options.processes
        for shards in options.shards
        if name == "E" or processes % shards == 0  # each shard has as many workers
    ]
    found: dict[tuple[str, int, int], list[tuple[float, Usage]]] = {each: [] for each in places}
    databases = [f"{DATABASE}_{number}" for number in range(max(options.shards))]
    pid = server.process_id()
    for turn in range(options.rounds):
        for name, processes, shards in places:
            urls = [server.fresh_database(each) for each in databases[:shards]]
            point = asyncio.run(measure(urls, pid, name, processes, options.scale))
            found[name, processes, shards].append(point)
            figure = f"{name} x {processes} / {shards}: {point[0]:,.1f} {CURVES[name].unit}"
            print(f"{turn + 1}/{options.rounds} {figure}", file=sys.stderr, flush=True)
    for each in databases:
        server.drop_database(each)
    return [
        {
            "curve": name,
            "processes": processes,
            "shards": shards,
            "value": round(value, 1),
            "spread": [round(pick(each[0] for each in rounds), 1) for pick in (min, max)],
            **asdict(usage),
        }
        for (name, processes, shards), rounds in found.items()
        for value, usage in [
            min(rounds, key=lambda each: abs(each[0] - statistics.median(r[0] for r in rounds)))
        ]
    ]


async def start_runs(url: str, seconds: float) -> None:
    """Start runs one after another, from a program of its own."""
    async with Client(url) as client:
        until = time.monotonic() + 2 * seconds + 30  # it is killed before
        while time.monotonic() < until:
            await client.start("bench/many", 1)


def main() -> None:
    options = _options()
    if options.start:
        asyncio.run(start_runs(options.start[0], float(options.start[1])))
        return
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    if not options.write:
        with alone(CACHE), serve(options.database, CACHE / "home") as server:
            about = {
                "date": datetime.now(UTC).date().isoformat(),
                "holdfast": __version__,
                "rounds": options.rounds,
                "scale": options.scale,
                "at_once": AT_ONCE,
                "machine": machine.describe(CACHE),
                "postgresql": server.describe(),
            }
            measured = points(server, options)
        curves = {name: [CURVES[name].title, CURVES[name].unit] for name in options.curves}
        MACHINES.mkdir(exist_ok=True)
        output = MACHINES / f"{options.name}.json"
        output.write_text(
            json.dumps({"about": about, "curves": curves, "points": measured}, indent=1) + "\n"
        )
        print(f"written to {output}")
    curves_document.write(MACHINES)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--shards", type=_numbers, default=[1], help="numbers of databases: 1,2,4")
    parser.add_argument("--curves", type=lambda text: text.split(","), default=list(CURVES))
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of the work")
    parser.add_argument("--database", metavar="URL", help="a server instead of the embedded one")
    parser.add_argument("--name", default="this-machine", help="of the file: cloud-8-cores")
    parser.add_argument("--write", action="store_true", help="write the documents, do not measure")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.curves) - set(CURVES):
        parser.error(f"unknown curves: {', '.join(sorted(unknown))}; known: {', '.join(CURVES)}")
    return options


def _numbers(text: str) -> Sequence[int]:
    return sorted({int(number) for number in text.split(",")})


if __name__ == "__main__":
    main()
