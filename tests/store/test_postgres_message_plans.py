"""What receives and sends read beside very many messages: plans must not depend on luck."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

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
SEND = "select holdfast.send_messages('plain', array_fill('1'::json, array[20]))"
ENTRIES = "select pg_stat_get_xact_tuples_returned('holdfast.messages_pkey'::regclass)"
PAGES = """
    select coalesce(sum(pg_stat_get_xact_blocks_fetched(c.oid)), 0)::int
    from pg_class c
    where c.relnamespace = 'holdfast'::regnamespace and (c.relname = any ($1) or c.oid in (
        select i.indexrelid from pg_index i join pg_class t on t.oid = i.indrelid
        where t.relname = any ($1) and t.relnamespace = 'holdfast'::regnamespace))
"""
EXPLAIN = """
    load 'auto_explain'; set auto_explain.log_min_duration = 0;
    set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;
    set auto_explain.log_timing = off; set auto_explain.log_format = json;
    set auto_explain.log_level = notice
"""
IN_FLIGHT = """
    select holdfast.send_messages('plain', array_fill('1'::json, array[{count}]));
    create temp table taken on commit drop as
    select row_number() over () as n, d.queue_id, d.delivery_id, p.place
    from generate_series({count} / {deliveries}, {count}, {count} / {deliveries}) as u (until),
        holdfast.receive_messages('plain', u.until * 0 + {count} / {deliveries}) as d,
        generate_subscripts(d.message_ids, 1) as p (place)
"""
ALL = "array_agg(queue_id order by n), array_agg(delivery_id order by n)"
PLACES = "array_agg(place order by n)"
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


async def test_counts_of_queues_read_as_many_dead_letters_as_they_count(meter: Meter) -> None:
    """Of 40,000 dead letters of four queues, which are counted for each of these."""
    for origin in range(4):
        await meter.connection.execute(
            f"select holdfast.create_queue('from-{origin}', p_max_receives => 1, "
            "p_dead_letters => 'plain')"
        )
    await meter.connection.execute(
        FILL.format(table="messages", queue="plain", count=40_000, ago=50)
    )
    for _ in range(2):
        assert await meter.pages("select * from holdfast.queue_metrics(null, 1000)") < 400
        assert await meter.pages("select * from holdfast.list_messages('plain', 1000)") < 400
        last = "(select place from holdfast.message_page('plain', 20000) offset 19999)"
        after = await meter.connection.fetchval(f"select {last}")
        page = f"select * from holdfast.message_page('plain', 1000, array{after!r}::text[])"
        assert await meter.pages(page.replace("None", "null")) < 400
        await meter.connection.execute("vacuum analyze holdfast.messages")


async def test_a_held_snapshot_does_not_make_receives_dearer(
    meter: Meter, database_url: str
) -> None:
    """Edge case 23. Dead rows stay as long as it is held; receives pass over them."""
    old = await asyncpg.connect(database_url)
    receive = "holdfast.receive_messages('plain', 20, p_since => $1, p_acks => $2)"

    async def turn(since: list[int | None] | None, acks: list[UUID]) -> asyncpg.Record:
        await meter.connection.execute(SEND)
        taken = await meter.connection.fetchrow(f"select * from {receive}", since, acks or None)
        assert taken is not None
        assert len(taken["message_ids"]) == 20
        return taken

    async def entries(*arguments: object) -> int:
        """Return how many entries of the index a receive reads."""
        async with meter.connection.transaction():
            before = await meter.connection.fetchval(ENTRIES)
            await meter.connection.fetchrow(f"select * from {receive}", *arguments)
            return int(await meter.connection.fetchval(ENTRIES)) - int(before)

    async with old.transaction(isolation="repeatable_read"):
        await old.fetchval("select count(*) from holdfast.messages")
        taken = await turn(None, [])
        for _ in range(60):
            taken = await turn(taken["newest"], [taken["delivery_id"]])
        await meter.connection.execute(SEND)
        assert await entries(taken["newest"], [taken["delivery_id"]]) < 100
        await meter.connection.execute(SEND)
        assert await entries(None, None) > 1000, "each entry of the past, where none is passed over"
    await old.close()


@pytest.mark.parametrize("deliveries", [1, 200])
@pytest.mark.parametrize(
    "call",
    [
        f"holdfast.ack_messages({ALL}, {PLACES})",
        f"holdfast.return_messages({ALL}, {PLACES})",
        f"holdfast.return_messages({ALL}, {PLACES}, p_errors => array_agg('it failed'::text))",
        f"holdfast.return_messages({ALL}, {PLACES}, p_discarded => array_agg(true))",
        f"holdfast.extend_deliveries({ALL}, 60)",
    ],
)
async def test_messages_that_end_together_are_not_compared_with_each_other(
    meter: Meter, call: str, deliveries: int
) -> None:
    """The queue keeps what is acknowledged, too."""
    await meter.connection.execute("update holdfast.queues set keep_seconds = 60")
    async with meter.connection.transaction():
        for each in IN_FLIGHT.format(count=200, deliveries=deliveries).split(";"):
            await meter.connection.execute(each)
        passed_over = await _passed_over(meter.connection, f"select {call} from taken")
    assert passed_over < 20 * 200


async def test_groups_that_are_received_together_are_not_compared_with_each_other(
    meter: Meter,
) -> None:
    await meter.connection.execute(
        "select holdfast.send_messages('fifo', array_fill('1'::json, array[200]), p_groups => "
        "array(select 'g' || n from generate_series(1, 200) n))"
    )
    receive = "select holdfast.receive_messages('fifo', 200)"
    assert await _passed_over(meter.connection, receive) < 20 * 200


async def test_known_deduplication_ids_are_found_by_a_hash(meter: Meter) -> None:
    """Not by a search through all ids that are new, for each."""
    send = "select holdfast.send_messages('plain', array['1', '2']::json[], p_dedup_ids => $${}$$)"
    await meter.connection.execute(send.format("{a,b}"))
    plans = await _plans(meter.connection, send.format("{b,c}"))
    assert json.dumps(plans).count("hashed SubPlan") == 2, "of the lock and of the update"


async def _passed_over(connection: asyncpg.Connection, query: str) -> int:
    """Return how many rows the statements within a call read, or compared, in vain."""
    return sum(map(_in_vain, await _plans(connection, query)))


async def _plans(connection: asyncpg.Connection, query: str) -> list[Any]:
    """Return the plans of the statements within a call."""
    plans: list[Any] = []

    def keep(_: object, message: Any) -> None:
        plans.append(json.loads(str(message.message).partition("plan:")[2])["Plan"])

    await connection.execute(EXPLAIN)
    connection.add_log_listener(keep)
    await connection.execute(query)
    await connection.execute("set auto_explain.log_min_duration = -1")
    connection.remove_log_listener(keep)
    assert plans
    return plans


def _in_vain(node: dict[str, Any]) -> int:
    removed = node.get("Rows Removed by Join Filter", 0) + node.get("Rows Removed by Filter", 0)
    return int(removed * node["Actual Loops"]) + sum(map(_in_vain, node.get("Plans", ())))
