"""What receives and sends read beside very many messages: plans must not depend on luck."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

pytestmark = pytest.mark.fresh_database

TABLES = [
    "messages",
    "filtered_messages",
    "grouped_messages",
    "group_tokens",
    "deliveries",
    "queues",
]
PAGES = """
    select coalesce(sum(pg_stat_get_xact_blocks_fetched(c.oid)), 0)::int
    from pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and (c.relname = any ($1) or c.oid in (
        select i.indexrelid from pg_index i join pg_class t on t.oid = i.indrelid
        where t.relname = any ($1) and t.relnamespace = 'holdfast'::regnamespace))
"""
FILL = """
    insert into holdfast.{table} (queue_id, priority, visible_at, message_id, sent_at, payload)
    select q.queue_id, 2, holdfast.now() + n * interval '1 ms' - interval '{ago} seconds',
        nextval('holdfast.message_ids'), holdfast.now(), json_build_object('n', n)
    from generate_series(1, {count}) as n, holdfast.queues q where q.name = '{queue}'
"""


class Meter:
    """Counts the pages that calls on one session read; its plans were made while all was empty."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def pages(self, text: str) -> int:
        """Return how many pages a call reads, in a transaction of its own."""
        async with self.connection.transaction():
            before = await self.connection.fetchval(PAGES, TABLES)
            await self.connection.execute(text)
            return int(await self.connection.fetchval(PAGES, TABLES)) - int(before)


@pytest.fixture
async def meter(database_url: str) -> AsyncIterator[Meter]:
    """Provide a session that has called everything once."""
    connection = await asyncpg.connect(database_url)
    await connection.execute("set synchronous_commit = off")
    for name, options in (("plain", ""), ("some", ", p_filters => true"), ("fifo", ", true")):
        await connection.execute(f"select holdfast.create_queue('{name}'{options})")
        group = ", 'ann'" if name == "fifo" else ""
        for _ in range(6):
            await connection.execute(f"select holdfast.send('{name}', '1'{group})")
            await connection.execute(
                f"select holdfast.ack(r.receipt) from holdfast.receive('{name}') r"
            )
    yield Meter(connection)
    await connection.close()


async def test_a_receive_reads_few_pages_beside_a_hundred_thousand_messages(meter: Meter) -> None:
    """Edge case 24. Due ones and delayed ones, without statistics and with them."""
    await meter.connection.execute(
        FILL.format(table="messages", queue="plain", count=100_000, ago=50)
    )
    for _ in range(2):
        assert await meter.pages("select holdfast.receive('plain', 10)") < 80
        assert await meter.pages("select holdfast.send('plain', '1')") < 30
        assert (
            await meter.pages(
                "select holdfast.ack(variadic array("
                "select r.receipt from holdfast.receive('plain', 100) r))"
            )
            < 800
        )
        await meter.connection.execute("analyze holdfast.messages")


async def test_a_condition_reads_few_pages_beside_many_that_do_not_meet_it(meter: Meter) -> None:
    await meter.connection.execute(
        FILL.format(table="filtered_messages", queue="some", count=20_000, ago=50)
    )
    rare = """select holdfast.receive('some', 1, p_contains => '{"n": 19000}')"""
    assert await meter.pages(rare) < 150


async def test_a_receive_reads_few_pages_beside_ten_thousand_groups(meter: Meter) -> None:
    """Edge case 24, the second half."""
    await meter.connection.execute(
        "select holdfast.send_messages('fifo', array_fill('1'::json, array[10000]), p_groups => "
        "array(select 'g' || n from generate_series(1, 10000) n))"
    )
    assert await meter.pages("select holdfast.receive('fifo', 10)") < 400
    await meter.connection.execute("analyze holdfast.grouped_messages, holdfast.group_tokens")
    assert await meter.pages("select holdfast.receive('fifo', 10)") < 400
