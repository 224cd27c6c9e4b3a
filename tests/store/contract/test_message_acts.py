"""Acts on messages beside receive and acknowledge: discard, cancel, change, pop, failures."""

from __future__ import annotations

from typing import Any

import pytest
from clocks import Clock
from msgspec.structs import replace

from holdfast.errors import InvalidInput, MessageInFlight, PayloadError, UnknownQueue
from holdfast.store.port import Store
from holdfast.types import MessageChange, MessageReturn, NewMessage

from .test_messages import Mail, payloads, receipts

LARGE = f'"{"x" * 5000}"'
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "urgent": {"has_priorities": True},
    "filters": {"has_filters": True},
    "fifo": {"fifo": True},
}


@pytest.fixture
def mail(store: Store) -> Mail:
    """Return a queue that does not exist yet."""
    return Mail(store)


def group_of(kind: str) -> dict[str, Any]:
    """Return the options of a send to a queue of a kind."""
    return {"group": "ann"} if kind == "fifo" else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dead", [True, False])
async def test_discarded_message_is_a_dead_letter_at_once_or_acknowledged(
    mail: Mail, kind: str, dead: bool
) -> None:
    """Its siblings stay in flight, and in a FIFO queue what comes after it in its group comes."""
    limits: dict[str, Any] = {"max_receives": 5} if dead else {"keep_seconds": 60}
    await mail.create(**KINDS[kind], **limits)
    await mail.send("1", LARGE, "3", **group_of(kind))
    [delivery] = await mail.deliveries(2, per_group=2)
    one, two = receipts(delivery)
    given = MessageReturn(two, error="spam", discarded=True)
    assert (await mail.store.return_messages([given, given]))[0][:1] == [True]
    assert (await mail.store.return_messages([given]))[0] == [False]
    assert (await mail.store.ack_messages([one]))[0] == [True]
    assert await mail.take() == ["3"]
    if not dead:
        assert [each.payload for each in await mail.store.list_kept("mail")] == [LARGE, "1"]
        return
    [letter] = await mail.store.list_messages("mail.dead")
    assert (letter.payload, letter.error, letter.origin) == (LARGE, "spam", "mail")
    assert letter.receives == "1"
    assert (await mail.store.redrive_messages("mail"))[0] == 1


async def test_message_given_back_uncounted_may_be_received_for_ever(
    mail: Mail, clock: Clock
) -> None:
    """As a consumer does that snoozes it."""
    await mail.create(max_receives=1)
    await mail.send("1")
    for _ in range(3):
        [delivery] = await mail.deliveries()
        assert [each.attempts for each in delivery.messages] == [1]
        assert payloads(delivery) == ["1"]
        [receipt] = receipts(delivery)
        await mail.store.return_messages([MessageReturn(receipt, 60, counted=False)])
        assert await mail.take() == []
        await clock.advance(60)


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_message_is_found_and_cancelled_by_its_id(
    mail: Mail, clock: Clock, kind: str
) -> None:
    await mail.create(**KINDS[kind])
    one, two, three = await mail.send("1", LARGE, "3", **group_of(kind))
    found = await mail.store.get_message("mail", two)
    assert found is not None
    assert (found.message_id, found.payload, found.in_flight) == (two, LARGE, False)
    assert await mail.store.get_message("mail", three + 1) is None
    done, notices = await mail.store.cancel_message("mail", two)
    assert (done, [each.payload for each in notices]) == (True, ["mail"])
    assert await mail.store.cancel_message("mail", two) == (False, [])
    assert await mail.store.get_message("mail", two) is None
    assert await mail.take(per_group=10) == ["1", "3"]
    for message_id in (one, three):
        flying = await mail.store.get_message("mail", message_id)
        assert flying is not None
        assert (flying.in_flight, flying.attempts) == (True, 1)
        with pytest.raises(
            MessageInFlight, match=f"^message {message_id} .* can be cancelled or ch"
        ):
            await mail.store.cancel_message("mail", message_id)
    await clock.advance(31)
    assert (await mail.store.cancel_message("mail", one))[0]  # its visibility has ended
    assert await mail.take() == ["3"]
    for call in (mail.store.get_message, mail.store.cancel_message):
        with pytest.raises(UnknownQueue):
            await call("lost", one)


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_message_is_changed_by_its_id(mail: Mail, clock: Clock, kind: str) -> None:
    await mail.create(**KINDS[kind])
    one, two = await mail.send("1", "2", delay_seconds=600, **group_of(kind))
    [moment] = [await mail.store.now()]

    async def change(message_id: int, **fields: Any) -> bool:
        return (await mail.store.change_message("mail", message_id, MessageChange(**fields)))[0]

    assert await change(one, payload=LARGE)
    assert await mail.take() == []
    assert await change(one, due_at=moment + 10_000_000)
    assert await change(two, delay_seconds=0)
    assert await mail.take() == (
        [] if kind == "fifo" else ["2"]
    )  # a delayed one holds up its group
    await clock.advance(10)
    [delivery] = await mail.deliveries()
    assert payloads(delivery) == [LARGE]
    with pytest.raises(MessageInFlight):
        await change(one, payload="0")
    await mail.store.return_messages([MessageReturn(each) for each in receipts(delivery)])
    assert await change(one, payload="4", due_at=moment - 10)
    [again] = await mail.deliveries()
    assert [(each.payload, each.attempts) for each in again.messages] == [("4", 2)]
    await mail.store.ack_messages(receipts(again))
    assert not await change(one, payload="5")
    assert await mail.take() == (["2"] if kind == "fifo" else [])


async def test_group_continues_when_the_message_that_held_it_up_is_cancelled(
    mail: Mail, clock: Clock
) -> None:
    """Its token was dropped for one that is due with the message that is gone."""
    await mail.create(fifo=True)
    [first] = await mail.send("1", group="ann", delay_seconds=600)
    await mail.send("2", "3", group="ann")
    assert await mail.take() == []
    assert (await mail.store.cancel_message("mail", first))[0]
    assert await mail.take(per_group=2) == ["2", "3"]


async def test_urgent_message_comes_first_once_it_is_changed(mail: Mail) -> None:
    await mail.create(has_priorities=True)
    ids = await mail.send("1", "2")
    assert (await mail.store.change_message("mail", ids[1], MessageChange(priority=0)))[0]
    assert await mail.take() == ["2", "1"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"delay_seconds": -1.0}, "a delay is 0 to"),
        ({"priority": 1}, "without priorities"),
        ({"payload": r'"\u0000"'}, "payload"),
        ({"delay_seconds": 1.0, "due_at": 1}, "not both"),
        ({"due_at": 10**17}, "of 1970"),
    ],
)
async def test_what_a_message_cannot_be_is_refused(
    mail: Mail, fields: dict[str, Any], text: str
) -> None:
    await mail.create()
    [one] = await mail.send("1")
    with pytest.raises((InvalidInput, PayloadError), match=text):
        await mail.store.change_message("mail", one, MessageChange(**fields))
    assert await mail.take() == ["1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_message_is_sent_at_a_moment(mail: Mail, clock: Clock, kind: str) -> None:
    """One whose moment is over is due at once; others of the call may have delays."""
    await mail.create(**KINDS[kind])
    now = await mail.store.now()
    sent = [
        NewMessage("1", due_at=now + 60_000_001, group="a"),
        NewMessage("2", due_at=now - 60_000_000, group="b"),
        NewMessage("3", delay_seconds=30, group="c"),
        NewMessage("4", group="d"),
    ]
    if kind != "fifo":
        sent = [replace(each, group=None) for each in sent]
    await mail.store.send_messages("mail", sent)
    waiting = {each.payload: each.visible_at for each in await mail.store.list_messages("mail")}
    assert waiting == {"1": now + 60_000_001, "2": now, "3": now + 30_000_000, "4": now}
    assert sorted(await mail.take()) == ["2", "4"]
    await clock.advance(60)
    assert "1" not in await mail.take()
    await clock.advance(0.000001)
    assert await mail.take() == ["1"]
    for wrong in ({"due_at": 10**17}, {"due_at": 1, "delay_seconds": 1.0}):
        group = group_of(kind)
        with pytest.raises(InvalidInput, match=r"of 1970|not both"):
            await mail.store.send_messages("mail", [NewMessage("5", **wrong, **group)])


@pytest.mark.parametrize("kind", KINDS)
async def test_each_failed_receive_leaves_its_error(mail: Mail, clock: Clock, kind: str) -> None:
    """Until it is gone; a redrive keeps them, and a receive that does not count has none."""
    await mail.create(**KINDS[kind], max_receives=3)
    ids = await mail.send("1", "2", LARGE, **group_of(kind))
    start, texts = await mail.store.now(), [("x" * 3000, True), ("no", False), ("", True)]
    for text, counted in texts:
        [delivery] = await mail.deliveries(per_group=3)
        back = [MessageReturn(each, error=text, counted=counted) for each in receipts(delivery)]
        await mail.store.return_messages(back)
        await clock.advance(1)
    await mail.deliveries(per_group=3, visibility_seconds=1.0)
    await clock.advance(1)
    assert await mail.take() == []
    found = await mail.store.message_failures([*ids, ids[-1] + 1])
    assert set(found) == set(ids)
    for failures in found.values():
        assert [each.error for each in failures] == ["x" * 2000, "", "the visibility timeout ended"]
        assert [each.failed_at - start for each in failures] == [0, 2_000_000, 4_000_000]
    dead = Mail(mail.store, "mail.dead")
    [delivery] = await dead.deliveries(1)
    assert delivery.messages[0].message_id == ids[0]
    await mail.store.ack_messages(receipts(delivery))  # one of the dead letters is done
    assert (await mail.store.cancel_message("mail.dead", ids[1]))[0]
    assert (await mail.store.redrive_messages("mail"))[0] == 1
    assert set(await mail.store.message_failures(ids)) == {ids[2]}
    [delivery] = await mail.deliveries()
    await mail.answer(acks=[delivery.delivery_id])
    assert await mail.store.message_failures(ids) == {}


async def test_errors_of_messages_are_bounded_and_go_with_their_queue(mail: Mail) -> None:
    await mail.create()
    ids = await mail.send("1", "2", "3")
    for number in range(23):
        [delivery] = await mail.deliveries()
        back = [MessageReturn(each, error=str(number)) for each in receipts(delivery)]
        await mail.store.return_messages([*back, *back])
    found = await mail.store.message_failures(ids)
    assert [[each.error for each in found[one]] for one in ids] == [[*map(str, range(3, 23))]] * 3
    [delivery] = await mail.deliveries(1)
    discard = MessageReturn(receipts(delivery)[0], error="no", discarded=True)
    await mail.store.return_messages([discard])  # the queue has no dead letters
    assert set(await mail.store.message_failures(ids)) == {*ids[1:]}
    await mail.deliveries(1)
    assert await mail.store.purge_messages("mail") == 1
    assert set(await mail.store.message_failures(ids)) == {ids[1]}
    await mail.store.delete_queue("mail")
    assert await mail.store.message_failures(ids) == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_popped_messages_are_gone(mail: Mail, clock: Clock, kind: str) -> None:
    """They are kept like acknowledged ones; of a FIFO queue the rest of the group comes at once."""
    await mail.create(**KINDS[kind], keep_seconds=60, max_receives=5)
    ids = await mail.send("1", LARGE, "3", **group_of(kind))
    [delivery] = await mail.deliveries(1)
    await mail.store.return_messages([MessageReturn(receipts(delivery)[0], error="no")])
    first = await mail.answer(2, pops=True)
    assert payloads(*first.deliveries) == (["1"] if kind == "fifo" else ["1", LARGE])
    assert [each.payload for each in first.notices] == (["mail"] if kind == "fifo" else [])
    [left] = receipts(*first.deliveries)[:1]
    assert (await mail.store.ack_messages([left]))[0] == [False]
    assert await mail.take(2, pops=True, per_group=5) == ([LARGE, "3"] if kind == "fifo" else ["3"])
    await clock.advance(31)
    assert await mail.take(pops=True) == []
    assert {each.message_id for each in await mail.store.list_kept("mail")} == {*ids}
    assert await mail.store.message_failures(ids) == {}
    with pytest.raises(InvalidInput, match="1 to 10,000"):
        await mail.answer(0, pops=True)
