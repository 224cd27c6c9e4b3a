"""Workers and the database killed while runs start, ticks fire, and what has ended is archived."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from holdfast.retention import Archive
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewSchedule, RunTarget, TickPolicy, When
from tests.crash.fleet import Fleet, patiently
from tests.crash.ledger import home_of, query_all
from tests.crash.test_kills_flows import until_compiled
from tests.crash.test_kills_schedules import until_fired_twice
from tests.databases import execute

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

SCHEDULES = 10
BLOWS = 12
KINDS = ("chain", "fan_out", "sheet")
LEASED = """
    update holdfast.runs set delete_after = now()
    where status <> 'running' and delete_after > now();
    update holdfast.sweeper set held_until = now() where held_until > now();
"""
HALVES = """
    select 'events', run_id from holdfast.events e
    where not exists (select from holdfast.runs r where r.run_id = e.run_id)
    union all
    select 'states', run_id from holdfast.step_states s
    where not exists (select from holdfast.runs r where r.run_id = s.run_id)
    union all
    select 'elements', run_id from holdfast.step_tasks x
    where not exists (select from holdfast.runs r where r.run_id = x.run_id)
    union all
    select 'tasks', run_id from holdfast.tasks t
    where not exists (select from holdfast.runs r where r.run_id = t.run_id)
    union all
    select 'log', run_id from holdfast.runs r
    where r.kind = 'workflow' and r.status <> 'running' and not exists (
        select from holdfast.events e where e.run_id = r.run_id and e.event_type like 'Workflow%ed'
            and e.idx > 0)
"""


async def test_each_run_is_in_the_database_or_in_the_archive(
    fleet: Fleet, server: EmbeddedServer, tmp_path: Path
) -> None:
    """S16, B8, T6. Runs are kept for no time at all, so all of them are swept while others run."""
    choose = random.Random(7)
    place = f"file://{tmp_path}/archive"
    for _ in range(4):
        fleet.start(archive=place)
    store = PostgresStore(home_of(server))
    await store.open()
    for number in range(SCHEDULES):
        await store.create_schedule(
            NewSchedule(
                name=f"crash/tick-{number}",
                when=When(every_seconds=1, anchor=number * 100_000),
                target=RunTarget(name="crash/chain", input="1", retention_seconds=0),
                policy=TickPolicy(overlap="allow", max_missed=1000),
            )
        )
    started: set[UUID] = set()
    await until_compiled(server)
    async with Client(server.url) as client:
        for blow in range(BLOWS):
            for _ in range(8):
                kind = choose.choice(KINDS)
                value: object = {"rows": 5, "seconds": 0} if kind == "sheet" else 1
                key = f"{kind}-{uuid4()}"
                start = partial(client.start, f"crash/{kind}", value, key=key, retention=0)
                started.add((await patiently(start)).run_id)
            await asyncio.sleep(choose.uniform(0.05, 0.3))
            if blow == BLOWS // 2:
                os.kill(server.postmaster_pid, signal.SIGKILL)
                await asyncio.to_thread(server.ensure_running)
            else:
                fleet.replace(choose.choice(fleet.workers))
            await asyncio.to_thread(check_halves, server)
        await until_fired_twice(server, SCHEDULES)
        for number in range(SCHEDULES):
            name = f"crash/tick-{number}"
            await patiently(partial(store.pause_schedule, name))
    ticks = await asyncio.to_thread(runs_of_ticks, server)
    assert len(ticks) > SCHEDULES
    assert len(set(ticks)) == len(ticks)
    await until_swept(server)
    archived = await Archive(place).find(started | set(ticks))
    assert archived.keys() == started | set(ticks)
    assert {each.record.status for each in archived.values()} == {"completed"}
    assert min(len(each.events) for each in archived.values()) > 1
    await store.close()


def runs_of_ticks(server: EmbeddedServer) -> list[UUID]:
    """Return the runs of all ticks; none may be lost between the first and the last."""
    with psycopg.connect(home_of(server)) as connection:
        for name, count, seconds in connection.execute(
            """
            select schedule, count(*), extract(epoch from max(tick_at) - min(tick_at))
            from holdfast.schedule_buckets where until is null group by schedule
            """
        ).fetchall():
            assert count == round(seconds) + 1, f"{name} lost a tick"
        query = "select run_id from holdfast.schedule_buckets where outcome = 'started'"
        return [row[0] for row in connection.execute(query).fetchall()]


def check_halves(server: EmbeddedServer) -> None:
    """Find nothing of a run that is not there, and no ended run without its end."""
    assert query_all(server, HALVES) == []


async def until_swept(server: EmbeddedServer) -> None:
    """Wait until all runs have ended and are gone; leases of killed sweepers end now."""
    async with asyncio.timeout(300):
        while True:
            for url in split_urls(server.url):
                execute(url, LEASED)
            if not query_all(server, "select from holdfast.runs limit 1"):
                return
            await asyncio.sleep(0.3)
