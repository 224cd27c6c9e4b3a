"""One chaos from its beginning to its verdict."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg

from holdfast import Client
from holdfast.database.urls import split_urls
from tests.chaos.audit import LEFT, Audit
from tests.chaos.blows import strike
from tests.chaos.load import Caller, Load
from tests.chaos.names import READERS, SCHEDULES
from tests.chaos.readers import read_notes
from tests.chaos.world import World
from tests.crash.people import decide_all

PATIENCE_SECONDS = 180.0  # for what has begun to end, once nothing is killed any more
PROGRESS_SECONDS = 10.0
# What `check_ticks` needs to have seen.
LATE = f"""
select greatest(0, {SCHEDULES} + 1 - count(*))
from holdfast.schedule_buckets where outcome = 'started'
"""
OPEN = f"""
select (select count(*) from holdfast.runs where status = 'running') + {LEFT}
    + (select count(*) from holdfast.forwards)
"""


Strike = Callable[[World, random.Random, Counter[str]], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Verdict:
    """What was done, what was seen, and what is wrong."""

    load: Load
    blows: Counter[str]
    seen: Counter[str]
    faults: list[str]


async def chaos(
    world: World,
    seed: int,
    seconds: float,
    processes: int,
    say: Callable[[str], None] = lambda _: None,
    strike: Strike = strike,
) -> Verdict:
    """Let everything run, and kill what can be killed, for so long; then let it end, and look.

    There are so many worker processes of each database.
    """
    choose = random.Random(seed)
    blows = Counter[str]()
    for _ in range(processes):
        world.begin_workers()
    async with (
        Client(world.url, redis=world.redis_url or None) as client,
        httpx.AsyncClient(base_url=world.http_url, timeout=30) as http,
    ):
        load = Load(world, Caller(client, http), random.Random(choose.random()))
        await load.prepare()
        async with asyncio.TaskGroup() as group:
            always = [group.create_task(decide_all(client)), group.create_task(world.supervise())]
            running = group.create_task(load.run())
            striking = group.create_task(strike(world, random.Random(choose.random()), blows))
            telling = group.create_task(_tell(load, blows, seconds, say))
            await asyncio.wait([striking], timeout=seconds)
            striking.cancel()
            await asyncio.wait([striking])
            await asyncio.to_thread(world.ensure_running)
            load.stop()
            late = await _until_over(world, load, running)
            for task in (*always, telling, running):
                task.cancel()
    load.errors += late
    return Verdict(load, blows, *await look(world, load))


async def look(world: World, load: Load) -> tuple[Counter[str], list[str]]:
    """Return what is seen in the end, and what is wrong."""
    async with Client(world.url) as client:
        audit = Audit(world, load, client)
        audit.faults += load.errors
        await audit.check_all()
    return audit.seen, audit.faults


async def _until_over(world: World, load: Load, running: asyncio.Task[None]) -> list[str]:
    """Wait until all that began has ended; return what has not."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.shield(running)
            [home, *others] = split_urls(world.url)
            await _until_none(home, LATE)
            await load.pause_schedules()
            for url in (home, *others, home, *others):  # one may have sent something to another
                await _until_none(url, OPEN)
            await _until_read(world)
    except TimeoutError:
        open_ = [each for each in load.started if each not in load.results]
        return [f"not over after {PATIENCE_SECONDS:.0f} s; open: {open_[:5]}"]
    return []


async def _until_none(url: str, left: str) -> None:
    """Wait until a count is 0."""
    while True:
        with suppress(psycopg.OperationalError):  # it recovers from the last blow
            async with await psycopg.AsyncConnection.connect(url) as connection:
                while (row := await (await connection.execute(left.encode())).fetchone()) != (0,):
                    await connection.rollback()
                    assert row is not None
                    await asyncio.sleep(0.05)
                return
        await asyncio.sleep(0.05)


async def _until_read(world: World) -> None:
    """Wait until the readers are at the end of each stream."""
    told = set(world.told.read_text().split())
    for how in READERS:
        while told - {
            run for run, notes in read_notes(world.notes(how)).items() if notes[-1]["what"] == "end"
        }:
            await asyncio.sleep(0.05)


async def _tell(
    load: Load, blows: Counter[str], seconds: float, say: Callable[[str], None]
) -> None:
    """Say now and then how far it is."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        past = time.monotonic() - began
        ended, started = len(load.results), len(load.started)
        say(
            f"{past:5.0f} of {seconds:.0f} s: {blows.total()} blows, {started} runs started by "
            f"callers, {ended} results, {len(load.sent)} messages, {len(load.published)} events"
        )
