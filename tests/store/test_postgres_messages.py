"""Message queues on PostgreSQL: transactions that interleave, sessions that end, many messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import asyncpg
import pytest

from holdfast.database.migrate import migrate
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewMessage, Receipt, Receive


class Session:
    """A session with a transaction of its own, which the test ends."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.connection.execute("begin")

    async def commit(self) -> None:
        """Commit it."""
        await self.connection.execute("commit")

    async def rollback(self) -> None:
        """Roll it back."""
        await self.connection.execute("rollback")

    async def value(self, text: str, *arguments: object) -> Any:
        """Return the only value of a query."""
        return await self.connection.fetchval(text, *arguments)

    async def take(self, limit: int = 10) -> list[Any]:
        """Receive from `mail`; return (payload, receipt)."""
        rows = await self.connection.fetch(
            "select payload, receipt from holdfast.receive('mail', $1)", limit
        )
        return [tuple(row) for row in rows]

    async def payloads(self, limit: int = 10) -> list[str]:
        """Receive from `mail`; return the payloads."""
        return [payload for payload, _ in await self.take(limit)]


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[list[Session]]:
    """Provide four sessions of an empty database."""
    opened = [Session(await asyncpg.connect(database_url)) for _ in range(4)]
    yield opened
    for each in opened:
        await each.connection.close()


async def until_waits(watcher: Session, other: Session) -> None:
    """Wait until the other session waits for a lock."""
    pid = other.connection.get_server_pid()
    async with asyncio.timeout(60):
        while not await watcher.value(
            "select exists (select from pg_stat_activity where pid = $1 "
            "and wait_event_type = 'Lock')",
            pid,
        ):
            await asyncio.sleep(0.01)


def soon(call: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin a call that may wait."""
    return asyncio.ensure_future(call)


async def create(session: Session, options: str = "") -> None:
    """Create the queue `mail`."""
    await session.value(f"select holdfast.create_queue('mail'{options})")


async def send(session: Session, payload: str, group: str | None = None) -> int:
    """Send a message; return its id."""
    return int(await session.value("select holdfast.send('mail', $1, $2)", payload, group))


async def test_a_group_that_an_open_receive_has_is_left_alone(sessions: list[Session]) -> None:
    """Edge case 1."""
    a, b, *_ = sessions
    await create(a, ", p_fifo => true")
    for payload in ("1", "2"):
        await send(a, payload, "ann")
    await a.begin()
    assert await a.payloads() == ["1"]
    async with asyncio.timeout(30):
        assert await b.payloads() == []
    await a.rollback()
    assert await b.payloads() == ["1"]


async def test_a_send_to_a_group_whose_last_message_is_being_acknowledged(
    sessions: list[Session],
) -> None:
    """Edge case 2."""
    a, b, c, _ = sessions
    await create(a, ", p_fifo => true")
    await send(a, "1", "ann")
    [(_, receipt)] = await a.take()
    await a.begin()
    assert await a.value("select holdfast.ack($1)", receipt) == [True]
    await send(b, "2", "ann")
    assert await c.payloads() == []
    await a.commit()
    assert await c.payloads() == ["2"]


async def test_an_acknowledgement_against_the_end_of_the_visibility(
    sessions: list[Session],
) -> None:
    """Edge case 5, in both orders."""
    a, b, c, _ = sessions
    await create(a)
    expire = "update holdfast.deliveries set visible_at = now() - interval '1 hour'"
    await send(a, "1")
    [(_, receipt)] = await a.take()
    await a.connection.execute(expire)
    await a.begin()
    assert await a.value("select holdfast.ack($1)", receipt) == [True]
    assert await b.payloads() == []  # passes over what is being acknowledged
    await a.commit()
    assert await b.payloads() == []

    await send(a, "2")
    [(_, receipt)] = await a.take()
    await a.connection.execute(expire)
    await b.begin()
    assert await b.payloads() == ["2"]
    late = soon(c.value("select holdfast.ack($1)", receipt))
    await until_waits(a, c)
    await b.commit()
    assert await late == [False]


async def two_in_flight(session: Session) -> tuple[str, str, str]:
    """Receive two messages together and one alone; return their receipts."""
    await create(session)
    await send(session, "1")
    await send(session, "2")
    (_, one), (_, two) = await session.take()
    await send(session, "3")
    [(_, alone)] = await session.take()
    return one, two, alone


EXTENDED = """
    select array_agg(visible_at > now() + interval '1 h' order by cardinality(message_ids) desc)
    from holdfast.deliveries
"""


async def test_a_delivery_that_another_transaction_changes_is_extended(
    sessions: list[Session],
) -> None:
    """Fault: the answer was true, but its visibility ended when it had ended before."""
    a, b, _, _ = sessions
    one, two, _ = await two_in_flight(a)
    await a.connection.execute(
        "alter function holdfast.extend_deliveries(int[], uuid[], float8) set lock_timeout = '60s'"
    )
    await a.begin()
    assert await a.value("select holdfast.ack($1)", one) == [True]
    extended = soon(b.value("select holdfast.extend(array[$1], 7200)", two))
    waits = soon(until_waits(sessions[2], b))
    await asyncio.wait({waits, extended}, return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    await a.commit()
    assert await extended == [True]
    assert await b.value(EXTENDED) == [True, False]


async def test_a_delivery_that_a_long_transaction_has_keeps_no_other_from_being_extended(
    sessions: list[Session],
) -> None:
    a, b, _, _ = sessions
    one, two, alone = await two_in_flight(a)
    await a.begin()
    assert await a.value("select holdfast.ack($1)", one) == [True]
    assert await b.value("select holdfast.extend(array[$1, $2], 7200)", two, alone) == [True, True]
    await a.rollback()
    assert await b.value(EXTENDED) == [False, True]


async def test_deliveries_that_are_extended_are_acknowledged_with_the_others(
    sessions: list[Session],
) -> None:
    """F30. The acknowledgement of both waits for the extension, and finds the row's new place."""
    a, b, watcher, _ = sessions
    await create(a)
    await send(a, "1")
    [(_, first)] = await a.take()
    await send(a, "2")
    assert await a.payloads() == ["2"]
    await a.begin()
    assert await a.value("select holdfast.extend(array[$1], 60)", first) == [True]
    acked = soon(
        b.value(
            "select (holdfast.ack_deliveries(queue_id, array_agg(delivery_id))).acked "
            "from holdfast.deliveries group by queue_id"
        )
    )
    await until_waits(watcher, b)
    await a.commit()
    assert await acked == [True, True]
    assert await b.value("select count(*) from holdfast.deliveries") == 0


async def test_one_deduplication_id_in_two_transactions(sessions: list[Session]) -> None:
    """Edge case 6."""
    a, b, *_ = sessions
    await create(a)
    text = "select holdfast.send('mail', '1', p_dedup_id => $1)"
    for end, is_same in ((a.commit, True), (a.rollback, False)):
        await a.begin()
        first = await a.value(text, str(is_same))
        second = soon(b.value(text, str(is_same)))
        await until_waits(sessions[2], b)
        await end()
        assert (await second == first) is is_same
    assert len(await a.payloads()) == 2


async def test_a_deduplication_id_that_expires_while_it_is_swept(sessions: list[Session]) -> None:
    """Edge case 6: the row that was in the way is gone when it is looked at."""
    a, b, c, _ = sessions
    await create(a, ", p_dedup_seconds => 0")
    text = "select holdfast.send('mail', $2, p_dedup_id => $1)"
    await a.value(text, "x", "1")
    await a.begin()
    await a.value("select holdfast.sweep_queues()")
    second = soon(b.value(text, "x", "2"))
    await asyncio.sleep(0.05)
    await a.commit()
    await second
    assert sorted(await c.payloads()) == ["1", "2"]


async def test_a_sweep_after_many_queues_is_no_longer_than_after_one(
    sessions: list[Session],
) -> None:
    """Fault: each of them added a batch to the statement, which took longer than a call may."""
    a, *_ = sessions
    for name in "abc":
        await a.value("select holdfast.create_queue($1)", name)
        for payload in "123":
            await a.value("select holdfast.send($1, $2)", name, payload)
    await a.value("delete from holdfast.queues")
    assert [await a.value("select holdfast.sweep_queues(3)") for _ in range(4)] == [3, 3, 3, 0]


async def test_a_purge_against_a_receive(sessions: list[Session]) -> None:
    """Edge case 7: what the purge leaves of a group is received, although its tokens were read."""
    a, b, *_ = sessions
    await create(a, ", p_fifo => true")
    for payload in ("1", "2", "3"):
        await send(a, payload, "ann")
    await a.begin()
    assert await a.value("select holdfast.purge_messages('mail', 2)") == 2
    receive = soon(b.payloads())
    await until_waits(a, b)
    await a.commit()
    assert await receive == []
    assert await b.payloads() == ["3"]


async def test_a_queue_that_is_deleted_while_it_is_used(sessions: list[Session]) -> None:
    """Edge case 8: nothing of it comes up again, and nothing of it is left."""
    a, b, watcher, _ = sessions
    await create(a)
    await send(a, "1")
    [(_, receipt)] = await a.take()
    await a.begin()
    await send(a, "2")
    deleted = soon(b.value("select holdfast.delete_queue('mail')"))
    await until_waits(watcher, b)
    await a.commit()
    assert await deleted is True
    for table in ("messages", "deliveries", "bodies"):
        assert await b.value(f"select count(*) from holdfast.{table}") == 0
    assert await b.value("select holdfast.ack($1)", receipt) == [False]
    await create(b)
    assert await b.payloads() == []


SENDS = {
    "send": ("", "select holdfast.send('mail', '1')"),
    "delayed": ("", "select holdfast.send('mail', '1', p_delay_seconds => 1)"),
    "together": ("", "select holdfast.send_messages('mail', '{1,2}')"),
    "once": ("", "select holdfast.send('mail', '1', p_dedup_id => 'a')"),
    "grouped": (", p_fifo => true", "select holdfast.send('mail', '1', 'a')"),
    "filtered": (", p_filters => true", "select holdfast.send('mail', '1')"),
    "published": ("", "select holdfast.publish('a.b', '1')"),
}


@pytest.mark.parametrize("kind", SENDS)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_send_and_the_deletion_of_its_queue_wait_for_each_other(
    sessions: list[Session], kind: str, ends: str
) -> None:
    """A12. Whichever comes first: no message is confirmed, and neither there nor deleted."""
    a, b, watcher, _ = sessions
    options, text = SENDS[kind]
    await create(a, options)
    await a.value('select holdfast.subscribe(\'{"pattern":"a.*","kind":"queue","target":"mail"}\')')
    await a.begin()
    await a.value("select holdfast.delete_queue('mail')")
    sent = soon(b.value(text))
    await until_waits(watcher, b)
    await (a.commit() if ends == "commit" else a.rollback())
    if ends == "rollback" or kind == "published":
        await sent  # a queue that does not exist any more is left out of what is published
    else:
        with pytest.raises(asyncpg.PostgresError) as refused:
            await sent
        assert refused.value.sqlstate == "HFQ01"
    assert bool(await a.value("select count(*) from holdfast.list_queues()")) is (
        ends == "rollback"
    )
    found = [
        await a.value(f"select count(*) from holdfast.{table}")
        for table in ("messages", "filtered_messages", "grouped_messages")
    ]
    assert bool(sum(found)) is (ends == "rollback")


async def test_two_redrives_move_each_dead_letter_once(sessions: list[Session]) -> None:
    """Edge case 11."""
    a, b, *_ = sessions
    await create(a, ", p_max_receives => 1")
    for payload in ("1", "2"):
        await send(a, payload)
    await a.value(
        "select holdfast.nack((select array_agg(receipt) from holdfast.receive('mail', 10)))"
    )
    text = "select holdfast.redrive_messages('mail', 1)"
    await a.begin()
    assert await a.value(text) == 1
    assert await b.value(text) == 1
    await a.commit()
    assert await b.value(text) == 0
    assert sorted(await b.payloads()) == ["1", "2"]


async def test_a_send_that_commits_late_is_found_behind_the_watermark(
    sessions: list[Session], database_url: str
) -> None:
    """Edge case 14."""
    a, b, *_ = sessions
    await create(a)
    await a.begin()
    await send(a, "1")
    await send(b, "2")
    store = PostgresStore(database_url)
    await store.open()
    first = await store.receive_messages(Receive(queue="mail"))
    await a.commit()
    behind = await store.receive_messages(Receive(queue="mail", since=first.newest))
    assert list(behind.deliveries) == []
    [late] = (await store.receive_messages(Receive(queue="mail"))).deliveries
    assert [message.payload for message in late.messages] == ["1"]
    await store.close()


async def test_a_batch_of_one_moment_is_not_hidden_by_the_watermark(
    sessions: list[Session], database_url: str
) -> None:
    store = PostgresStore(database_url)
    await store.open()
    await create(sessions[0])
    await store.send_messages("mail", [NewMessage(str(n)) for n in range(10)])
    first = await store.receive_messages(Receive(queue="mail", limit=4))
    second = await store.receive_messages(Receive(queue="mail", limit=4, since=first.newest))
    third = await store.receive_messages(Receive(queue="mail", limit=4, since=second.newest))
    found = [each for answer in (first, second, third) for each in answer.deliveries]
    assert [len(each.messages) for each in found] == [4, 4, 2]
    await store.close()


async def test_a_session_that_dies_gives_back_what_it_had_not_committed(
    sessions: list[Session],
) -> None:
    """Edge cases 15 and 16: acknowledgements that travelled with the receive are undone too."""
    a, b, *_ = sessions
    await create(a)
    await send(a, "1")
    await send(a, "2")
    [(_, receipt)] = await a.take(1)
    delivery_id = receipt.split(".")[1]
    await b.begin()
    acked = await b.value(
        "select acked from holdfast.receive_messages('mail', 1, p_acks => $1)", [delivery_id]
    )
    assert acked == [True]
    await a.value("select pg_terminate_backend($1)", b.connection.get_server_pid())
    async with asyncio.timeout(60):
        while await a.payloads() != ["2"]:
            await asyncio.sleep(0.01)
    assert await a.value("select holdfast.ack($1)", receipt) == [True]


async def test_deliveries_that_are_acknowledged_together_leave_no_bodies(
    sessions: list[Session],
) -> None:
    """What is large is kept apart from its message, and goes with it."""
    session, *_ = sessions
    await create(session)
    for _ in range(2):
        await send(session, f'"{"x" * 9000}"')
    query = "select queue_id, delivery_id from holdfast.receive_messages('mail')"
    one, other = [await session.connection.fetchrow(query) for _ in range(2)]
    assert one is not None
    assert other is not None
    ids = [one["delivery_id"], other["delivery_id"]]
    ack = "select acked from holdfast.ack_deliveries($1, $2)"
    assert await session.value(ack, one["queue_id"], ids) == [True, True]
    assert await session.value("select count(*) from holdfast.bodies") == 0


async def test_two_schemas_share_nothing(sessions: list[Session], database_url: str) -> None:
    """Edge case 25: not even the locks of groups with the same names."""
    a, b, *_ = sessions
    await migrate(a.connection, schema="second")
    for schema in ("holdfast", "second"):
        await a.value(f"select {schema}.create_queue('mail', p_fifo => true)")
        await a.value(f"select {schema}.send('mail', '1', 'ann')")
    await a.begin()
    assert await a.payloads() == ["1"]
    assert await b.value("select payload from second.receive('mail')") == "1"
    await a.rollback()


async def test_attempts_may_be_many(sessions: list[Session]) -> None:
    """Edge case 27."""
    a, *_ = sessions
    await create(a)
    await send(a, "1")
    await a.connection.execute("update holdfast.messages set attempts = 100000")
    assert await a.value("select attempts from holdfast.receive('mail')") == 100_001


async def test_values_that_are_refused_have_codes(sessions: list[Session]) -> None:
    a, *_ = sessions
    await create(a)
    for text, code in (
        ("select holdfast.send('mial', '1')", "HFQ01"),
        ("select holdfast.send('mail', null)", "22004"),
        ("select holdfast.send(null, '1')", "22004"),
        ("select holdfast.send('mail', '\"\\u0000\"')", "22023"),
        ("select holdfast.send('mail', '1', p_at => 'infinity')", "22023"),
        ("select holdfast.send('mail', '1', p_at => '-infinity')", "22023"),
        ("select holdfast.send('mail', '1', p_headers => '{\"a\":1}')", "22023"),
        ("select holdfast.send_messages('mail', '{1,2}', '{0}')", "22023"),
        ("select holdfast.ack('1.2.3')", "22023"),
        ("select holdfast.nack(null)", "22004"),
        ("select holdfast.create_queue('mail', true)", "HFQ02"),
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await a.value(text)
        assert caught.value.sqlstate == code, text


READABLE = (
    '"a \\n \\" b"',
    '"\\u00e9"',
    "[" * 256 + "]" * 256,  # 512 bytes: the longest that is not looked at closely
    "[" * 256 + " " * 200 + "]" * 256,
    f"[{'[],' * 300}1]",  # many, but not deep
    f'"{"x" * 1494}"',
    f'"{"x" * 1495}"',
)
UNREADABLE = (
    '"\\u0000"',
    '["\\\\", "\\ud800"]',
    "[" * 257 + "]" * 257,
    "[" * 600 + "]" * 600,
    f'["{"x" * 600}", "\\u0000"]',
    "[" * 3000 + "]" * 3000,  # compressed in a table
)


async def test_each_payload_is_looked_at_however_it_is_sent(sessions: list[Session]) -> None:
    a, *_ = sessions
    await create(a)
    await a.value("select holdfast.send_messages('mail', $1)", [*READABLE, "1"])
    for payload in READABLE:
        await send(a, payload)
    assert await a.payloads(20) == [*READABLE, "1", *READABLE]
    await a.connection.execute("create temporary table texts (payload json)")
    for payload in UNREADABLE:
        await a.connection.execute("insert into texts values ($1)", payload)
        for text in (
            "select holdfast.send('mail', payload) from texts",
            "select holdfast.send_messages('mail', array_agg(payload) || '1'::json) from texts",
        ):
            with pytest.raises(asyncpg.InvalidParameterValueError, match=r"^(the )?payload"):
                await a.value(text)
        await a.connection.execute("truncate texts")
    assert await a.payloads() == []


async def test_receipts_are_texts_in_sql(sessions: list[Session]) -> None:
    a, *_ = sessions
    await create(a)
    for payload in ("1", "2", "3"):
        await send(a, payload)
    (_, one), (_, two), (_, three) = await a.take()
    assert await a.value("select holdfast.ack($1, $2)", one, one) == [True, False]
    assert await a.value("select holdfast.extend(array[$1], 60)", two) == [True]
    assert await a.value("select holdfast.nack(array[$1], 0, 'no')", three) == [True]
    assert str(Receipt.parse(two)) == two
    assert await a.payloads() == ["3"]


@pytest.mark.parametrize("payload", ["1e400000", '{"a": [-1e400000]}', "1e-400000"])
async def test_numbers_that_conditions_cannot_be_compared_with_are_refused(
    sessions: list[Session], payload: str
) -> None:
    one = sessions[0]
    await one.value("select holdfast.create_queue('mail', p_filters => true)")
    for text in ("send('mail', $1::json)", "receive('mail', p_contains => $1::json)"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="131,072 digits before"):
            await one.value(f"select holdfast.{text}", payload)
    await one.value("select holdfast.send('mail', '1e100')")
    assert await one.payloads() == ["1e100"]


async def test_a_dead_letter_that_cannot_be_searched_holds_up_nothing(
    sessions: list[Session],
) -> None:
    """Its queue has filters, that of its sender has not: any JSON is sent there."""
    one = sessions[0]
    await one.value("select holdfast.create_queue('dead', p_filters => true)")
    await one.value(
        "select holdfast.create_queue('mail', p_max_receives => 1, p_dead_letters => 'dead')"
    )
    large = f'[1e400000, "{"x" * 2000}"]'
    for payload in ("1e400000", "1", large):
        await one.value("select holdfast.send('mail', $1::json)", payload)
    assert await one.payloads() == ["1e400000", "1", large]
    await one.value("update holdfast.deliveries set visible_at = now()")
    assert await one.payloads() == []
    listed = "select array_agg(payload::text order by message_id) from holdfast.list_messages($1)"
    assert await one.value(listed, "dead") == ["1e400000", "1", large]
    assert await one.value("select count(*) from holdfast.receive('dead', 10)") == 1
    assert await one.value("select holdfast.redrive_messages('mail')") == 2
    assert await one.payloads() == ["1e400000", large]


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("received", [True, False])
async def test_cancel_waits_for_a_receive_that_is_under_way(
    sessions: list[Session], fifo: bool, received: bool
) -> None:
    """Either it is refused, or the receive never happened."""
    a, b, c, _ = sessions
    await create(a, ", p_fifo => true" if fifo else "")
    one = await send(a, "1", "ann" if fifo else None)
    await a.begin()
    assert await a.payloads() == ["1"]
    cancel = soon(b.value("select holdfast.cancel_message('mail', $1)", one))
    change = soon(c.value("select holdfast.change_message('mail', $1, '2')", one))
    await until_waits(sessions[3], b)
    await until_waits(sessions[3], c)
    if received:
        await a.commit()
        for call in (cancel, change):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await call
            assert refused.value.sqlstate == "HFQ04"
    else:
        await a.rollback()
        assert await cancel or await change  # the cancel may be first
        assert await cancel is True
        assert await a.payloads() == []


@pytest.mark.parametrize("fifo", [False, True])
async def test_receive_against_a_change_that_is_under_way(
    sessions: list[Session], fifo: bool
) -> None:
    """It passes over the message, and the next one has what was changed; so does a cancel."""
    a, b, c, _ = sessions
    await create(a, ", p_fifo => true" if fifo else "")
    one = await send(a, "1", "ann" if fifo else None)
    await a.begin()
    assert await a.value("select holdfast.change_message('mail', $1, '2')", one)
    assert await b.payloads() == []
    change = soon(c.value("select holdfast.change_message('mail', $1, '3')", one))
    await until_waits(b, c)
    await a.commit()
    assert await change is True
    assert await b.payloads() == ["3"]


async def test_cancel_against_a_message_that_is_given_back(sessions: list[Session]) -> None:
    """It is in flight for the cancel until the transaction that gives it back has committed."""
    a, b, *_ = sessions
    await create(a)
    one = await send(a, "1")
    [(_, receipt)] = await a.take()
    await a.begin()
    await a.value("select holdfast.nack(array[$1])", receipt)
    with pytest.raises(asyncpg.PostgresError, match="in flight"):
        await b.value("select holdfast.cancel_message('mail', $1)", one)
    await a.commit()
    assert await b.value("select holdfast.cancel_message('mail', $1)", one) is True


async def test_two_pops_and_one_that_is_rolled_back(sessions: list[Session]) -> None:
    a, b, *_ = sessions
    await create(a)
    for payload in ("1", "2"):
        await send(a, payload)
    pop = "select payload from holdfast.pop('mail')"
    await a.begin()
    assert await a.value(pop) == "1"
    assert await b.value(pop) == "2"
    await a.rollback()
    assert await b.value(pop) == "1"
    assert await b.value(pop) is None
