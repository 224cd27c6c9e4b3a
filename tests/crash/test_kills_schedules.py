"""Workers and the database killed while schedules fire: one run or message a tick, none lost."""

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
from holdfast.types import (
    NewSchedule,
    NewSubscription,
    Overlap,
    QueueSettings,
    QueueTarget,
    RunTarget,
    SendTarget,
    Target,
    TickPolicy,
    When,
)
from tests.crash.fleet import Fleet, patiently
from tests.crash.ledger import check_ticks, home_of

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

POLICIES: tuple[Overlap, ...] = ("allow", "buffer_all", "skip", "terminate_running")
STARTING = 40
SENDING = 8  # half of them publish to a topic, half send to a queue
SCHEDULES = STARTING + SENDING
BLOWS = 14


async def test_workers_killed_while_schedules_fire_start_one_run_a_tick(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """T6. Forty schedules of every second, four workers, the postmaster killed once.

    Eight more publish or send: one message a tick.
    """
    choose = random.Random(5)
    for _ in range(4):
        fleet.start()
    store = PostgresStore(home_of(server))
    await store.open()
    for queue in ("sent", "published"):
        await store.create_queue(QueueSettings(name=queue))
    topic = NewSubscription(pattern="clock.#", target=QueueTarget(queue="published"))
    await store.subscribe(topic)
    for number in range(SCHEDULES):
        await store.create_schedule(
            NewSchedule(
                name=f"crash/tick-{number}",
                when=When(every_seconds=1, anchor=number * 25_000),
                target=target_of(number),
                policy=TickPolicy(overlap=policy_of(number), max_missed=1000),
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
    check_ticks(server, SCHEDULES, "crash/tick-%")
    check_messages(server)


def target_of(number: int) -> Target:
    """Return what a schedule starts or sends."""
    if number < STARTING:
        return RunTarget(name="crash/chain", input="1")
    if number % 2:
        return SendTarget(kind="queue", name="sent")
    return SendTarget(kind="topic", name="clock.tick")


def policy_of(number: int) -> Overlap:
    """Return the policy of a schedule."""
    return POLICIES[number % len(POLICIES)] if number < STARTING else "allow"


async def until_fired_twice(server: EmbeddedServer, schedules: int) -> None:
    """Wait until so many schedules have had a second tick."""
    query = """
        select count(*) from (
            select from holdfast.schedule_buckets group by schedule having count(*) > 1) as fired
    """
    async with asyncio.timeout(120):
        async with await psycopg.AsyncConnection.connect(
            home_of(server), autocommit=True
        ) as asking:
            while await (await asking.execute(query)).fetchone() != (schedules,):
                await asyncio.sleep(0.05)


def check_messages(server: EmbeddedServer) -> None:
    """Compare buckets and messages: each tick that was sent has one, and each message a tick."""
    with psycopg.connect(home_of(server)) as connection:
        buckets = connection.execute(
            """
            select b.schedule || '@' || holdfast._tick_text(b.tick_at), b.message_id, b.reached
            from holdfast.schedule_buckets b where b.outcome = 'sent'
            """
        ).fetchall()
        messages = connection.execute(
            """
            select q.name, coalesce(m.headers ->> 'holdfast-event', concat_ws('@',
                m.headers ->> 'holdfast-schedule', m.headers ->> 'holdfast-scheduled-at')),
                m.message_id
            from holdfast.messages m join holdfast.queues q using (queue_id)
            """
        ).fetchall()
    sent = {(key, message_id) for key, message_id, _ in buckets if message_id is not None}
    published = {key for key, _, reached in buckets if reached == 1}
    assert len(sent) + len(published) == len(buckets) == len(messages) > SENDING
    assert {(key, message_id) for queue, key, message_id in messages if queue == "sent"} == sent
    assert {key for queue, key, _ in messages if queue == "published"} == published
