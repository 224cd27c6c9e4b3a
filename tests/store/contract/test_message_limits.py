"""Limits of message queues: no more are in flight, or handed out in a period, than they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from clocks import Clock

from holdfast.insight.limits import check_limits
from holdfast.insight.messages import explain_message, explain_queue
from holdfast.store.port import Store, messages_topic
from holdfast.types import LimitRule, MessageChange, MessageDelivery, MessageReturn, Notice, Receipt

from .actors import SECOND, ManualWorker, start
from .test_messages import Mail, payloads

KINDS = {
    "plain": {},
    "urgent": {"has_priorities": True},
    "filtered": {"has_filters": True},
    "fifo": {"fifo": True},
}


def limit(most: int | None = 2, **fields: Any) -> LimitRule:
    """Return a limit of the queue `mail`."""
    rule: dict[str, Any] = {"scope": "queue", "name": "mail", "kind": "concurrency", "most": most}
    return LimitRule(**rule | fields)


def rate(most: int = 2, period: float = 10, **fields: Any) -> LimitRule:
    """Return a rate of the queue `mail`."""
    return limit(most, kind="rate", period_seconds=period, **fields)


@pytest_asyncio.fixture(params=list(KINDS), loop_scope="module")
async def mail(store: Store, request: pytest.FixtureRequest) -> Mail:
    """Provide a queue of each kind."""
    queue = Mail(store)
    await queue.create(**KINDS[request.param])
    return queue


async def fill(mail: Mail, *payloads: object, **fields: Any) -> list[int]:
    """Send messages one after the other; in a FIFO queue each is a group of its own."""
    [info] = await mail.store.list_queues(mail.name)
    ids: list[int] = []
    for payload in payloads:
        group = json.dumps(payload)[:50] if info.settings.fifo else None
        ids += await mail.send(json.dumps(payload), group=group, **fields)
    return ids


async def test_no_more_are_in_flight_than_the_limit(store: Store, mail: Mail) -> None:
    """What waits keeps its order, and its receives are not counted."""
    await fill(mail, 1, 2, 3, 4)
    await store.set_limit(limit(2))
    taken = [each for _ in range(2) for each in await mail.deliveries(1)]
    assert payloads(*taken) == ["1", "2"]
    assert await mail.take() == []
    acked, notices = await store.ack_messages([Receipt(taken[0].queue_id, taken[0].delivery_id)])
    assert acked == [True]
    assert Notice(messages_topic("mail"), "mail") in notices
    [third] = await mail.deliveries()
    assert [(each.payload, each.attempts) for each in third.messages] == [("3", 1)]
    assert await mail.take() == []


async def test_a_receive_of_many_takes_what_there_is_room_for(store: Store, mail: Mail) -> None:
    await fill(mail, 1, 2, 3, 4)
    await store.set_limit(limit(3))
    assert await mail.take(10) == ["1", "2", "3"]
    await store.set_limit(limit(4))
    assert await mail.take(10) == ["4"]


async def test_room_comes_back_when_a_visibility_ends(
    store: Store, clock: Clock, mail: Mail
) -> None:
    await fill(mail, 1, 2)
    await store.set_limit(limit(1))
    assert await mail.take(visibility_seconds=5) == ["1"]
    answer = await mail.answer()
    assert answer.deliveries == []
    assert answer.next_due_at == answer.now + 5 * SECOND
    await clock.advance(6)
    [again] = await mail.deliveries(1)
    assert again.messages[0].payload in ("1", "2")


async def test_each_value_of_a_key_has_its_own_room(store: Store, mail: Mail) -> None:
    """Those that have none are passed over, and come when there is room."""
    sent = [{"of": "ann", "n": 1}, {"of": "ann", "n": 2}, {"of": "bob", "n": 3}, {"n": 4}]
    await fill(mail, *sent)
    await store.set_limit(limit(1, key="input.of"))
    taken = await mail.deliveries()
    numbers = sorted(json.loads(each)["n"] for each in payloads(*taken))
    assert numbers == [1, 3, 4]
    assert await mail.take() == []
    for each in taken:
        await store.ack_messages([Receipt(each.queue_id, each.delivery_id)])
    assert [json.loads(each)["n"] for each in await mail.take()] == [2]


async def test_a_rate_hands_out_so_many_in_a_period(store: Store, clock: Clock, mail: Mail) -> None:
    """An acknowledgement gives nothing back."""
    await fill(mail, 1, 2, 3, 4, 5)
    await store.set_limit(rate(2, 10))
    assert await mail.take(1, pops=True) == ["1"]
    await clock.advance(4)
    assert await mail.take(pops=True) == ["2"]
    answer = await mail.answer()
    assert (answer.deliveries, answer.next_due_at) == ([], answer.now + 6 * SECOND)
    await clock.advance(7)
    assert await mail.take() == ["3"]
    await clock.advance(20)
    assert await mail.take() == ["4", "5"]


async def ack(store: Store, *deliveries: MessageDelivery) -> list[Notice]:
    """Acknowledge deliveries; return the notices."""
    receipts = [Receipt(each.queue_id, each.delivery_id) for each in deliveries]
    return (await store.ack_messages(receipts))[1]


def numbers(*deliveries: MessageDelivery) -> list[int]:
    """Return the numbers of messages."""
    return [json.loads(each)["n"] for each in payloads(*deliveries)]


async def of_ann(mail: Mail, count: int = 3, **fields: Any) -> list[int]:
    """Send messages of one value of the key, with a limit of one of each; return their ids."""
    await mail.store.set_limit(limit(1, key="input.of"))
    return await fill(mail, *({"of": "ann", "n": n} for n in range(count)), **fields)


async def test_what_a_limit_holds_up_is_listed_counted_and_purged(store: Store, mail: Mail) -> None:
    ids = await of_ann(mail)
    [first] = await mail.deliveries()
    assert await mail.take() == []
    [counted] = await store.queue_metrics("mail")
    assert (counted.due, counted.in_flight) == (2, 1)
    shown = await store.list_messages("mail")
    assert [(each.message_id, each.priority, each.in_flight) for each in shown] == [
        (ids[1], 2, False),
        (ids[2], 2, False),
        (ids[0], 2, True),
    ]
    page = await store.message_page("mail", limit=1)
    rest = await store.message_page("mail", limit=5, cursor=page.cursor)
    assert [each.message_id for each in [*page.messages, *rest.messages]] == [
        ids[1],
        ids[2],
        ids[0],
    ]
    assert await store.purge_messages("mail") == 2
    await ack(store, first)
    assert await mail.take() == []
    await fill(mail, {"of": "ann", "n": 9})
    assert numbers(*await mail.deliveries()) == [9]


async def test_what_a_limit_holds_up_is_cancelled_and_changed(store: Store, mail: Mail) -> None:
    """One that has another key now waits for nothing else."""
    ids = await of_ann(mail, 4)
    [first] = await mail.deliveries()
    assert await mail.take() == []
    assert (await store.cancel_message("mail", ids[1]))[0]
    change = MessageChange(payload='{"of": "bob", "n": 7}')
    assert (await store.change_message("mail", ids[3], change))[0]
    [shown] = [each for each in await store.list_messages("mail") if each.message_id == ids[3]]
    assert shown.priority == 2
    assert numbers(*await mail.deliveries()) == [7]
    await ack(store, first)
    assert numbers(*await mail.deliveries()) == [2]
    assert await mail.take() == []


@pytest.mark.parametrize("how", ["remove", "raise", "another key"])
async def test_a_limit_that_changes_lets_go_of_what_it_held_up(
    store: Store, mail: Mail, how: str
) -> None:
    await of_ann(mail)
    assert numbers(*await mail.deliveries()) == [0]
    assert await mail.take() == []
    if how == "raise":
        await store.set_limit(limit(3, key="input.of"))
    else:
        await store.remove_limit("queue", "mail", "concurrency", "input.of")
    if how == "another key":
        await store.set_limit(limit(1, key="input.n"))
    assert numbers(*await mail.deliveries()) == [1, 2]


@pytest.mark.parametrize("how", ["remove", "raise", "shorten", "another key"])
async def test_a_rate_by_key_that_changes_lets_go_of_what_it_held_up(
    store: Store, clock: Clock, mail: Mail, how: str
) -> None:
    """Although what waits for it is not looked at before its time."""
    await store.set_limit(rate(1, 3600, key="input.of"))
    await store.set_limit(limit(5, key="input.n"))
    await fill(mail, *({"of": "ann", "n": n} for n in range(2)))
    assert numbers(*await mail.deliveries(pops=True)) == [0]
    for _ in range(2):
        answer = await mail.answer()
        assert answer.deliveries == []
        assert answer.next_due_at is not None
        assert answer.now < answer.next_due_at <= answer.now + 3600 * SECOND
    if how == "raise":
        await store.set_limit(rate(2, 3600, key="input.of"))
    elif how == "shorten":
        await clock.advance(1)
        await store.set_limit(rate(1, 0.5, key="input.of"))
    else:
        await store.remove_limit("queue", "mail", "rate", "input.of")
    if how == "another key":
        await store.set_limit(rate(1, 3600, key="input"))
    assert numbers(*await mail.deliveries()) == [1]


async def test_many_values_whose_rates_allow_more_at_once_come_one_after_the_other(
    store: Store, clock: Clock
) -> None:
    """More than a receive looks at, and some of what waits was cancelled."""
    mail = Mail(store)
    await mail.create()
    await store.set_limit(rate(1, 60, key="input.of"))
    values = [json.dumps({"of": n}) for n in range(450)]
    for _ in range(2):
        ids = await mail.send(*values)
    first = await mail.take(450, pops=True)
    while found := await mail.take(450, pops=True):
        first += found
    assert sorted(first) == sorted(values)
    for message_id in ids[:300]:
        assert await store.cancel_message("mail", message_id)
    await clock.advance(61)
    later: list[str] = []
    for _ in range(60):
        later += await mail.take(10, pops=True)
    assert sorted(later) == sorted(values[300:])
    answer = await mail.answer()
    assert (answer.deliveries, answer.next_due_at) == ([], None)


async def test_a_second_limit_holds_for_what_waits_for_the_first(
    store: Store, clock: Clock, mail: Mail
) -> None:
    await of_ann(mail, 4)
    [first] = await mail.deliveries()
    assert await mail.take() == []
    await store.set_limit(rate(1, 100, key="input.of"))
    await ack(store, first)
    [second] = await mail.deliveries()
    await ack(store, second)
    assert numbers(second) == [1]
    answer = await mail.answer()
    assert answer.deliveries == []
    assert answer.next_due_at == answer.now + 100 * SECOND
    await clock.advance(101)
    assert numbers(*await mail.deliveries()) == [2]


async def test_a_queue_that_is_deleted_leaves_nothing(store: Store, mail: Mail) -> None:
    await of_ann(mail)
    await mail.deliveries()
    await mail.take()
    [info] = await store.list_queues("mail")
    assert await store.delete_queue("mail")
    assert await store.sweep_queues() == 0
    await store.create_queue(info.settings)
    assert await mail.take() == []


async def test_a_message_that_is_given_back_makes_room(store: Store, mail: Mail) -> None:
    """Receivers are told, also if it is due later."""
    await store.set_limit(limit(1))
    await fill(mail, 1, 2)
    [first] = await mail.deliveries(1)
    back = MessageReturn(Receipt(first.queue_id, first.delivery_id), delay_seconds=60)
    returned, notices = await store.return_messages([back])
    assert (returned, notices) == ([True], [Notice(messages_topic("mail"), "mail")])
    assert await mail.take(1) == ["2"]


async def test_acks_of_a_receive_make_room_for_it(store: Store, mail: Mail) -> None:
    await store.set_limit(limit(1))
    await fill(mail, 1, 2)
    [first] = await mail.deliveries()
    answer = await mail.answer(acks=[first.delivery_id])
    assert (answer.acked, payloads(*answer.deliveries)) == ([True], ["2"])


async def test_a_limit_below_what_is_in_flight_holds_up_all_until_it_is_met(
    store: Store, mail: Mail
) -> None:
    await fill(mail, 1, 2, 3, 4)
    flying = [each for _ in range(3) for each in await mail.deliveries(1)]
    await store.set_limit(limit(1))
    for each in flying[:2]:
        assert await mail.take() == []
        await ack(store, each)
    assert await mail.take() == []
    await ack(store, flying[2])
    assert await mail.take() == ["4"]


async def test_large_payloads_have_keys_as_well(store: Store, mail: Mail) -> None:
    await store.set_limit(limit(1, key="input.of"))
    long = "x" * 5000
    await fill(mail, *({"of": of, "n": n, "long": long} for n, of in enumerate("aab")))
    assert numbers(*await mail.deliveries()) == [0, 2]
    assert await mail.take() == []


async def test_limits_of_tasks_alone_do_not_concern_messages(store: Store, mail: Mail) -> None:
    """Fairness, ageing and units order or count tasks; so does a limit of another scope."""
    key = "input.of"
    await store.set_limit(limit(None, kind="fairness", key=key))
    await store.set_limit(limit(None, kind="ageing", period_seconds=60))
    await store.set_limit(limit(1, kind="units", period_seconds=60, units="input.n"))
    await store.set_limit(limit(1, scope="workflow", name="shop/mail"))
    await fill(mail, {"of": "ann", "n": 1}, {"of": "ann", "n": 2})
    assert numbers(*await mail.deliveries()) == [1, 2]


async def test_tasks_of_the_same_queue_count_for_themselves(
    store: Store, clock: Clock, mail: Mail, ann: ManualWorker
) -> None:
    await store.set_limit(limit(1))
    await store.set_limit(rate(2, 100))
    await fill(mail, 1, 2)
    for _ in range(2):
        await start(store, queue="mail")
    assert len((await ann.claim(queues=("mail",))).tasks) == 1
    assert await mail.take() == ["1"]
    assert await mail.take() == []
    used = {each.rule.kind: (each.held, each.used) for each in await store.list_limits()}
    assert used == {"concurrency": (2, None), "rate": (0, 2)}


async def test_a_queue_says_that_it_waits_for_its_limits(
    store: Store, clock: Clock, mail: Mail
) -> None:
    await store.set_limit(limit(1))
    [_, second] = await fill(mail, 1, 2)
    assert (await explain_queue(store, "mail")).state == "due"
    [first] = await mail.deliveries()
    found = await explain_queue(store, "mail")
    assert found.state == "limited"
    assert found.because.endswith(": queue 'mail' runs 1 at once")
    assert (await explain_message(store, "mail", second)).state == "limited"
    finding = await check_limits(store)
    assert "queue 'mail' runs 1 at once" in finding.message
    await ack(store, first)
    assert (await explain_queue(store, "mail")).state == "due"
    await store.remove_limit("queue", "mail", "concurrency")
    await store.set_limit(rate(1, 60))
    assert len(await mail.deliveries()) == 1
    await fill(mail, 3)
    assert (await explain_queue(store, "mail")).state == "limited"


async def test_a_message_says_that_it_waits_for_the_limit_of_its_key(
    store: Store, mail: Mail
) -> None:
    await of_ann(mail, 2)
    [_, second] = [each.message_id for each in await store.list_messages("mail")]
    await mail.deliveries()
    [other] = await fill(mail, {"of": "bob", "n": 7})
    found = await explain_message(store, "mail", second)
    assert found.state == "limited"
    assert "runs 1 at once for each input.of" in found.because
    assert (await explain_message(store, "mail", other)).state == "due"


async def test_a_limit_is_known_before_its_queue_is(store: Store) -> None:
    await store.set_limit(limit(1))
    mail = Mail(store)
    await mail.create()
    await mail.send("1", "2")
    assert await mail.take() == ["1"]


@pytest.mark.parametrize(
    ("same", "other"),
    [("null", None), ("1", '"1"'), ('{"a":1}', '{"a":2}'), ('"é😀"', '"é"'), ('""', "null")],
)
async def test_any_value_may_be_a_key(store: Store, same: str, other: str | None) -> None:
    """A text is the key itself; what has none counts as the empty text."""
    mail = Mail(store)
    await mail.create()
    await store.set_limit(limit(1, key="input.of"))
    sent = [f'{{"n": 1, "of": {same}}}', f'{{"n": 2, "of": {same}}}']
    sent += ['{"n": 3}'] if other is None else [f'{{"n": 3, "of": {other}}}']
    await mail.send(*sent)
    alike = (same, other) in (("null", None), ("1", '"1"'), ('""', "null"))
    assert numbers(*await mail.deliveries()) == ([1] if alike else [1, 3])
    assert await mail.take() == []


async def test_very_long_keys_are_told_apart(store: Store) -> None:
    mail = Mail(store)
    await mail.create()
    await store.set_limit(limit(1, key="input"))
    await mail.send(*(json.dumps("x" * 3000 + end) for end in "aab"))
    assert [each[-2] for each in await mail.take()] == ["a", "b"]
    assert await mail.take() == []


async def test_a_more_urgent_message_that_must_wait_lets_others_pass(store: Store) -> None:
    mail = Mail(store)
    await mail.create(has_priorities=True)
    await store.set_limit(limit(1, key="input.of"))
    for number, (of, priority) in enumerate([("a", 2), ("a", 0), ("a", 4), ("b", 4), ("b", 1)]):
        await mail.send(json.dumps({"of": of, "n": number}), priority=priority)
    first = await mail.deliveries()
    assert numbers(*first) == [1, 4]
    assert await mail.take() == []
    await ack(store, *first)
    second = await mail.deliveries()
    assert numbers(*second) == [0, 3]
    await ack(store, *second)
    assert numbers(*await mail.deliveries()) == [2]


async def test_a_delayed_message_comes_in_its_turn(store: Store, clock: Clock) -> None:
    mail = Mail(store)
    await mail.create()
    await store.set_limit(limit(1, key="input.of"))
    await mail.send('{"of": "a", "n": 1}', delay_seconds=10)
    await mail.send('{"of": "a", "n": 2}', '{"of": "a", "n": 3}')
    [first] = await mail.deliveries(visibility_seconds=1000)
    assert await mail.take() == []
    await clock.advance(11)
    assert await mail.take() == []
    await mail.send('{"of": "a", "n": 4}')
    for number in (3, 1, 4):
        await ack(store, first)
        [first] = await mail.deliveries(visibility_seconds=1000)
        assert numbers(first) == [number]


async def test_a_limit_of_dead_letters_and_a_redrive_of_what_it_holds_up(store: Store) -> None:
    mail, dead = Mail(store), Mail(store, "mail.dead")
    await mail.create(max_receives=1)
    await mail.send(*(json.dumps({"of": "a", "n": number}) for number in range(3)))
    for each in await mail.deliveries():
        await store.return_messages([MessageReturn(Receipt(each.queue_id, each.delivery_id))])
    await store.set_limit(limit(1, name="mail.dead", key="input.of"))
    assert numbers(*await dead.deliveries()) == [0]
    assert await dead.take() == []
    assert (await store.redrive_messages("mail"))[0] == 2
    assert numbers(*await mail.deliveries()) == [1, 2]
    assert await dead.take() == []


async def test_a_condition_and_a_limit_by_key_hold_together(store: Store) -> None:
    mail = Mail(store)
    await mail.create(has_filters=True)
    await store.set_limit(limit(1, key="input.of"))
    sent = [{"of": "a", "n": 1, "up": 1}, {"of": "a", "n": 2}, {"of": "b", "n": 3, "up": 1}]
    await mail.send(*map(json.dumps, [*sent, {"of": "a", "n": 4, "up": 1}]))
    first, *_ = taken = await mail.deliveries(contains='{"up": 1}')
    assert numbers(*taken) == [1, 3]
    assert await mail.take() == []
    await ack(store, first)
    [fourth] = await mail.deliveries(contains='{"up": 1}')
    assert numbers(fourth) == [4]
    await ack(store, fourth)
    assert numbers(*await mail.deliveries()) == [2]


async def test_a_condition_passes_over_older_messages_of_the_same_key(store: Store) -> None:
    mail = Mail(store)
    await mail.create(has_filters=True)
    await store.set_limit(limit(1, key="input.of"))
    await mail.send('{"of": "a", "n": 1}', '{"of": "a", "n": 2, "up": 1}')
    [second] = await mail.deliveries(contains='{"up": 1}')
    assert numbers(second) == [2]
    assert await mail.take() == []
    await ack(store, second)
    assert await mail.take(contains='{"up": 1}') == []
    assert numbers(*await mail.deliveries()) == [1]


@pytest.mark.parametrize(("most", "limit_", "expected"), [(4, 5, 3), (7, 2, 6), (2, 9, 2)])
async def test_batches_of_groups_stay_within_the_limit(
    store: Store, most: int, limit_: int, expected: int
) -> None:
    """And keep the order of each."""
    mail = Mail(store)
    await mail.create(fifo=True)
    await store.set_limit(limit(most))
    for group in "abc":
        await mail.send("1", "2", "3", "4", group=group)
    taken = await mail.deliveries(limit_, per_group=3)
    assert sum(len(each.messages) for each in taken) == expected
    assert all(payloads(each) == ["1", "2", "3", "4"][: len(each.messages)] for each in taken)


async def test_a_group_whose_first_message_must_wait_keeps_its_order(store: Store) -> None:
    mail = Mail(store)
    await mail.create(fifo=True)
    await store.set_limit(limit(1, key="input.of"))
    await mail.send('{"of": "a", "n": 1}', group="g")
    await mail.send('{"of": "a", "n": 2}', '{"of": "b", "n": 3}', group="h")
    await mail.send('{"of": "b", "n": 4}', group="i")
    first = await mail.deliveries(per_group=5)
    assert numbers(*first) == [1, 4]
    assert await mail.take() == []
    await ack(store, first[1])
    assert await mail.take() == []  # the third comes after the second
    await ack(store, first[0])
    [second] = await mail.deliveries(per_group=5)
    assert numbers(second) == [2]
    await ack(store, second)
    assert numbers(*await mail.deliveries()) == [3]


async def test_messages_of_topics_and_pops_obey_limits(store: Store) -> None:
    mail = Mail(store)
    await mail.create()
    await store.set_limit(limit(1))
    await mail.send("1", "2", "3")
    assert await mail.take(2, pops=True) == ["1"]  # as many as there is room for
    [second] = await mail.deliveries()
    assert payloads(second) == ["2"]
    assert await mail.take(pops=True) == []


async def test_a_message_whose_time_is_over_may_be_received_now(
    store: Store, clock: Clock, mail: Mail
) -> None:
    [sent] = await fill(mail, 1)
    assert len(await mail.deliveries()) == 1
    await clock.advance(3600)
    found = await explain_message(store, "mail", sent)
    assert found.state == "in_flight"
    assert found.because.endswith(" time; its time is over, and others may receive it now")
