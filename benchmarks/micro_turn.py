"""What the runtime itself costs, without a database: µs of CPU time, and KiB in memory.

python benchmarks/micro_turn.py            # the figures
python benchmarks/micro_turn.py --profile  # where the time of a live step goes
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
import tracemalloc
from collections.abc import Callable
from uuid import UUID

from holdfast import Context
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.runtime.turn.turn import RunInfo, State, Turn
from holdfast.types import Event

STEPS, RUNS = 3000, 1000
LAST = (State.ENDED, State.SUSPENDED)
START = 1_700_000_000_000_000
RESULT = '{"ok":1}'


@Step
async def work(item: int) -> dict[str, int]:
    return {"ok": item}


async def in_order(ctx: Context, steps: int) -> None:
    for item in range(steps):
        await work(item)


async def waiting(ctx: Context, text: str) -> None:
    await work(1)
    await work(2)
    await ctx.wait_for_signal("go", timeout="1h")


LONG, WAITING = Workflow(in_order, name="in_order"), Workflow(waiting, name="waiting")


def clock() -> int:
    return time.time_ns() // 1000


def make(workflow: Workflow[int, None] | Workflow[str, None], number: int, text: str) -> Turn:
    info = RunInfo(UUID(int=number << 40 | number), workflow.name, 1, 1, START)
    return Turn(workflow, info, 1, [Event("WorkflowStarted", None, text, START)], clock)


def drive(turn: Turn) -> list[Event]:
    """Do what the turn asks for, at once, until it ends or suspends; return what it wrote."""
    log: list[Event] = []
    effects = turn.begin()
    while effects.state not in LAST:
        commit = effects.commit
        if effects.start:
            [call] = effects.start
            effects = turn.step_completed(call.key, RESULT, START)
            commit = commit or effects.commit
        if commit is not None:
            log += commit.events
            effects = turn.committed()
    return log


def timed(action: Callable[[], object]) -> float:
    """Return the CPU time of the fastest of five tries, in µs."""
    best = float("inf")
    for _ in range(5):
        gc.collect()
        started_at = time.process_time()
        action()
        best = min(best, time.process_time() - started_at)
    return best * 1e6


def live() -> float:
    return timed(lambda: drive(make(LONG, 1, str(STEPS)))) / STEPS


def replay() -> float:
    turn = make(LONG, 1, str(STEPS))
    log = [Event("WorkflowStarted", None, str(STEPS), START), *drive(turn)[:-1]]
    return timed(lambda: Turn(LONG, turn.info, 1, log, clock).abandon()) / STEPS


def one_step_runs() -> float:
    return timed(lambda: [drive(make(LONG, n, "1")) for n in range(RUNS)]) / RUNS


def new_instances() -> float:
    kept: list[Turn] = []

    def create() -> None:
        for n in range(RUNS):
            kept.append(make(LONG, n, "1"))
            kept[-1].begin()

    found = timed(create) / RUNS
    for turn in kept:
        turn.abandon()
    return found


def suspended() -> tuple[float, float]:
    """Return the KiB of a suspended turn, and the µs to close and free one.

    What is not freed at once costs the search for garbage that follows.
    """
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    turns = [make(WAITING, n, '"x"') for n in range(RUNS)]
    for turn in turns:
        drive(turn)
    gc.collect()
    kib = tracemalloc.get_traced_memory()[0] / RUNS / 1024
    tracemalloc.stop()
    started_at = time.process_time()
    while turns:
        turns.pop().abandon()
    gc.collect()
    close = (time.process_time() - started_at) / RUNS * 1e6
    gc.unfreeze()
    return kib, close


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    if parser.parse_args().profile:
        with cProfile.Profile() as profile:
            live()
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        return
    kib, close = suspended()
    rows = [
        ("a step, live", live(), "µs"),
        ("a step, replayed", replay(), "µs"),
        ("a run of one step", one_step_runs(), "µs"),
        ("a new run, to its first step", new_instances(), "µs"),
        ("a suspended run, closed and freed", close, "µs"),
        ("a suspended run, kept", kib, "KiB"),
    ]
    for what, figure, unit in rows:
        print(f"{what:30} {figure:8.1f} {unit}")


if __name__ == "__main__":
    main()
