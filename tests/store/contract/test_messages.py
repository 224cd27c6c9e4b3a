"""Message queues: what is sent is received once, in order, until it is acknowledged."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock
from msgspec.structs import replace

from holdfast.errors import (
    InvalidInput,
    QueueExists,
    QueueInUse,
    RunActive,
    RunExists,
    UnknownFlow,
    UnknownQueue,
)
from holdfast.insight.messages import explain_queue
from holdfast.insight.queues import check_queues
from holdfast.insight.wording import count_text
from holdfast.store.port import Store
from holdfast.types import (
    DeclaredOptions,
    FlowShape,
    ListedMessage,
    MessageDelivery,
    MessagePage,
    MessageReturn,
    NewMessage,
    NewRun,
    QueueSettings,
    Receipt,
    Receive,
    Received,
    write_place,
)

from .actors import ManualWorker, start_notice


@dataclass
class Mail:
    """A queue, by what tests do with it."""

    store: Store
    name: str = "mail"

    async def create(self, **settings: Any) -> bool:
        """Create the queue."""
        return await self.store.create_queue(QueueSettings(name=self.name, **settings))

    async def send(self, *payloads: str, **fields: Any) -> list[int]:
        """Send messages with the same options."""
        return (
            await self.store.send_messages(
                self.name, [NewMessage(payload, **fields) for payload in payloads]
            )
        )[0]

    async def answer(self, limit: int = 10, **fields: Any) -> Received:
        """Receive; return the whole answer."""
        return await self.store.receive_messages(Receive(queue=self.name, limit=limit, **fields))

    async def take(self, limit: int = 10, **fields: Any) -> list[str]:
        """Receive; return the payloads."""
        return payloads(*(await self.answer(limit, **fields)).deliveries)

    async def deliveries(self, limit: int = 10, **fields: Any) -> list[MessageDelivery]:
        """Receive; return the deliveries."""
        return list((await self.answer(limit, **fields)).deliveries)


def payloads(*deliveries: MessageDelivery) -> list[str]:
    """Return what deliveries have."""
    return [message.payload for each in deliveries for message in each.messages]


def receipts(*deliveries: MessageDelivery) -> list[Receipt]:
    """Return a receipt for each message."""
    return [
        Receipt(each.queue_id, each.delivery_id, place)
        for each in deliveries
        for place in range(1, len(each.messages) + 1)
    ]


@pytest.fixture
def mail(store: Store) -> Mail:
    """Return a queue that does not exist yet."""
    return Mail(store)


async def test_a_message_is_received_until_it_is_acknowledged(mail: Mail, clock: Clock) -> None:
    assert await mail.create()
    ids = await mail.send('{"id":1}', '{"id":2}', headers={"from": "ann"})
    [delivery] = await mail.deliveries()
    assert [message.message_id for message in delivery.messages] == ids
    assert [message.attempts for message in delivery.messages] == [1, 1]
    assert delivery.messages[0].headers == {"from": "ann"}
    assert await mail.take() == []
    acked, _ = await mail.store.ack_messages(receipts(delivery)[:1])
    assert acked == [True]
    await clock.advance(31)
    [again] = await mail.deliveries()
    assert [(each.message_id, each.attempts) for each in again.messages] == [(ids[1], 2)]
    assert again.messages[0].error == "the visibility timeout ended"


async def test_an_old_receipt_changes_nothing(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1")
    [delivery] = await mail.deliveries()
    await clock.advance(31)
    assert await mail.take() == ["1"]
    old = receipts(delivery)
    assert (await mail.store.ack_messages(old))[0] == [False]
    assert (await mail.store.return_messages([MessageReturn(old[0])]))[0] == [False]
    assert await mail.store.extend_deliveries(old, seconds=60) == [False]
    await clock.advance(31)
    assert await mail.take() == ["1"]


async def test_acks_travel_with_a_receive(mail: Mail) -> None:
    await mail.create()
    await mail.send("1", "2", "3")
    [first] = await mail.deliveries(2)
    answer = await mail.answer(acks=[first.delivery_id, uuid4()])
    assert list(answer.acked) == [True, False]
    assert payloads(*answer.deliveries) == ["3"]
    assert (await mail.store.ack_messages(receipts(first)))[0] == [False, False]


async def test_what_is_given_back_comes_again_after_its_delay(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1", "2")
    [delivery] = await mail.deliveries()
    one, two = receipts(delivery)
    returned, notices = await mail.store.return_messages(
        [MessageReturn(one, delay_seconds=10, error="busy"), MessageReturn(two, counted=False)]
    )
    assert returned == [True, True]
    assert [notice.payload for notice in notices] == ["mail"]
    [again] = await mail.deliveries()
    assert [(each.payload, each.attempts) for each in again.messages] == [("2", 1)]
    await clock.advance(10)
    [late] = await mail.deliveries()
    assert [(each.payload, each.attempts, each.error) for each in late.messages] == [
        ("1", 2, "busy")
    ]


async def test_a_delayed_message_is_due_later(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1", delay_seconds=5)
    empty = await mail.answer()
    assert empty.next_due_at == empty.now + 5_000_000
    await clock.advance(5)
    assert await mail.take() == ["1"]


async def test_an_extended_delivery_stays_in_flight(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1")
    [delivery] = await mail.deliveries(visibility_seconds=10)
    await clock.advance(9)
    assert await mail.store.extend_deliveries(receipts(delivery), seconds=10) == [True]
    await clock.advance(9)
    assert await mail.take() == []
    await clock.advance(1)
    assert await mail.take() == ["1"]


async def test_a_message_that_was_received_too_often_is_a_dead_letter(
    mail: Mail, clock: Clock
) -> None:
    await mail.create(max_receives=2, visibility_seconds=1)
    await mail.send("1")
    for _ in range(2):
        assert await mail.take() == ["1"]
        await clock.advance(1)
    assert await mail.take() == []
    [dead] = await Mail(mail.store, "mail.dead").deliveries()
    assert [(each.payload, each.attempts) for each in dead.messages] == [("1", 1)]
    assert dead.messages[0].error == "the visibility timeout ended"


@pytest.mark.parametrize("headers", [None, {"a": "1", "holdfast-receives": "77"}])
@pytest.mark.parametrize(
    "options", [{}, {"fifo": True}, {"has_filters": True}, {"has_priorities": True}], ids=str
)
async def test_a_dead_letter_says_how_often_it_was_received(
    mail: Mail, options: dict[str, bool], headers: dict[str, str] | None
) -> None:
    """C21. In a header, for receives too; a redrive takes it away."""
    await mail.create(max_receives=3, **options)
    own = {} if headers is None else {"a": "1"}
    group = "ann" if "fifo" in options else None
    texts = ["1", f'"{"x" * 5000}"']
    new = [NewMessage(each, group=group, headers=headers) for each in texts]
    await mail.store.send_messages("mail", new)

    async def die() -> None:
        for counted in (True, False, True, True):
            for delivery in await mail.deliveries(9, per_group=9):
                await mail.store.return_messages(
                    [MessageReturn(each, counted=counted) for each in receipts(delivery)]
                )

    await die()
    assert await mail.store.list_messages("mail") == []
    listed = await mail.store.list_messages("mail.dead")
    page = await mail.store.message_page("mail.dead", limit=9, origin="mail")
    assert [(each.attempts, each.receives) for each in listed] == [(0, "3")] * 2
    assert [each.headers for each in (*listed, *page.messages)] == [
        {**own, "holdfast-receives": "3"}
    ] * 4
    dead = Mail(mail.store, "mail.dead")
    [delivery] = await dead.deliveries(9, per_group=9)
    assert {each.attempts for each in delivery.messages} == {1}
    for each in delivery.messages:
        assert each.headers == {**own, "holdfast-receives": "3"}
    await mail.store.return_messages([MessageReturn(each) for each in receipts(delivery)])
    await mail.store.redrive_messages("mail")
    again = await mail.store.list_messages("mail")
    assert sorted(each.payload for each in again) == sorted(texts)
    assert [(each.attempts, each.origin, each.headers) for each in again] == [
        (0, None, own or None)
    ] * 2
    await die()
    assert [each.receives for each in await mail.store.list_messages("mail.dead")] == ["3"] * 2


async def test_groups_are_received_in_their_order_one_delivery_at_a_time(mail: Mail) -> None:
    await mail.create(fifo=True)
    await mail.send("1", "2", "3", group="ann")
    await mail.send("4", group="bob")
    first = await mail.deliveries()
    assert {each.group: payloads(each) for each in first} == {"ann": ["1"], "bob": ["4"]}
    assert await mail.take() == []
    [ann] = [each for each in first if each.group == "ann"]
    _, notices = await mail.store.ack_messages(receipts(ann))
    assert [notice.payload for notice in notices] == ["mail"]
    [second] = await mail.deliveries(per_group=5)
    assert payloads(second) == ["2", "3"]


async def test_the_same_deduplication_id_is_the_same_message(mail: Mail, clock: Clock) -> None:
    await mail.create(dedup_seconds=60)
    [first] = await mail.send("1", dedup_id="a")
    assert await mail.send("2", "3", dedup_id="a") == [first, first]
    assert await mail.take() == ["1"]
    await clock.advance(60)
    [later] = await mail.send("4", dedup_id="a")
    assert later != first
    assert sorted(await mail.take()) == ["1", "4"]


async def test_urgent_messages_come_first(mail: Mail) -> None:
    await mail.create(has_priorities=True)
    await mail.send("1", priority=4)
    await mail.send("2")
    await mail.send("3", priority=0)
    assert await mail.take(2) == ["3", "2"]


async def test_a_condition_is_met_by_what_contains_it(mail: Mail) -> None:
    await mail.create(has_filters=True)
    await mail.send('{"kind":"a","n":1}', '{"kind":"b"}', "[1,2]", "1", "null")
    assert await mail.take(contains='{"kind":"b"}') == ['{"kind":"b"}']
    assert await mail.take(contains="[2]") == ["[1,2]"]
    assert await mail.take(contains="null") == ["null"]
    assert await mail.take() == ['{"kind":"a","n":1}', "1"]


async def test_large_payloads_come_back_whole(mail: Mail) -> None:
    await mail.create()
    large = f'"{"x" * 100_000}"'
    await mail.send("1", large, "2")
    [delivery] = await mail.deliveries()
    assert payloads(delivery) == ["1", large, "2"]
    await mail.store.return_messages([MessageReturn(each) for each in receipts(delivery)])
    assert sorted(await mail.take(), key=len) == ["1", "2", large]


async def test_a_purge_leaves_what_is_in_flight(mail: Mail) -> None:
    await mail.create()
    await mail.send("1", "2", "3")
    [delivery] = await mail.deliveries(1)
    assert await mail.store.purge_messages("mail") == 2
    assert await mail.store.purge_messages("mail") == 0
    await mail.store.return_messages([MessageReturn(receipts(delivery)[0])])
    assert await mail.take() == ["1"]


async def test_a_queue_is_created_once_and_deleted_whole(mail: Mail) -> None:
    assert await mail.create(max_receives=3)
    assert not await mail.create(max_receives=3)
    with pytest.raises(QueueExists, match="mail"):
        await mail.create(max_receives=4)
    assert [each.settings.name for each in await mail.store.list_queues()] == ["mail", "mail.dead"]
    with pytest.raises(QueueInUse, match="dead letters of queue mail"):
        await mail.store.delete_queue("mail.dead")
    await mail.send("1")
    assert await mail.store.delete_queue("mail")
    assert not await mail.store.delete_queue("mail")
    with pytest.raises(UnknownQueue, match="mail"):
        await mail.send("2")
    with pytest.raises(UnknownQueue, match="mail"):
        await mail.take()
    await mail.create()
    assert await mail.take() == []


async def test_a_paused_queue_gives_nothing(mail: Mail) -> None:
    await mail.create()
    await mail.send("1")
    await mail.store.set_pause("queue", "mail", paused=True)
    assert await mail.take() == []
    await mail.store.set_pause("queue", "mail", paused=False)
    assert await mail.take() == ["1"]


async def test_a_receive_without_a_visibility_is_refused_and_names_the_other_way(
    mail: Mail,
) -> None:
    await mail.create()
    with pytest.raises(InvalidInput, match="list_messages shows messages without receiving"):
        await mail.deliveries(visibility_seconds=0.0)


@pytest.mark.parametrize(
    ("settings", "fields", "why"),
    [
        ({"fifo": True}, {}, "needs a group"),
        ({}, {"group": "a"}, "not FIFO"),
        ({}, {"priority": 1}, "without priorities"),
        ({"fifo": True}, {"group": "a", "priority": 1}, "without priorities"),
        ({"has_priorities": True}, {"priority": 5}, "priority"),
        ({}, {"delay_seconds": -1.0}, "delay"),
        ({}, {"dedup_id": "x" * 1025}, "deduplication id"),
    ],
)
async def test_a_message_that_does_not_fit_the_queue_is_refused(
    mail: Mail, settings: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    await mail.create(**settings)
    with pytest.raises(InvalidInput, match=why):
        await mail.send("1", **fields)


async def test_half_of_a_group_is_acknowledged_and_the_rest_keeps_its_order(mail: Mail) -> None:
    """Edge case 4."""
    await mail.create(fifo=True)
    await mail.send("1", "2", "3", "4", group="ann")
    [delivery] = await mail.deliveries(per_group=3)
    one, two, three = receipts(delivery)
    assert (await mail.store.ack_messages([two]))[0] == [True]
    assert (await mail.store.return_messages([MessageReturn(three)]))[0] == [True]
    assert await mail.take(per_group=9) == []  # the first is in flight still
    assert (await mail.store.return_messages([MessageReturn(one)]))[0] == [True]
    assert await mail.take(per_group=9) == ["1", "3", "4"]


async def test_a_delayed_message_holds_up_its_group_only(mail: Mail, clock: Clock) -> None:
    """Edge case 9."""
    await mail.create(fifo=True)
    await mail.send("1", group="ann")
    await mail.send("2", group="ann", delay_seconds=60)
    await mail.send("3", group="ann")
    await mail.send("4", group="bob")
    first = await mail.deliveries(per_group=9)
    assert sorted(payloads(*first)) == ["1", "4"]
    await mail.store.ack_messages(receipts(*first))
    empty = await mail.answer(per_group=9)
    assert (list(empty.deliveries), empty.next_due_at) == ([], empty.now + 60_000_000)
    await clock.advance(60)
    assert await mail.take(per_group=9) == ["2", "3"]


async def test_a_group_continues_after_a_dead_letter(mail: Mail, clock: Clock) -> None:
    """Edge cases 10 and 11."""
    await mail.create(fifo=True, max_receives=1, visibility_seconds=1)
    [first, _] = await mail.send("1", "2", group="ann")
    assert await mail.take() == ["1"]
    await clock.advance(1)
    [delivery] = await mail.deliveries()
    assert payloads(delivery) == ["2"]
    await mail.store.ack_messages(receipts(delivery))
    assert [each.dead for each in await mail.store.queue_metrics("mail")] == [1]
    [dead] = await mail.store.list_messages("mail.dead")
    assert (dead.message_id, dead.group, dead.origin) == (first, "ann", "mail")
    assert (await mail.store.redrive_messages("mail"))[0] == 1
    assert (await mail.store.redrive_messages("mail"))[0] == 0
    [again] = await mail.deliveries()
    assert [(each.message_id, each.attempts) for each in again.messages] == [(first, 1)]


async def test_payloads_are_clipped_where_they_are_only_looked_at(mail: Mail) -> None:
    """Large ones, small ones, and those in flight; nobody reads megabytes to see who is due."""
    await mail.create(has_priorities=True)
    await mail.send(f'"{"é" * 5000}"', priority=0)
    await mail.send("12345")
    await mail.take(1)
    for clip, texts in ((None, ["12345", f'"{"é" * 5000}"']), (3, ["123", '"éé']), (0, ["", ""])):
        found = await mail.store.list_messages("mail", clip=clip)
        assert [each.payload for each in found] == texts
        assert [each.in_flight for each in found] == [False, True]
    assert len(await mail.store.list_messages("mail", limit=1, clip=0)) == 1


@pytest.mark.parametrize(
    "settings", [{}, {"has_priorities": True}, {"has_filters": True}, {"fifo": True}], ids=str
)
async def test_messages_are_looked_at_page_by_page(mail: Mail, settings: dict[str, bool]) -> None:
    """Each once, whatever the size of pages: what waits first, then what is in flight."""
    await mail.create(**settings)
    sent = list[int]()
    for number in range(7):
        group = {"group": f"g{number % 3}"} if "fifo" in settings else {}
        priority = {"priority": number % 2 * 4} if "has_priorities" in settings else {}
        sent += await mail.send(f"{number + 1}2345", **group, **priority)
    taken = await mail.deliveries(3)
    await mail.store.ack_messages(receipts(taken[0])[:1])
    whole = (await mail.store.message_page("mail", limit=99)).messages
    assert sorted(each.message_id for each in whole) == sorted(
        set(sent) - {taken[0].messages[0].message_id}
    )
    assert [each.in_flight for each in whole] == sorted(each.in_flight for each in whole)
    assert any(each.in_flight for each in whole)
    waiting = [each for each in whole if not each.in_flight]
    if "fifo" in settings:
        assert waiting == sorted(waiting, key=lambda each: (each.group, each.message_id))
    else:
        assert waiting == [
            each for each in await mail.store.list_messages("mail") if not each.in_flight
        ]
    for limit in (1, 2, 4):
        seen, cursor = list[ListedMessage](), None
        while page := await mail.store.message_page("mail", limit=limit, cursor=cursor):
            seen, cursor = seen + page.messages, page.cursor
            assert len(page.messages) <= limit
            if cursor is None:
                break
        assert seen == whole
    clipped = await mail.store.message_page("mail", limit=99, clip=3)
    assert {len(each.payload) for each in clipped.messages} == {3}
    assert {
        each.payload for each in (await mail.store.message_page("mail", limit=9, clip=0)).messages
    } == {""}
    assert await mail.store.message_page("mail", limit=0) == MessagePage([], None)


async def test_pages_of_dead_letters_are_of_one_queue(mail: Mail) -> None:
    """A page reads so many messages, whosever they are, and is short then."""
    other = Mail(mail.store, "other")
    for queue in (mail, other):
        await queue.create(max_receives=1, dead_letters="lost")
        await queue.send("1", "2")
        for delivery in await queue.deliveries():
            await mail.store.return_messages([MessageReturn(each) for each in receipts(delivery)])
    cursor, found = None, list[list[str]]()
    for _ in range(3):
        page = await mail.store.message_page("lost", limit=2, cursor=cursor, origin="other")
        assert {each.origin for each in page.messages} <= {"other"}
        found.append([each.payload for each in page.messages])
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(itertools.chain(*found)) == ["1", "2"]
    assert len(found) == 3


@pytest.mark.parametrize(
    "cursor", ["x", "", "é", write_place(["x", "0", "0", "", "1"]), write_place(["true"] * 5)]
)
async def test_what_is_not_a_cursor_is_refused(mail: Mail, cursor: str) -> None:
    await mail.create()
    with pytest.raises(InvalidInput, match="not a cursor"):
        await mail.store.message_page("mail", limit=1, cursor=cursor)


async def test_dead_letters_go_back_to_the_queue_that_they_come_from(mail: Mail) -> None:
    other = Mail(mail.store, "other")
    await mail.create(max_receives=1, dead_letters="lost", has_filters=True)
    await other.create(max_receives=1, dead_letters="lost", has_priorities=True)
    large = f'"{"x" * 5000}"'
    await mail.send('{"a":1}', "2", large)
    await other.send("3", priority=0)
    for queue in (mail, other):
        for delivery in await queue.deliveries():
            back = [MessageReturn(each, error="no") for each in receipts(delivery)]
            await mail.store.return_messages(back)
    lost = Mail(mail.store, "lost")
    assert sorted(await lost.take(1)) != []
    waiting = await mail.store.list_messages("lost")
    assert {each.error for each in waiting} == {"no"}
    assert [each.in_flight for each in waiting] == [False, False, False, True]
    assert (await mail.store.redrive_messages("other"))[0] == 1
    assert await other.take() == ["3"]
    ids = [each.message_id for each in waiting if each.origin == "mail" and not each.in_flight]
    assert (await mail.store.redrive_messages("mail", message_ids=ids[:1]))[0] == 1
    assert (await mail.store.redrive_messages("mail"))[0] == 1
    assert len(await mail.take()) == 2
    with pytest.raises(InvalidInput, match="lost has no dead letters of its own: name one"):
        await mail.store.redrive_messages("lost")


async def test_acknowledged_messages_are_kept_for_a_time(mail: Mail, clock: Clock) -> None:
    await mail.create(keep_seconds=60)
    await mail.send("1", "2", f'"{"x" * 5000}"')
    [delivery] = await mail.deliveries()
    await mail.store.ack_messages(receipts(delivery)[:2])
    await mail.answer(acks=[delivery.delivery_id])
    kept = await mail.store.list_kept("mail")
    assert [len(each.payload) for each in kept] == [5002, 1, 1]
    await mail.send("4", "5")
    both = [(await mail.deliveries(1))[0].delivery_id for _ in range(2)]
    await mail.answer(acks=both)
    assert [each.payload for each in await mail.store.list_kept("mail")][:2] == ["5", "4"]
    await clock.advance(60)
    assert await mail.store.sweep_queues() >= 5
    assert await mail.store.list_kept("mail") == []


async def test_what_a_queue_has_is_counted(mail: Mail, clock: Clock) -> None:
    await mail.create(max_receives=3)
    await mail.send("1", "2", "3")
    await mail.send("4", delay_seconds=60)
    await mail.take(1)
    await clock.advance(5)
    [dead, counted] = sorted(await mail.store.queue_metrics(), key=lambda each: -len(each.name))
    assert dead.name == "mail.dead"
    assert (counted.due, counted.delayed, counted.in_flight, counted.dead) == (2, 1, 1, 0)
    now = (await mail.answer(1)).now
    assert counted.oldest_due_at == now - 5_000_000


@pytest.mark.parametrize("fifo", [True, False])
async def test_a_worker_that_signs_off_gives_back_what_it_has_in_flight(
    mail: Mail, fifo: bool
) -> None:
    """If it asks for it: its receives do not count, and those of others stay in flight."""
    await mail.create(max_receives=1, fifo=fifo)
    for group in ("a", "a", "b"):
        await mail.send(f'"{group}"', group=group if fifo else None)
    await mail.take(1 if fifo else 2, consumer="ann", per_group=2)
    await mail.take(1, consumer="bob")
    await mail.store.remove_worker("ann")
    assert await mail.take() == []
    await mail.store.remove_worker("ann", with_messages=True)
    await mail.store.remove_worker("ann", with_messages=True)
    found = await mail.deliveries(10, per_group=2)
    assert payloads(*found) == ['"a"', '"a"']
    assert {message.attempts for each in found for message in each.messages} == {1}


async def test_what_may_change_of_a_queue_is_updated(mail: Mail, clock: Clock) -> None:
    await mail.create(fifo=True)
    wanted = QueueSettings(name="mail", fifo=True, max_receives=1, visibility_seconds=5)
    assert await mail.store.update_queue(wanted)
    assert not await mail.store.update_queue(wanted)
    assert [each.settings.name for each in await mail.store.list_queues()] == ["mail", "mail.dead"]
    await mail.send("1", group="ann")
    assert await mail.take() == ["1"]
    await clock.advance(5)
    assert await mail.store.return_expired() == (1, None)
    assert await Mail(mail.store, "mail.dead").take() == ["1"]
    with pytest.raises(QueueExists, match="another kind"):
        await mail.store.update_queue(QueueSettings(name="mail"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"name": "a" * 129}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "a" * 128, "max_receives": 1}, "name"),
        ({"fifo": True, "has_priorities": True}, "FIFO"),
        ({"visibility_seconds": 0.0}, "in flight"),
        ({"visibility_seconds": float("nan")}, "in flight"),
        ({"dead_letters": "b"}, "how many receives"),
        ({"max_receives": 0}, "1 time or more"),
        ({"max_receives": 1, "dead_letters": "mail"}, "another queue"),
        ({"keep_seconds": -1.0}, "kept"),
    ],
)
async def test_a_queue_that_cannot_be_is_refused(
    mail: Mail, settings: dict[str, Any], why: str
) -> None:
    """Edge case 26, with the next test: names at their limits."""
    with pytest.raises(InvalidInput, match=why):
        await mail.store.create_queue(QueueSettings(**{"name": "mail", **settings}))


async def test_names_and_ids_may_be_as_long_as_their_limits(mail: Mail) -> None:
    longest = Mail(mail.store, "q" * 123)
    await longest.create(fifo=True, max_receives=1)
    await longest.send("1", group="g" * 1024, dedup_id="d" * 1024)
    [delivery] = await longest.deliveries()
    assert delivery.group == "g" * 1024


async def test_a_clock_that_goes_back_loses_nothing(mail: Mail, clock: Clock) -> None:
    """Edge case 28."""
    await mail.create(visibility_seconds=10)
    await mail.send("1")
    [first] = await mail.deliveries()
    await clock.advance(-3600)
    await mail.send("2")
    assert await mail.take() == ["2"]
    assert (await mail.store.ack_messages(receipts(first)))[0] == [True]
    await clock.advance(10)
    assert await mail.take() == ["2"]


async def test_an_acknowledgement_tells_the_queues_that_code_has_declared(mail: Mail) -> None:
    await mail.store.declare_options([DeclaredOptions("shop/pack", 1, 60.0, "post")])
    await mail.create()
    await mail.send("1")
    [delivery] = await mail.deliveries()
    queues = (None, "gpu", None)
    runs = [NewRun(run_id=uuid4(), name="shop/pack", queue=queue) for queue in queues]
    acked, notices = await mail.store.ack_and_start(receipts(delivery), runs)
    told = [start_notice(mail.store, queue) in notices for queue in ("gpu", "post", "default")]
    assert (acked, told) == (True, [True, True, False])


async def test_runs_start_with_the_acknowledgement_or_not_at_all(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1", "2", "3")
    [delivery] = await mail.deliveries()
    first, second, third = receipts(delivery)
    store, runs = mail.store, [NewRun(run_id=uuid4(), name="shop/pack") for _ in range(3)]
    acked, notices = await store.ack_and_start([first, second], runs[:2])
    assert acked
    assert start_notice(store) in notices
    assert await mail.store.ack_and_start([first], runs[2:]) == (False, [])
    assert await mail.store.ack_and_start([second, third], runs[2:]) == (False, [])
    other = NewRun(run_id=runs[0].run_id, name="shop/other")
    with pytest.raises(RunExists):
        await store.ack_and_start([third], [runs[2], other])
    await clock.advance(31)
    assert await mail.take() == ["3"]
    assert await mail.store.ack_and_start([third], runs[2:]) == (False, [])
    assert set(await store.get_runs([run.run_id for run in runs])) == {r.run_id for r in runs[:2]}


async def test_flows_start_with_the_acknowledgement_or_not_at_all(mail: Mail) -> None:
    await mail.store.ensure_flow(FlowShape(name="shop/ship"), "hash")
    await mail.create()
    await mail.send("1", "2")
    [delivery] = await mail.deliveries()
    pack = [NewRun(run_id=uuid4(), name="shop/pack") for _ in range(2)]
    ship = [NewRun(run_id=uuid4(), name="shop/ship", version=0, kind="flow") for _ in range(2)]
    other = replace(ship[1], name="shop/unknown")
    first, second = receipts(delivery)
    assert (await mail.store.ack_and_start([first], [pack[0], ship[0]]))[0]
    with pytest.raises(UnknownFlow):
        await mail.store.ack_and_start([second], [pack[1], other])
    assert await mail.store.ack_and_start([first], [ship[1]]) == (False, [])
    known = await mail.store.get_runs([run.run_id for run in (*pack, *ship)])
    assert set(known) == {pack[0].run_id, ship[0].run_id}
    assert (await mail.store.ack_and_start([second], [ship[1]]))[0]


async def test_a_start_that_its_rules_refuse_leaves_message_and_runs(mail: Mail) -> None:
    await mail.create(fifo=True)
    await mail.send("1", group="a")
    await mail.send("2", group="a")
    [delivery] = await mail.deliveries()
    rules = '{"declared":{"singleton_conflict":"refuse"}}'
    runs = [NewRun(run_id=uuid4(), name="shop/pack", rules=rules) for _ in range(2)]
    with pytest.raises(RunActive):
        await mail.store.ack_and_start(receipts(delivery), runs)
    assert await mail.store.get_runs([run.run_id for run in runs]) == {}
    assert await mail.take() == []  # it is in flight still
    assert (await mail.store.ack_and_start(receipts(delivery), runs[:1]))[0]
    assert await mail.take() == ["2"]


async def test_doctor_names_a_queue_that_no_worker_consumes(
    mail: Mail, clock: Clock, ann: ManualWorker
) -> None:
    """A program may receive: nothing is said while messages are in flight."""

    async def problem() -> str | None:
        found = await check_queues(mail.store)
        return None if found.level == "ok" else found.message

    await mail.create()
    await mail.send("1", "2")
    await clock.advance(20)
    assert await problem() is None
    await clock.advance(20)
    expected = "mail: 2 messages due, the oldest for 40.0 s, and no live worker consumes the queue"
    assert await problem() == expected
    await ann.beat(consumes=())
    assert await problem() == expected
    await ann.beat(consumes=("parcels",))
    missing = "parcels: a live worker consumes it, and there is no such queue"
    assert await problem() == f"{missing}; {expected}"
    await mail.store.create_queue(QueueSettings(name="parcels"))
    for queues in (("mail", "parcels"), None):
        await ann.beat(consumes=queues)
        assert await problem() is None
    await mail.store.remove_worker("ann")
    assert await problem() == expected
    await mail.take(1)
    assert await problem() is None


async def test_doctor_names_dead_letters_once(mail: Mail, clock: Clock, ann: ManualWorker) -> None:
    """Fault: they were due messages of the queue that has them, too."""
    await mail.create(max_receives=1, visibility_seconds=1)
    await mail.send("1")
    assert await mail.take() == ["1"]
    await clock.advance(1)
    assert await mail.take() == []
    await clock.advance(3600)
    assert (await check_queues(mail.store)).message == "mail: 1 dead letter"
    await ann.beat(consumes=("mail", "mail.dead"))
    both = "mail: 1 dead letter; mail.dead: 1 message due, the oldest for 1 h"
    assert (await check_queues(mail.store)).message == both


async def test_doctor_names_a_queue_that_is_consumed_and_missing(
    mail: Mail, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Also beside a worker that does not say what it consumes; not if the worker is silent."""
    await ann.beat(consumes=("letters", "mail"))
    await bob.beat(consumes=None)
    await mail.create()
    found = await check_queues(mail.store)
    assert found.level == "warn"
    assert found.message == "letters: a live worker consumes it, and there is no such queue"
    assert found.remedy == "create what is missing: `holdfast queue create letters`"
    await mail.store.create_queue(QueueSettings(name="letters"))
    assert (await check_queues(mail.store)).level == "ok"
    await mail.store.delete_queue("letters")
    await clock.advance(3600)
    assert (await check_queues(mail.store)).level == "ok"


async def test_doctor_expects_no_consumer_of_dead_letters(mail: Mail, clock: Clock) -> None:
    await mail.create(max_receives=1)
    await mail.send("1")
    [delivery] = await mail.deliveries()
    await mail.store.return_messages([MessageReturn(receipts(delivery)[0])])
    await clock.advance(40)
    assert (await check_queues(mail.store)).message == "mail: 1 dead letter"


@pytest.mark.parametrize(
    ("sent", "taken", "texts"),
    [(4, 0, ("3+", "0+", "0", "0")), (2, 0, ("2", "0", "0", "0")), (5, 3, ("2", "0", "3+", "0"))],
    ids=["due", "fewer", "in-flight"],
)
async def test_a_count_that_ended_at_the_limit_says_so(
    mail: Mail, sent: int, taken: int, texts: tuple[str, ...]
) -> None:
    await mail.create()
    await mail.send(*map(str, range(sent)))
    if taken:
        await mail.take(taken)
    [counted] = await mail.store.queue_metrics("mail", limit=3)
    names = ("due", "delayed", "in_flight", "dead")
    assert tuple(count_text(counted, name) for name in names) == texts


async def test_what_explains_a_queue_says_that_it_counted_no_further(mail: Mail) -> None:
    await mail.create()
    await mail.send(*map(str, range(1_001)))
    assert (await explain_queue(mail.store, "mail")).because.startswith("1,000+ messages due")
