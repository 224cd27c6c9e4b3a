"""Workers and the database killed while schedules fire: one run a tick, and no tick lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import psycopg
import pytest

from holdfast.database.embedded import EmbeddedServer
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewSchedule, Overlap, RunTarget, TickPolicy, When
from tests.crash.fleet import Fleet, patiently

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

POLICIES: tuple[Overlap, ...] = ("allow", "buffer_all", "skip", "terminate_running")
SCHEDULES = 40
BLOWS = 14


async def test_workers_killed_while_schedules_fire_start_one_run_a_tick(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """T6. Forty schedules of every second, four workers, the postmaster killed once."""
    choose = random.Random(5)
    for _ in range(4):
        fleet.start()
    store = PostgresStore(server.url)
    await store.open()
    for number in range(SCHEDULES):
        await store.create_schedule(
            NewSchedule(
                name=f"crash/tick-{number}",
                when=When(every_seconds=1, anchor=number * 25_000),
                target=RunTarget(name="crash/chain", input="1"),
                policy=TickPolicy(overlap=POLICIES[number % len(POLICIES)], max_missed=1000),
            )
        )
    for blow in range(BLOWS):
        await asyncio.sleep(choose.uniform(0.05, 0.4))
        if blow == BLOWS // 2:
            os.kill(server.postmaster_pid, signal.SIGKILL)
            await asyncio.to_thread(server.ensure_running)
        else:
            fleet.replace(choose.choice(fleet.workers))
    await until_fired_twice(server, SCHEDULES)
    for number in range(SCHEDULES):
        await patiently(lambda number=number: store.pause_schedule(f"crash/tick-{number}"))
    await store.close()
    check_ticks(server)


async def until_fired_twice(server: EmbeddedServer, schedules: int) -> None:
    """Wait until so many schedules have had a second tick."""
    query = """
        select count(*) from (
            select from holdfast.schedule_buckets group by schedule having count(*) > 1) as fired
    """
    async with asyncio.timeout(120):
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as asking:
            while await (await asking.execute(query)).fetchone() != (schedules,):
                await asyncio.sleep(0.05)


def check_ticks(server: EmbeddedServer) -> None:
    """Compare buckets, runs and moments: each tick up to the last has one bucket, and one run."""
    with psycopg.connect(server.url) as connection:
        tick_gaps = connection.execute(
            """
            select s.name, count(b.*), extract(epoch from max(b.tick_at) - min(b.tick_at))
            from holdfast.schedules s left join holdfast.schedule_buckets b on b.schedule = s.name
            where b.until is null
            group by s.name
            """
        ).fetchall()
        assert len(tick_gaps) == SCHEDULES, "a schedule never fired"
        for name, count, seconds in tick_gaps:
            assert count == round(seconds) + 1, f"{name} lost a tick"
        assert sum(count for _, count, _ in tick_gaps) > SCHEDULES
        outcomes = dict(
            connection.execute(
                "select outcome, count(*) from holdfast.schedule_buckets group by outcome"
            ).fetchall()
        )
        assert outcomes["started"] > SCHEDULES
        stray = connection.execute(
            """
            select count(*) from holdfast.runs r full join holdfast.schedule_buckets b
                on b.run_id = r.run_id and b.outcome = 'started'
            where (r.run_id is null and b.outcome = 'started')
                or (b.schedule is null and r.key like 'crash/tick-%')
            """
        ).fetchone()
        assert stray == (0,), "runs without ticks, or ticks without runs"
        twice = connection.execute(
            "select key from holdfast.runs where key is not null group by key having count(*) > 1"
        ).fetchall()
        assert twice == []
        buffered = connection.execute(
            """
            select count(*) from holdfast.schedules s
            where s.buffered <> (
                select count(*) from holdfast.schedule_buckets b
                where b.schedule = s.name and b.outcome = 'buffered')
            """
        ).fetchone()
        assert buffered == (0,)
