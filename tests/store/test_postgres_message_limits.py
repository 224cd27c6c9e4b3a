"""Limits of message queues on PostgreSQL: receives that interleave, in sessions of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest
from test_postgres_messages import Session, create, send, sessions, soon, until_waits

__all__ = ["sessions"]


async def limit(session: Session, most: int, kind: str = "concurrency", options: str = "") -> None:
    """Set a limit of the queue `mail`."""
    await session.value(f"select holdfast.set_limit('queue', 'mail', $1, $2{options})", kind, most)


async def test_a_receive_waits_for_an_open_one_and_counts_what_it_took(
    sessions: list[Session],
) -> None:
    a, b, c, _ = sessions
    await create(a)
    await limit(a, 3)
    for _ in range(20):  # a receive waits for a moment only: on a slow machine it may be over
        for payload in ("1", "2", "3", "4"):
            await send(a, payload)
        await a.begin()
        taken = await a.take(2)
        assert [payload for payload, _ in taken] == ["1", "2"]
        taking = soon(b.payloads())
        await until_waits(c, b)
        await a.commit()
        if found := await taking:
            break
        for _, receipt in taken:
            assert await a.value("select holdfast.ack($1)", receipt) == [True]
        await a.value("select holdfast.purge_messages('mail')")
    assert found == ["3"]
    assert await c.payloads() == []


@pytest.mark.parametrize("options", ["", ", p_fifo => true", ", p_filters => true"])
@pytest.mark.parametrize("key", [None, "input.of"])
async def test_an_open_receive_keeps_its_place_until_it_is_rolled_back(
    sessions: list[Session], options: str, key: str | None
) -> None:
    """Others find nothing meanwhile, and do not wait for long."""
    a, b, *_ = sessions
    await create(a, options)
    await limit(a, 1, options="" if key is None else f", p_key => '{key}'")
    for number in range(2):
        group = f"g{number}" if "fifo" in options else None
        await send(a, json.dumps({"of": "ann", "n": number}), group)
    await a.begin()
    assert len(await a.payloads()) == 1
    async with asyncio.timeout(30):
        assert await b.payloads() == []
    await a.rollback()
    [(payload, receipt)] = await b.take()
    assert json.loads(payload)["n"] == 0
    assert await a.payloads() == []
    await a.begin()
    assert await a.value("select holdfast.ack($1)", receipt) == [True]
    assert await b.payloads() == []  # it is not acknowledged yet
    await a.commit()
    assert [json.loads(each)["n"] for each in await b.payloads()] == [1]


async def test_a_session_that_ends_gives_its_place_back(sessions: list[Session]) -> None:
    a, b, *_ = sessions
    await create(a)
    await limit(a, 1)
    await send(a, "1")
    await a.begin()
    assert await a.payloads() == ["1"]
    a.connection.terminate()
    async with asyncio.timeout(30):
        while await b.payloads() != ["1"]:
            await asyncio.sleep(0.01)


async def test_a_transaction_that_cannot_see_others_is_refused(sessions: list[Session]) -> None:
    """It would not count what they took since its first statement."""
    a, *_ = sessions
    await create(a)
    await send(a, "1")
    await a.connection.execute("begin isolation level repeatable read")
    assert await a.payloads() == ["1"]
    await a.rollback()
    await limit(a, 1)
    await a.connection.execute("begin isolation level repeatable read")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="queue mail has limits"):
        await a.payloads()
    await a.rollback()
    assert await a.payloads() == ["1"]


async def test_ends_are_told_also_of_what_was_received_before_the_limit(
    sessions: list[Session],
) -> None:
    a, b, *_ = sessions
    await create(a)
    for payload in ("1", "2"):
        await send(a, payload)
    [(_, first), (_, second)] = [*await a.take(1), *await a.take(1)]
    freed = "select freed from holdfast.ack_messages($1, $2, $3)"

    async def end(receipt: str) -> Any:
        queue_id, delivery_id, place = receipt.split(".")
        return await a.value(freed, [int(queue_id)], [delivery_id], [int(place)])

    assert await end(first) is None
    await limit(b, 1)
    assert await end(second) == ["mail"]


async def test_many_receivers_never_have_more_than_the_limit(sessions: list[Session]) -> None:
    """Of all and of each key; and everything is received once."""
    a, *_ = sessions
    await create(a)
    await limit(a, 3)
    await limit(a, 1, options=", p_key => 'input.of'")
    for number in range(60):
        await send(a, json.dumps({"of": number % 5, "n": number}))
    held: list[int] = []
    seen: list[int] = []

    async def receive(session: Session) -> None:
        while len(seen) < 60:
            for payload, receipt in await session.take(2):
                found = json.loads(payload)
                held.append(found["of"])
                seen.append(found["n"])
                assert len(held) <= 3
                assert len(set(held)) == len(held)
                await asyncio.sleep(0)
                held.remove(found["of"])
                assert await session.value("select holdfast.ack($1)", receipt) == [True]

    async with asyncio.timeout(120):
        await asyncio.gather(*(receive(each) for each in sessions))
    assert sorted(seen) == list(range(60))


async def test_a_key_with_many_messages_does_not_hold_up_others(sessions: list[Session]) -> None:
    """A thousand of one that has no room, and one of another."""
    a, *_ = sessions
    await create(a)
    await limit(a, 1, options=", p_key => 'input'")
    many = "select holdfast.send_messages('mail', array_fill('1'::json, array[1000]))"
    await a.value(many)
    await send(a, "2")
    assert [await a.payloads() for _ in range(2)] == [["1", "2"], []]


async def test_values_whose_rates_are_used_up_cost_receives_nothing(
    sessions: list[Session],
) -> None:
    """Each is looked at once, and then not before its time."""
    a, *_ = sessions
    await create(a)
    await limit(a, 1, "rate", ", p_period_seconds => 3600, p_key => 'input'")
    values = """
        select holdfast.send_messages('mail', array(
            select to_json(n) from generate_series(1, 300) as u (n)))
    """
    for _ in range(2):
        await a.value(values)
    while await a.payloads(300):
        pass
    assert await a.payloads() == []
    await a.begin()
    await a.value("set local track_functions = 'all'")
    assert await a.payloads() == []
    looks = "select calls from pg_stat_xact_user_functions where funcname = '_rate_left'"
    assert (await a.value(looks) or 0) < 5
    await a.rollback()


async def test_a_limit_that_is_removed_lets_go_of_what_an_open_receive_holds_up(
    sessions: list[Session],
) -> None:
    """The removal waits for it."""
    a, b, c, _ = sessions
    await create(a)
    await limit(a, 1, options=", p_key => 'input'")
    for _ in range(3):
        await send(a, "1")
    await a.begin()
    assert await a.payloads() == ["1"]
    assert await a.payloads() == []
    remove = "select holdfast.remove_limit('queue', 'mail', 'concurrency', 'input')"
    removing = soon(b.value(remove))
    await until_waits(c, b)
    await a.commit()
    assert await removing is True
    assert await c.payloads() == ["1", "1"]
    assert await c.value("select count(*) from holdfast.limited_messages") == 0


async def test_a_limit_that_is_added_meanwhile_holds_for_what_waits_already(
    sessions: list[Session],
) -> None:
    a, b, *_ = sessions
    await create(a)
    await limit(a, 2, options=", p_key => 'input.of'")
    for number in range(5):
        await send(a, json.dumps({"of": "ann", "all": 1, "n": number}))
    await a.begin()
    assert len(await a.payloads()) == 2
    assert await a.payloads() == []
    await limit(b, 1, options=", p_key => 'input.all'")
    await a.rollback()
    assert len(await b.payloads()) == 1
    assert await b.payloads() == []


async def test_a_message_that_is_being_cancelled_holds_up_no_other(sessions: list[Session]) -> None:
    a, b, *_ = sessions
    await create(a)
    await limit(a, 1, options=", p_key => 'input'")
    ids = [await send(a, "1") for _ in range(3)]
    [(_, first)] = await a.take()
    assert await a.payloads() == []
    await b.begin()
    assert await b.value("select holdfast.cancel_message('mail', $1)", ids[1]) is True
    await a.value("select holdfast.ack($1)", first)
    async with asyncio.timeout(30):
        found = await a.take()
    await b.commit()
    found += [] if found else await a.take()
    assert len(found) == 1
    await a.value("select holdfast.ack($1)", found[0][1])
    assert await a.payloads() == []
    assert await a.value("select count(*) from holdfast.messages") == 0


async def test_two_receives_of_two_queues_do_not_wait_for_each_other(
    sessions: list[Session],
) -> None:
    """Nobody is told of a deadlock."""
    a, b, *_ = sessions
    for name in ("mail", "post"):
        await a.value("select holdfast.create_queue($1)", name)
        await a.value("select holdfast.set_limit('queue', $1, 'concurrency', 5)", name)
        await a.value("select holdfast.send($1, '1')", name)
    take = "select count(*) from holdfast.receive($1)"
    for session, name in ((a, "mail"), (b, "post")):
        await session.begin()
        assert await session.value(take, name) == 1
    async with asyncio.timeout(30):
        assert await asyncio.gather(a.value(take, "post"), b.value(take, "mail")) == [0, 0]
    await a.commit()
    await b.commit()


async def test_a_limit_costs_queues_without_one_nothing(sessions: list[Session]) -> None:
    """No statement more, and no row of limits is locked."""
    a, b, *_ = sessions
    await create(a)
    await a.value("select holdfast.create_queue('post')")
    await a.value("select holdfast.set_limit('queue', 'post', 'concurrency', 1)")
    await send(a, "1")
    await b.begin()
    await b.value("select count(*) from holdfast.receive('post')")
    async with asyncio.timeout(30):
        assert await a.payloads() == ["1"]
    await b.rollback()
