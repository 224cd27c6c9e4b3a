"""Make a failure several times under load, and return the figures of each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.failures import table
from benchmarks.failures.audit import Evidence, Failure, Window, read_histories, read_traces
from benchmarks.failures.load import Caller, Driver
from benchmarks.failures.places import Place
from benchmarks.failures.postgres import interrupted
from benchmarks.failures.scenarios import Scenario
from holdfast import Client

T = TypeVar("T")

RATE = 20.0
BEFORE_SECONDS = 2.5
AFTER_SECONDS = 1.0
EVERY, LENGTH = 50, 60  # where failures follow upon each other, some runs live through several
PATIENCE_SECONDS = 180.0


def measure(scenario: type[Scenario], tries: int) -> tuple[str, list[dict[str, Any]]]:
    """Return PostgreSQL's version, and the figures of each try."""
    with Place() as place:
        made = scenario(place)
        began = time.monotonic()
        made.open()
        say(f"{scenario.name}: up after {time.monotonic() - began:.1f} s")
        version = made.server_version()
        if scenario.continuous:
            return version, asyncio.run(_measure(made, 0, tries))
        rounds = [asyncio.run(_measure(made, number, 1)) for number in range(tries)]
        return version, [figures for each in rounds for figures in each]


def say(line: str) -> None:
    """Tell the user of the progress."""
    print(line, file=sys.stderr, flush=True)


async def _measure(scenario: Scenario, number: int, tries: int) -> list[dict[str, Any]]:
    """Run the load, make failures in its middle, and judge what became of the runs."""
    if number:
        await _in_thread(scenario.heal)
    async with scenario.calling() as caller:
        driver, failures, stopped_at = await _play(scenario, caller, f"try-{number}", tries)
    async with Client(scenario.url) as client:
        histories = await read_histories(client, driver.orders)
    traces = read_traces(scenario.place.traces)
    evidence = Evidence(driver.orders, histories, traces, durable=scenario.durable)
    starts = [failure.at - BEFORE_SECONDS for failure in failures[1:]]
    left = await asyncio.to_thread(scenario.tasks_left)
    windows = zip(failures, [0.0, *starts], [*starts, stopped_at], strict=True)
    rounds: list[dict[str, Any]] = []
    for failure, begin, end in windows:
        figures = evidence.judge(failure, Window(begin, end))
        if left and failure is failures[-1]:
            figures["wrong"].append(f"{left} tasks are left of runs that have ended")
        say(f"{scenario.name} {number + len(rounds) + 1}: {table.line(figures)}")
        for each in [*figures["wrong"][:5], *figures["late"][:2]]:
            say(f"  {each}")
        rounds.append({**figures, "late": len(figures["late"])})
    return rounds


async def _play(
    scenario: Scenario, caller: Caller, prefix: str, tries: int
) -> tuple[Driver, list[Failure], float]:
    """Make failures under one load, and wait until everything has ended."""
    driver, failures = Driver(caller, prefix, RATE), list[Failure]()
    if scenario.continuous:
        driver.every, driver.length = EVERY, LENGTH
    async with asyncio.TaskGroup() as group:
        load = group.create_task(driver.run())
        for number in range(tries):
            if number:
                await _in_thread(scenario.heal)
            await asyncio.sleep(BEFORE_SECONDS)
            failures.append(await _in_thread(scenario.fail))
            if tries > 1:
                say(f"{scenario.name} {number + 1}: made, {time.time() - failures[-1].at:.1f} s")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.sleep(AFTER_SECONDS)
            while any(order.is_open_since(failures[-1].at) for order in driver.orders):
                await asyncio.sleep(0.05)
            await asyncio.sleep(AFTER_SECONDS)
            driver.stop()
            stopped_at = time.time()
            await load
            await driver.confirm()
    return driver, failures, stopped_at


async def _in_thread(work: Callable[[], T]) -> T:
    """Do something that blocks; if this program is interrupted, it waits for nothing more."""
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        interrupted.set()
        raise
