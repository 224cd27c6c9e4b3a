"""What metrics cost a worker: its CPU time on W50, with metrics off and on, by turns.

`python -m benchmarks.metrics [--rounds N] [--before FOLDER]`; FOLDER is a checkout whose workers
are measured too. Each round has all variants, in another order; the ratio to `off` is taken within
a round, and the figure is the median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.engine import WorkerSetting
from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import serve
from benchmarks.worker import WorkerProcess

RUNS, STEPS = 400, 50
VARIANTS = {"off": [], "off again": [], "on": ["--metrics", "127.0.0.1:0"]}


@contextmanager
def worker(bench: Bench, options: list[str], source: Path | None) -> Iterator[WorkerProcess]:
    """Run a worker with more options, of the code of another checkout if one is given."""
    before = os.environ.get("PYTHONPATH")
    if source is not None:
        os.environ["PYTHONPATH"] = str(source / "src")
    command = [*bench.engine.worker_command(WorkerSetting()), *options]
    with WorkerProcess(command, bench.log) as process:
        if source is not None:
            del os.environ["PYTHONPATH"]
            os.environ.update({} if before is None else {"PYTHONPATH": before})
        yield process


async def measure(url: str, options: list[str], source: Path | None) -> float:
    """Return the µs of CPU time that a worker needs for a step."""
    engine = CANDIDATES["holdfast"].load(url)
    await engine.open()
    bench = Bench(engine, CACHE / "metrics.log")
    try:
        with worker(bench, options, source) as process:
            await bench.warm_up(process, "many")
            process.freeze()
            await engine.start_many("many", [STEPS] * RUNS)
            used = process.cpu_seconds()
            process.thaw()
            await bench.wait_until_ended(process)
            return (process.cpu_seconds() - used) / (RUNS * STEPS) * 1e6
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    tried: dict[str, tuple[list[str], Path | None]] = {
        name: (given, None) for name, given in VARIANTS.items()
    }
    if options.before is not None:
        tried["before"] = ([], options.before)
    found: dict[str, list[float]] = {name: [] for name in tried}
    with serve(None, CACHE / "home") as server:
        for number in range(options.rounds):
            for name in random.sample(list(tried), len(tried)):
                url = server.fresh_database("bench_metrics")
                found[name].append(asyncio.run(measure(url, *tried[name])))
            print(
                number + 1, {name: round(each[-1], 2) for name, each in found.items()}, flush=True
            )
        server.drop_database("bench_metrics")
    for name, figures in found.items():
        ratios = [one / off for one, off in zip(figures, found["off"], strict=True)]
        print(
            f"{name:10} {statistics.median(figures):7.2f} µs/step {statistics.median(ratios):6.3f}x"
        )


if __name__ == "__main__":
    main()
