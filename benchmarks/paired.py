"""The CPU time of a worker on W50, for several variants of it, by turns.

Each round has all variants, in another order. The ratio to `off` is taken within a round, so that
a slow moment of the machine hits both; shown are the median of the ratios, and where the middle
half of them lies. What two equal variants differ by is noise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.engine import WorkerSetting
from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import alone, serve
from benchmarks.worker import WorkerProcess

RUNS, STEPS = 800, 50
OFF = "off"
DATABASE = "bench_paired"


@dataclass(frozen=True)
class Variant:
    """A worker, with more options of its command and more variables of its environment."""

    name: str
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def worker(self, bench: Bench) -> Iterator[WorkerProcess]:
        """Run the worker."""
        command = [*bench.engine.worker_command(WorkerSetting()), *self.options]
        process = WorkerProcess(command, bench.log)
        kept = dict(os.environ)
        os.environ.update(self.environment)
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(kept)
        try:
            yield process
        finally:
            process.kill()


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options that each of these benchmarks has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--before", type=Path, help="a checkout whose workers are measured too, without more"
    )
    parser.add_argument("--only", nargs="*", help="the variants to measure besides `off`")
    return parser


def compare(
    variants: Sequence[Variant], options: argparse.Namespace, *, after_seconds: float = 0
) -> None:
    """Measure variants as the options say, and print what they cost.

    `after_seconds` are measured after the last run has ended: for threads that are still at work.
    """
    tried = [one for one in variants if one.name == OFF or _is_asked(one, options)]
    if options.before is not None:
        tried.append(Variant("before", environment={"PYTHONPATH": str(options.before / "src")}))
    found: dict[str, list[float]] = {variant.name: [] for variant in tried}
    with alone(CACHE), serve(None, CACHE / "home") as server:
        for number in range(options.rounds):
            for variant in random.sample(tried, len(tried)):
                url = server.fresh_database(DATABASE)
                found[variant.name].append(asyncio.run(_measure(url, variant, after_seconds)))
            line = {name: round(figures[-1], 2) for name, figures in found.items()}
            print(number + 1, line, flush=True)
        server.drop_database(DATABASE)
    for name, figures in found.items():
        print(_summary(name, figures, found[OFF]))


def _is_asked(variant: Variant, options: argparse.Namespace) -> bool:
    return options.only is None or variant.name in options.only


async def _measure(url: str, variant: Variant, after_seconds: float) -> float:
    """Return the µs of CPU time, of user and system, that a worker needs for a step."""
    engine = CANDIDATES["holdfast"].load(url)
    await engine.open()
    bench = Bench(engine, CACHE / "paired.log")
    try:
        with variant.worker(bench) as worker:
            await bench.warm_up(worker, "many")
            worker.freeze()
            await engine.start_many("many", [STEPS] * RUNS)
            used = worker.cpu_seconds()
            worker.thaw()
            await bench.wait_until_ended(worker)
            await asyncio.sleep(after_seconds)
            return (worker.cpu_seconds() - used) / (RUNS * STEPS) * 1e6
    finally:
        await engine.close()


def _summary(name: str, figures: Sequence[float], off: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(figures, off, strict=True)]
    shown = f"{name:10} {statistics.median(figures):7.2f} µs/step {statistics.median(ratios):6.3f}x"
    if len(ratios) < 2:
        return shown
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{shown}, the middle half {low:.3f} to {high:.3f}"
