"""One flow of 40 short tasks, and one of 10 long ones: `python -m benchmarks.orchestrators`.

The two flows with which Windmill compares orchestrators of Python
(https://www.windmill.dev/docs/misc/benchmarks/competitors): tasks one after another that compute
Fibonacci numbers the naive way, fibo(10) or fibo(33). The worker is a process of its own, idle
before. Printed are medians: from the start to the result, for how long the tasks computed, and
what is left of it for each task. DBOS is measured in its own environment, in its quickest way:
workflows are asynchronous and run in the process that starts them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine import WorkerSetting
from benchmarks.engines import CANDIDATES
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.worker import WorkerProcess
from holdfast import App, Client, Context

FLOWS = ((40, 10), (10, 33))  # tasks, and the number that each of them computes
DATABASE = "bench_orchestrators"
PAUSE_SECONDS = 0.5

app = App("bench")


def fibo(n: int) -> int:
    return n if n <= 1 else fibo(n - 1) + fibo(n - 2)


@app.step
def compute(n: int) -> float:
    """Return for how many seconds it computed."""
    began = time.perf_counter()
    fibo(n)
    return time.perf_counter() - began


@app.workflow
async def tasks(ctx: Context, flow: tuple[int, int]) -> list[float]:
    count, n = flow
    return [await compute(n) for _ in range(count)]


class Run(NamedTuple):
    """A run of a flow: seconds from its start to its result, and for which its tasks computed."""

    total: float
    computed: float


async def measure(url: str, rounds: int) -> list[list[Run]]:
    """Return the runs of each flow."""
    engine = CANDIDATES["holdfast"].load(url)
    await engine.open()  # migrates
    command = [
        each.replace("benchmarks.holdfast_app", "benchmarks.orchestrators")
        for each in engine.worker_command(WorkerSetting())
    ]
    found: list[list[Run]] = []
    with WorkerProcess(command, CACHE / "orchestrators.log"):
        async with Client(url, app=app) as client:
            await client.run(tasks, (1, 1))
            for flow in FLOWS:
                runs: list[Run] = []
                for _ in range(rounds):
                    await asyncio.sleep(PAUSE_SECONDS)
                    began = time.perf_counter()
                    computed = await client.run(tasks, flow)
                    runs.append(Run(time.perf_counter() - began, sum(computed)))
                found.append(runs)
    await engine.close()
    return found


def measure_peer(server: Server, rounds: int) -> list[list[Run]]:
    """Return the runs of DBOS. Raises RuntimeError with what it said if it failed."""
    peer = CANDIDATES["dbos"]
    python, url = peer.install(CACHE), server.fresh_database(DATABASE)
    script = Path(__file__).with_name("orchestrators_dbos.py")
    command = [str(python), str(script), url, str(rounds), json.dumps(FLOWS)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"dbos failed: {answer.stderr.strip()[-500:]}")
    told = json.loads(answer.stdout.strip().splitlines()[-1])
    return [[Run(*run) for run in runs] for runs in told]


def show(name: str, found: Sequence[Sequence[Run]]) -> None:
    for (count, n), runs in zip(FLOWS, found, strict=True):
        total = statistics.median(run.total for run in runs)
        computed = statistics.median(run.computed for run in runs)
        rest = statistics.median(run.total - run.computed for run in runs) / count * 1e3
        print(
            f"{name:>12}  {count} x fibo({n}): {total:7.3f} s, of it computed {computed:7.3f} s "
            f"({computed / total:.1%}), beside that {rest:6.2f} ms a task"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orchestrators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true", help="measure holdfast alone")
    options = parser.parse_args()
    with alone(CACHE), serve(None, CACHE / "home") as server:
        url = server.fresh_database(DATABASE)
        show("holdfast", asyncio.run(measure(url, options.rounds)))
        if not options.no_peer:
            show(CANDIDATES["dbos"].requirements[0], measure_peer(server, options.rounds))
        server.drop_database(DATABASE)


if __name__ == "__main__":
    main()
