"""`client.queues`: message queues as programs use them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import asyncpg
import pytest

from holdfast.client import Client, Message, Outgoing, messages
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError, UnknownQueue
from holdfast.insight.queues import check_queues
from holdfast.payloads import Zlib
from holdfast.store.port import Store
from holdfast.types import Receive, Received


@dataclass(frozen=True)
class Parcel:
    id: int


async def test_typed_messages_are_sent_received_and_acknowledged(client: Client) -> None:
    assert await client.queues.create("parcels")
    sent = await client.queues.send("parcels", Parcel(7), headers={"from": "ann"})
    [message] = await client.queues.receive("parcels", 10, type=Parcel)
    assert (message.id, message.payload, message.attempts) == (sent, Parcel(7), 1)
    assert message.headers == {"from": "ann"}
    assert await client.queues.ack(message) == [True]
    assert await client.queues.ack([message]) == [False]


async def test_a_payload_that_does_not_fit_concerns_its_message_only(client: Client) -> None:
    await client.queues.create("parcels")
    await client.queues.send_many("parcels", [Outgoing(Parcel(1)), Outgoing("?"), Outgoing()])
    good, bad, _ = await client.queues.receive("parcels", 10, type=Parcel)
    assert good.payload == Parcel(1)
    with pytest.raises(InvalidInput):
        _ = bad.payload
    assert await client.queues.nack(bad, delay="1h", error="not a parcel") == [True]


async def test_what_waits_for_a_failed_message_of_its_group_is_no_dead_letter_with_it(
    client: Client,
) -> None:
    """B13, edge case 10. Given back without being tried, it keeps its order and its attempts."""
    await client.queues.create("moves", fifo=True, max_receives=2)
    await client.queues.send_many("moves", [Outgoing(each, group="g") for each in ("a", "b", "c")])
    for attempt in (1, 2):
        this, *rest = await client.queues.receive("moves", per_group=10)
        assert [this.payload, *(each.payload for each in rest)] == ["a", "b", "c"]
        assert [this.attempts, *(each.attempts for each in rest)] == [attempt, 1, 1]
        assert await this.nack(error="no van")
        assert await client.queues.receive("moves", per_group=10) == []  # the group is held
        assert await rest[0].nack(counted=False)
        assert await client.queues.nack(rest[1:], counted=False) == [True]
    left = await client.queues.receive("moves", per_group=10)
    assert [(each.payload, each.attempts) for each in left] == [("b", 1), ("c", 1)]
    assert [each.payload for each in await client.queues.messages("moves.dead")] == ['"a"']


async def test_a_message_is_acknowledged_given_back_and_kept_in_flight_by_itself(
    client: Client,
) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels", 7)
    [first] = await client.queues.receive("parcels", visibility="1h")
    assert await first.nack(error="no van")
    [second] = await client.queues.receive("parcels", visibility="1h")
    assert (second.id, second.attempts, second.error) == (first.id, 2, "no van")
    assert not await first.ack()  # an old receipt changes nothing
    assert not await first.nack()
    assert not await first.extend("1h")
    assert await second.extend(0)  # so it is due again
    [third] = await client.queues.receive("parcels", wait="30s")
    assert (third.id, third.attempts) == (first.id, 3)
    assert await third.ack()
    assert not await third.ack()
    assert (await client.queues.metrics("parcels"))[0].in_flight == 0


async def test_a_message_that_is_given_back_with_a_delay_is_not_due(client: Client) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels")
    [message] = await client.queues.receive("parcels")
    assert await message.nack(delay="1h")
    [counted] = await client.queues.metrics("parcels")
    assert (counted.due, counted.delayed, counted.in_flight) == (0, 1, 0)


async def test_a_message_that_is_acknowledged_leaves_those_received_with_it(client: Client) -> None:
    await client.queues.create("parcels")
    await client.queues.send_many("parcels", [Outgoing(each) for each in range(3)])
    left, done, right = await client.queues.receive("parcels", 3)
    assert await done.ack()
    assert await client.queues.ack([left, done.receipt, right]) == [True, False, True]


async def test_sends_of_one_moment_fail_alone(client: Client) -> None:
    """Edge case 12: a batch with one bad payload."""
    await client.queues.create("parcels")
    sends = [
        client.queues.send("parcels", each, priority=given)
        for each, given in ((1, None), (2, 0), (3, None))
    ]
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(answer) for answer in answers] == [int, InvalidInput, int]
    received = await client.queues.receive("parcels", 10)
    assert sorted(str(message.payload) for message in received) == ["1", "3"]


async def test_a_receive_waits_for_a_send(client: Client) -> None:
    await client.queues.create("parcels")
    waits = [asyncio.create_task(client.queues.receive("parcels", 1, wait="60s")) for _ in range(3)]
    await asyncio.sleep(0.05)
    await client.queues.send_many("parcels", [Outgoing(each) for each in range(3)])
    async with asyncio.timeout(30):
        found = [message for messages in await asyncio.gather(*waits) for message in messages]
    assert sorted(str(message.payload) for message in found) == ["0", "1", "2"]
    assert await client.queues.receive("parcels", wait="10ms") == []


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_receive_takes_less_if_so_much_does_not_fit_an_answer(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch, fifo: bool
) -> None:
    """Edge case 12. PostgreSQL answers with 1 GB at most: 70 messages of 16 MB are more."""
    await client.queues.create("parcels", fifo=fifo)
    group = "a" if fifo else None
    await client.queues.send_many("parcels", [Outgoing(each, group=group) for each in range(7)])
    receive_messages = store.receive_messages

    async def answer(receive: Receive) -> Received:
        if max(receive.limit, receive.per_group) > 3:
            raise PayloadError("array size exceeds the maximum allowed")
        return await receive_messages(receive)

    monkeypatch.setattr(store, "receive_messages", answer)
    seen: list[object] = []
    while len(seen) < 7:
        received = await client.queues.receive("parcels", 10, per_group=10, wait="10s")
        assert 0 < len(received) <= 3
        seen += [message.payload for message in received]
        await client.queues.ack(received)
    assert seen == list(range(7))


async def test_what_a_cancelled_wait_would_have_received_is_there_for_others(
    client: Client,
) -> None:
    await client.queues.create("parcels")
    wait = asyncio.create_task(client.queues.receive("parcels", wait="60s"))
    await asyncio.sleep(0.05)
    wait.cancel()
    await client.queues.send("parcels", 1)
    async with asyncio.timeout(30):
        found: list[Message] = []
        while not found:
            found = await client.queues.receive("parcels", wait="1s")
    assert (found[0].payload, found[0].attempts) == (1, 1)


async def test_a_send_joins_the_callers_transaction(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    async with Client(database_url) as client:
        await client.queues.create("parcels")
        transaction = connection.transaction()
        await transaction.start()
        sent = await client.queues.send("parcels", {"id": 1}, connection=connection, notify=True)
        assert await client.queues.receive("parcels") == []
        wait = asyncio.create_task(client.queues.receive("parcels", wait="60s"))
        await transaction.commit()
        async with asyncio.timeout(30):
            [message] = await wait
        assert (message.id, message.payload) == (sent, {"id": 1})
        transaction = connection.transaction()
        await transaction.start()
        assert await client.queues.ack(message, connection=connection) == [True]
        await transaction.rollback()
        assert await client.queues.ack(message) == [True]
    await connection.close()


async def test_payloads_are_encoded_and_conditions_refused(database_url: str) -> None:
    async with Client(database_url, payload_codec=Zlib()) as client:
        await client.queues.create("parcels", filters=True)
        await client.queues.send("parcels", "x" * 5000)
        [message] = await client.queues.receive("parcels")
        assert message.payload == "x" * 5000
        with pytest.raises(ConfigurationError, match="encoded"):
            await client.queues.receive("parcels", contains={"a": 1})


async def test_unknown_queues_and_bad_values_are_refused(client: Client) -> None:
    with pytest.raises(UnknownQueue, match="parcels"):
        await client.queues.send("parcels")
    with pytest.raises(UnknownQueue, match="parcels"):
        await client.queues.receive("parcels")
    with pytest.raises(ConfigurationError):
        await client.queues.send("a/b")
    await client.queues.create("parcels")
    with pytest.raises(PayloadError):
        await client.queues.send("parcels", object())
    with pytest.raises(InvalidInput):
        await client.queues.receive("parcels", 0)
    with pytest.raises(ConfigurationError, match="connection"):
        await client.queues.send("parcels", 1, notify=True)


async def test_doctor_names_queues_with_dead_letters(client: Client, store: Store) -> None:
    assert (await check_queues(store)).level == "ok"
    await client.queues.create("parcels", max_receives=1)
    await client.queues.send("parcels")
    assert (await check_queues(store)).level == "ok"
    await client.queues.nack(await client.queues.receive("parcels"))
    found = await check_queues(store)
    assert (found.level, found.message) == ("warn", "parcels: 1 dead letter")


async def test_message_is_sent_at_a_moment_that_has_a_zone(client: Client) -> None:
    await client.queues.create("parcels")
    later, past = datetime(2100, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)
    one = await client.queues.send("parcels", 1, at=later)
    await client.queues.send_many("parcels", [Outgoing(2, at=past)])
    [message] = await client.queues.receive("parcels", 10)
    assert message.payload == 2
    assert (await client.messages.get("parcels", one)).visible_at == later.timestamp() * 1_000_000
    assert await client.messages.change("parcels", one, at=past)
    assert [each.payload for each in await client.queues.receive("parcels", 10)] == [1]
    for wrong in ({"at": datetime(2100, 1, 1)}, {"at": later, "delay": 1}, {"at": "noon"}):
        with pytest.raises(ConfigurationError, match=r"has no time zone|not both|not a moment"):
            await client.queues.send("parcels", 3, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["1", 1.0, True, None, 0, -1, 2**63])
async def test_what_cannot_be_the_id_of_a_message_is_refused(client: Client, wrong: Any) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels", 1)
    for act in (client.messages.get, client.messages.cancel):
        with pytest.raises(InvalidInput, match=r"the id of a message|no message has the id"):
            await act("parcels", wrong)
    with pytest.raises(InvalidInput, match="id"):
        await client.messages.change("parcels", wrong, payload=2)
    assert len(await client.queues.messages("parcels")) == 1


@pytest.mark.parametrize("wrong", ["1", 1.5, True, None, -1, 2**31, float("inf")])
async def test_a_number_of_messages_that_cannot_be_is_refused(client: Client, wrong: Any) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels", 1)
    for receive in (client.queues.receive, client.queues.pop):
        for name in ("limit", "per_group"):
            with pytest.raises(ConfigurationError, match=f"parcels: {name}: a whole number"):
                await receive("parcels", **{name: wrong})
    assert len(await client.queues.messages("parcels")) == 1


async def test_a_redrive_ends_while_what_it_moves_fails_again(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not moved again: a redrive ended only when consumers were slower than it.

    Nor is it if the redrive takes several portions. What waits for a moment to come is moved.
    """
    monkeypatch.setattr(messages, "_MOVED_AT_ONCE", 3)
    await client.queues.create("parcels", max_receives=1)
    sent = await client.queues.send_many("parcels", [Outgoing(number) for number in range(7)])

    async def fail() -> None:
        getattr(store, "advance", float)(1)  # PostgreSQL's clock does by itself
        received = await client.queues.receive("parcels", 10)
        await client.queues.nack(received)

    await fail()
    assert await client.messages.change("parcels.dead", sent[0], delay="1h")
    redrive, calls = type(store).redrive_messages, count(1)

    async def move(self: Any, queue: str, **options: Any) -> Any:
        assert next(calls) < 5, "it does not end"
        moved = await redrive(self, queue, **options)
        await fail()
        return moved

    monkeypatch.setattr(type(store), "redrive_messages", move)
    assert await client.queues.redrive("parcels") == 7
    [counted] = await client.queues.metrics("parcels")
    assert (counted.due, counted.dead) == (0, 7)
    assert await client.queues.redrive("parcels", sent[:2]) == 2


async def test_a_redrive_and_a_purge_take_as_many_portions_as_there_are(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_MOVED_AT_ONCE", 3)
    monkeypatch.setattr(messages, "_PURGED_AT_ONCE", 3)
    await client.queues.create("parcels", max_receives=1)
    for number_of in (6, 7):
        await client.queues.send_many("parcels", [Outgoing(number) for number in range(number_of)])
        await client.queues.nack(await client.queues.receive("parcels", 10))
        assert await client.queues.redrive("parcels") == number_of
        assert await client.queues.purge("parcels") == number_of


async def test_a_purge_ends_while_others_send(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.queues.create("parcels")
    await client.queues.send("parcels", 1)
    purge, calls = type(store).purge_messages, count(1)

    async def delete(self: Any, queue: str, **options: Any) -> Any:
        assert next(calls) < 4, "it does not end"
        deleted = await purge(self, queue, **options)
        await client.queues.send("parcels", 2)
        return deleted

    monkeypatch.setattr(type(store), "purge_messages", delete)
    assert await client.queues.purge("parcels") == 1
    assert (await client.queues.metrics("parcels"))[0].due == 1


async def test_a_type_that_no_payload_can_have_takes_no_message(client: Client) -> None:
    """A message that `pop` had taken was lost: its payload could not be read."""
    await client.queues.create("parcels")
    await client.queues.send("parcels", {"id": 7})
    with pytest.raises(ConfigurationError, match="Type '7' is not supported"):
        await client.queues.pop("parcels", type=7)
    [message] = await client.queues.pop("parcels", type=dict)
    assert message.payload == {"id": 7}
