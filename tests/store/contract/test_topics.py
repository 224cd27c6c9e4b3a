"""Topics: what an event reaches. B14."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput, PayloadError, UnknownQueue
from holdfast.store.port import Store
from holdfast.types import (
    DeclaredRules,
    Event,
    Finish,
    NewEvent,
    NewSubscription,
    Notice,
    Published,
    QueueSettings,
    QueueTarget,
    Receive,
    RunFilter,
    RunTarget,
    StartRules,
    Suspend,
)
from holdfast.values.patterns import event_signal

from .actors import ManualWorker, details, get, log, start

PAID = "orders.*.paid"


async def publish(store: Store, topic: str = "orders.17.paid", payload: Any = None) -> Published:
    """Publish an event, and return what it has reached."""
    published, _ = await store.publish(NewEvent(topic=topic, payload=json.dumps(payload)))
    return published


async def subscribe(
    store: Store, pattern: str = PAID, name: str = "order", match: Any = None, **fields: Any
) -> int:
    """Subscribe a workflow, and return the subscription's id."""
    text = None if match is None else json.dumps(match)
    new = NewSubscription(pattern=pattern, match=text, target=RunTarget(name=name, **fields))
    return (await store.subscribe(new))[0]


def asks(pattern: str = PAID, match: Any = None) -> Event:
    """Return the command by which a run subscribes."""
    text = None if match is None else json.dumps(match)
    told = json.dumps({"pattern": pattern, "match": match})
    return Event("EventSubscribed", event_signal(pattern, text), told, 0)


async def wait(worker: ManualWorker, store: Store, *asked: Event) -> UUID:
    """Start a run that subscribes and waits."""
    run_id = await start(store)
    task = await worker.take()
    signals = tuple(event.key or "" for event in asked)
    await worker.commit(task, *asked, then=Suspend(awaiting=signals))
    return run_id


async def events_of(store: Store, run_id: UUID) -> list[Any]:
    """Return the payloads of the events that a run was told of."""
    found = [event for event in await log(store, run_id) if event.type == "SignalReceived"]
    return [details(event)["input"]["payload"] for event in found]


async def test_an_event_starts_what_is_subscribed(store: Store, clock: Clock) -> None:
    """B14. The payload is the input, and the headers say which event it was."""
    subscribed = await subscribe(store, headers={"team": "a"}, queue="paid", priority=1)
    event = NewEvent(topic="orders.17.paid", payload='{"b":1,"a":2}', event_id="e-1")
    published, notices = await store.publish(event)
    assert published == Published(event_id="e-1", workflows=1)
    assert notices == [Notice("work", "paid")]
    [listed] = (await store.list_runs(RunFilter())).runs
    run = await get(store, listed.run_id)
    assert (run.input, run.queue, run.priority) == ('{"b":1,"a":2}', "paid", 1)
    assert run.key == f"e-1/{subscribed}"
    assert run.headers == {"team": "a", "holdfast-topic": "orders.17.paid", "holdfast-event": "e-1"}
    assert (await publish(store, "orders.17.sent")).workflows == 0


@pytest.mark.parametrize(
    ("pattern", "topics", "others"),
    [
        ("a", ["a"], ["b", "a.a", "aa"]),
        ("*", ["a", "0"], ["a.b"]),
        ("#", ["a", "a.b", "a.b.c.d"], []),
        ("a.*", ["a.b", "a.-"], ["a", "a.b.c", "b.b", "a-.b"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab", "a-b.c"]),
        ("#.z", ["z", "a.z", "a.b.z", "z.z"], ["z.a", "az"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b", "a.b.b"], ["a", "b", "a.b.c"]),
        ("#.a.#", ["a", "a.b", "b.a", "x.a.y.a"], ["b", "b.c"]),
        ("*.#.*", ["a.b", "a.b.c"], ["a"]),
        ("#.#", ["a", "a.b"], []),
        ("a.*.c.#", ["a.b.c", "a.b.c.d"], ["a.c", "a.b.d"]),
    ],
)
async def test_patterns(store: Store, pattern: str, topics: list[str], others: list[str]) -> None:
    """Edge case 19."""
    for other in ("b.x", "a.b.c.d.e.f.never", "a-.never", "zz.#.never"):
        await subscribe(store, other)
    await subscribe(store, pattern)
    for topic in topics:
        assert (await publish(store, topic)).workflows == 1, topic
    for topic in others:
        assert (await publish(store, topic)).workflows == 0, topic


@pytest.mark.parametrize("bad", ["", ".", "a.", ".a", "a..b", "a b", "ä", "a/b", "a" * 256])
async def test_names_at_their_limits(store: Store, bad: str) -> None:
    """Edge cases 19, 26."""
    with pytest.raises(InvalidInput):
        await publish(store, bad)
    with pytest.raises(InvalidInput):
        await subscribe(store, bad)
    for pattern in ("a*", "#a", "**"):
        with pytest.raises(InvalidInput):
            await subscribe(store, pattern)
    with pytest.raises(InvalidInput):
        await publish(store, "a.*")
    longest = ".".join(["a"] * 128)
    assert len(longest) == 255
    await subscribe(store, ".".join(["*"] * 128))
    assert (await publish(store, longest)).workflows == 1


@pytest.mark.parametrize(
    ("match", "payloads", "others"),
    [
        ({"a": 1}, [{"a": 1}, {"a": 1.0}, {"b": 2, "a": 1}], [{"a": 2}, {"a": "1"}, [1], None]),
        ({"a": 1.50}, [{"a": 1.5}], [{"a": 1}]),
        ({"a": {"b": "x"}, "c": True}, [{"a": {"b": "x", "d": 0}, "c": True}], [{"a": "x"}]),
        ({"a": [2]}, [{"a": [1, 2]}], [{"a": [1]}, {"a": 2}]),
        ([1], [[1, 2]], [1, [2]]),
        (1, [1, [1, 2]], [2]),
        ({}, [{}, {"a": 1}], [[], None, 1]),
        ({"a": None}, [{"a": None}], [{}, {"a": 0}]),
        ({"a.b": 1}, [{"a.b": 1}], [{"a": {"b": 1}}]),
        ({"a": "x" * 600}, [{"a": "x" * 600}], [{"a": "x" * 599}]),
    ],
)
async def test_a_condition_is_containment(
    store: Store, match: Any, payloads: list[Any], others: list[Any]
) -> None:
    """B14, as `jsonb @>`."""
    await subscribe(store, match=match)
    for payload in payloads:
        assert (await publish(store, payload=payload)).workflows == 1, payload
    for payload in others:
        assert (await publish(store, payload=payload)).workflows == 0, payload


async def test_a_subscription_is_its_pattern_match_and_target(store: Store) -> None:
    one = await subscribe(store, match={"a": 1, "b": 2})
    assert await subscribe(store, match={"b": 2, "a": 1}, queue="other") == one
    others = [
        await subscribe(store),
        await subscribe(store, name="bill"),
        await subscribe(store, "#"),
    ]
    assert len({one, *others}) == 4
    found = await store.list_subscriptions()
    assert [each.subscription_id for each in found] == sorted([one, *others])
    assert found[0].target == RunTarget(name="order", queue="other")
    assert [
        each.subscription_id for each in await store.list_subscriptions(after=one, limit=1)
    ] == ([others[0]])
    assert await store.list_subscriptions(topic="invoices.1") == found[3:]
    assert await store.unsubscribe(one)
    assert not await store.unsubscribe(one)
    assert (await publish(store, payload={"a": 1, "b": 2})).workflows == 3


async def test_an_event_id_counts_once(store: Store, clock: Clock) -> None:
    """B14. A repeated publish starts nothing, also when the ids were forgotten."""
    await subscribe(store)
    event = NewEvent(topic="orders.1.paid", event_id="e-1")
    answers = await asyncio.gather(*(store.publish(event) for _ in range(5)))
    assert sorted(answer.is_new for answer, _ in answers) == [False] * 4 + [True]
    await clock.advance(3_601)
    assert await store.sweep_topics() == 1
    again, _ = await store.publish(event)
    assert again == Published(event_id="e-1")
    assert len((await store.list_runs(RunFilter())).runs) == 1
    for bad in ("", "x" * 256):
        with pytest.raises(InvalidInput):
            await store.publish(NewEvent(topic="a", event_id=bad))


async def test_starts_obey_the_rules_of_their_workflow(store: Store) -> None:
    """B14. A start that a rule refuses fails nobody's publish."""
    await store.declare_start_rules(
        [DeclaredRules("order", 1, StartRules(singleton_conflict="refuse"))]
    )
    await subscribe(store)
    await subscribe(store, name="bill")
    first, second = await publish(store), await publish(store)
    assert (first.workflows, first.refused) == (2, 0)
    assert (second.workflows, second.refused) == (1, 1)


async def test_a_run_that_waits_is_told_and_woken(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """B14. As by a signal: the event is in its log."""
    run_id = await wait(ann, store, asks())
    published, notices = await store.publish(
        NewEvent(topic="orders.17.paid", payload='{"b":1,"a":2}', event_id="e-1")
    )
    assert published == Published(event_id="e-1", runs=1)
    assert notices == [Notice("work", "default")]
    told = (await log(store, run_id))[-1]
    assert (told.type, told.key) == ("SignalReceived", f"e-1 event:{PAID}")
    assert told.at == await store.now()
    assert details(told) == {
        "signal_name": f"event:{PAID}",
        "input": {"topic": "orders.17.paid", "id": "e-1", "payload": {"b": 1, "a": 2}},
    }
    assert (await get(store, run_id)).state == "queued"
    assert (await store.count_subscriptions("orders.17.paid")) == {"run": 1}
    assert await store.list_subscriptions() == []
    [shown] = await store.list_subscriptions(kind="run")
    assert (shown.run_id, shown.pattern, shown.target) == (run_id, PAID, None)
    assert not await store.unsubscribe(shown.subscription_id)


async def test_events_reach_a_run_also_while_it_does_not_wait(
    store: Store, ann: ManualWorker
) -> None:
    """Edge case 22. Held by a worker, asleep, or with another event under way."""
    run_id = await wait(ann, store, asks(), asks("orders.#"))
    await publish(store, payload=1)  # it fits both
    task = await ann.take()
    published, notices = await store.publish(NewEvent(topic="orders.1.paid", payload="2"))
    assert (published.runs, notices) == (2, [Notice("worker/ann", str(run_id))])
    await ann.commit(task, then=Suspend(awaiting=("other",)), expected=7)
    await publish(store, "orders", 3)
    assert await ann.claims() == []
    assert await events_of(store, run_id) == [1, 1, 2, 2, 3]


async def test_only_runs_whose_condition_holds_are_told(store: Store, ann: ManualWorker) -> None:
    """B14."""
    runs = [await wait(ann, store, asks(match={"order": n})) for n in range(3)]
    assert (await publish(store, payload={"order": 1, "by": "card"})).runs == 1
    assert [len(await events_of(store, run_id)) for run_id in runs] == [0, 1, 0]


async def test_a_subscription_ends_with_its_run(store: Store, ann: ManualWorker) -> None:
    await start(store)
    task = await ann.take()
    await ann.commit(task, asks())
    await ann.finish(task, expected=2)
    assert (await publish(store)).runs == 0
    assert await store.count_subscriptions("orders.1.paid") == {}
    await start(store)
    await ann.commit(await ann.take(), asks(), then=Finish("completed", "null"))
    assert await store.sweep_topics() == 1
    assert await store.count_subscriptions("orders.1.paid") == {}


async def test_a_run_that_continues_as_new_keeps_its_subscriptions(
    store: Store, ann: ManualWorker
) -> None:
    """Edge case 22. Nothing is lost in between, and what was not read is passed on."""
    run_id = await wait(ann, store, asks())
    await publish(store, payload=1)
    task = await ann.take()
    new_id = uuid4()
    signals = [
        {
            "signal_name": f"event:{PAID}",
            "input": {"topic": "orders.17.paid", "id": "e", "payload": 1},
            "key": f"e event:{PAID}",
            "update": False,
            "reply_to": None,
        }
    ]
    told = {"run_id": str(new_id), "input": None, "version": 1, "signals": signals}
    continued = Event("WorkflowContinuedAsNew", None, json.dumps(told), 0)
    output = json.dumps({"run_id": str(new_id)})
    await ann.commit(task, continued, then=Finish("continued", output))
    assert (await publish(store, payload=2)).runs == 1
    assert await events_of(store, new_id) == [1, 2]
    assert await events_of(store, run_id) == [1]
    await ann.commit(await ann.take(), asks(), then=Suspend(awaiting=(f"event:{PAID}",)))
    assert (await publish(store, payload=3)).runs == 1
    assert await events_of(store, new_id) == [1, 2, 3]


async def test_what_code_declares_holds_while_a_worker_declares_it(
    store: Store, clock: Clock
) -> None:
    """B14. While a release replaces another, the subscriptions of both hold."""
    old = NewSubscription(pattern="old", target=RunTarget(name="order"))
    new = NewSubscription(pattern="new", target=RunTarget(name="order"))
    assert (await store.declare_subscriptions("shop", [old])).added == ["old"]
    assert (await store.declare_subscriptions("shop", [old, new])).added == ["new"]
    for _ in range(4):
        await clock.advance(30)
        declared = await store.declare_subscriptions("shop", [new])
    assert list(declared.paused) == ["old"]
    assert (await publish(store, "old")).workflows == 0
    assert (await publish(store, "new")).workflows == 1
    assert not (await store.declare_subscriptions("other", [])).paused
    shown = {each.pattern: each.paused_by for each in await store.list_subscriptions()}
    assert shown == {"old": "code", "new": None}
    again = await store.declare_subscriptions("shop", [old, new])
    assert (list(again.added), list(again.resumed)) == ([], ["old"])
    assert (await publish(store, "old")).workflows == 1


async def test_what_code_declares_holds_although_the_database_was_away(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """Nobody could declare it. Who was heard since then for long knows that it is gone."""
    target = RunTarget(name="shop/order")
    await store.declare_subscriptions("shop", [NewSubscription(pattern="new", target=target)])
    info = ann.info(started_at=await store.now(), handlers=("shop/order@1",))
    for seconds in (0, 100, *(10,) * 8):
        await clock.advance(seconds)
        await store.heartbeat(info, [], lease_seconds=30, interval_seconds=10)
        assert not (await store.declare_subscriptions("shop", [])).paused
    await clock.advance(10)
    await store.heartbeat(info, [], lease_seconds=30, interval_seconds=10)
    assert list((await store.declare_subscriptions("shop", [])).paused) == ["new"]


@pytest.mark.parametrize("payload", [{"n": 1}, {"n": "x" * 3_000}])
async def test_an_event_is_sent_to_queues(store: Store, payload: Any) -> None:
    """B14. Once to each queue, whatever number of its subscriptions fits."""
    for settings in (
        QueueSettings(name="plain"),
        QueueSettings(name="fifo", fifo=True),
        QueueSettings(name="filtered", has_filters=True),
        QueueSettings(name="gone"),
    ):
        await store.create_queue(settings)
        for pattern in ("#", "orders.#"):
            target = QueueTarget(queue=settings.name)
            await store.subscribe(NewSubscription(pattern=pattern, target=target))
    await store.delete_queue("gone")
    event = NewEvent(topic="orders.1", payload=json.dumps(payload), event_id="e-1")
    published, notices = await store.publish(event)
    assert (published.queues, published.workflows) == (3, 0)
    names = ("fifo", "filtered", "plain")
    assert sorted(notices, key=str) == [Notice(f"messages/{name}", name) for name in names]
    for name in names:
        received = await store.receive_messages(Receive(queue=name, limit=10))
        [delivery] = received.deliveries
        assert delivery.group == ("orders.1" if name == "fifo" else None)
        [message] = delivery.messages
        assert json.loads(message.payload) == payload
        assert message.headers == {"holdfast-topic": "orders.1", "holdfast-event": "e-1"}
    [shown, *_] = await store.list_subscriptions(kind="queue")
    assert shown.target == QueueTarget(queue="plain")
    never = NewSubscription(pattern="a", target=QueueTarget(queue="never"))
    with pytest.raises(UnknownQueue):
        await store.subscribe(never)


async def test_a_payload_that_cannot_be_is_refused(store: Store) -> None:
    await subscribe(store, match={"a": 1})
    for bad in ('{"a":', '"\\u0000"', "[" * 300 + "]" * 300):
        with pytest.raises((InvalidInput, PayloadError)):
            await store.publish(NewEvent(topic="orders.1.paid", payload=bad))
    assert (await store.list_runs(RunFilter())).runs == []


@pytest.mark.parametrize("fifo", [False, True])
async def test_an_event_that_is_known_reaches_nothing_again(
    store: Store, clock: Clock, fifo: bool
) -> None:
    """F30. Neither a queue nor a workflow, also one that is subscribed only now."""
    await store.create_queue(QueueSettings(name="mail", fifo=fifo))
    await store.subscribe(NewSubscription(pattern=PAID, target=QueueTarget(queue="mail")))
    event = NewEvent(topic="orders.17.paid", event_id="e-1")
    assert (await store.publish(event))[0] == Published(event_id="e-1", queues=1)
    await subscribe(store)
    again, notices = await store.publish(event)
    assert (again, notices) == (Published(event_id="e-1", is_new=False), [])
    assert len(await store.list_messages("mail")) == 1
    assert (await store.list_runs(RunFilter())).runs == []
    await clock.advance(3601)
    assert (await store.publish(event))[0].is_new
