"""What traces cost a worker: its CPU time on W50, with tracing off, at 1 % and at 100 %, by turns.

`python -m benchmarks.tracing [--rounds N] [--before FOLDER]`; FOLDER is a checkout whose workers
are measured too. Spans go to a collector that throws them away. Each round has all variants, in
another order; the ratio to `off` is taken within a round, and the figure is the median.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.engine import WorkerSetting
from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import serve

RUNS, STEPS = 400, 50


class Collector(BaseHTTPRequestHandler):
    """Answers as a collector does, and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def variants(endpoint: str, before: Path | None) -> dict[str, Mapping[str, str]]:
    """Return the environment of each variant's worker."""
    on = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    }
    found: dict[str, Mapping[str, str]] = {
        "off": {},
        "off again": {},
        "1 %": {**on, "OTEL_TRACES_SAMPLER_ARG": "0.01"},
        "100 %": {**on, "OTEL_TRACES_SAMPLER_ARG": "1"},
    }
    if before is not None:
        found["before"] = {"PYTHONPATH": str(before / "src")}
    return found


async def measure(url: str, environment: Mapping[str, str]) -> float:
    """Return the µs of CPU time that a worker needs for a step."""
    engine = CANDIDATES["holdfast"].load(url)
    await engine.open()
    bench = Bench(engine, CACHE / "tracing.log")
    kept = dict(os.environ)
    os.environ.update(environment)
    try:
        with bench.worker(WorkerSetting()) as worker:
            os.environ.clear()
            os.environ.update(kept)
            await bench.warm_up(worker, "many")
            worker.freeze()
            await engine.start_many("many", [STEPS] * RUNS)
            used = worker.cpu_seconds()
            worker.thaw()
            await bench.wait_until_ended(worker)
            await asyncio.sleep(0.5)  # the thread that writes spans
            return (worker.cpu_seconds() - used) / (RUNS * STEPS) * 1e6
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    tried = variants(f"http://127.0.0.1:{collector.server_port}", options.before)
    found: dict[str, list[float]] = {name: [] for name in tried}
    with serve(None, CACHE / "home") as server:
        for number in range(options.rounds):
            for name in random.sample(list(tried), len(tried)):
                url = server.fresh_database("bench_tracing")
                found[name].append(asyncio.run(measure(url, tried[name])))
            line = {name: round(figures[-1], 2) for name, figures in found.items()}
            print(number + 1, line, flush=True)
        server.drop_database("bench_tracing")
    for name, figures in found.items():
        ratios = [one / off for one, off in zip(figures, found["off"], strict=True)]
        print(
            f"{name:10} {statistics.median(figures):7.2f} µs/step {statistics.median(ratios):6.3f}x"
        )


if __name__ == "__main__":
    main()
