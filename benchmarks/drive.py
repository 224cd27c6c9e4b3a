"""Measure one workload on one engine; runs in the engine's environment, prints JSON.

A driver is a process of its own, apart from the worker: it sees the engine from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.engine import Measurement
from benchmarks.engines import CANDIDATES
from benchmarks.workloads import WORKLOADS


async def drive(name: str, workload: str, url: str, log: Path, scale: float) -> list[Measurement]:
    """Run the workload on the engine, on the fresh database at the URL."""
    engine = CANDIDATES[name].load(url)
    await engine.open()
    try:
        return await WORKLOADS[workload](Bench(engine, log, scale))
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, choices=list(CANDIDATES))
    parser.add_argument("--workload", required=True, choices=list(WORKLOADS))
    parser.add_argument("--database", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    o = parser.parse_args()
    measured = asyncio.run(drive(o.engine, o.workload, o.database, o.log, o.scale))
    print(json.dumps([asdict(one) for one in measured]))


if __name__ == "__main__":
    main()
