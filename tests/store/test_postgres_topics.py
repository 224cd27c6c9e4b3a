"""Publishing in the database: what meets it at the worst moment, and what it reads. B14."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from contract.actors import ManualWorker, log, start
from contract.test_topics import PAID, asks, events_of, subscribe, wait
from msgspec.structs import replace
from scene import Scene, turn
from test_postgres_plans import READ

from holdfast.errors import InvalidInput
from holdfast.types import (
    Event,
    Finish,
    NewEvent,
    NewSubscription,
    QueueSettings,
    QueueTarget,
    Suspend,
    UrlTarget,
)


async def test_a_subscription_while_an_event_is_published(scene: Scene, ann: ManualWorker) -> None:
    """Edge case 18. Neither waits for the other; an event that is committed later is told."""
    session = await scene.session()
    publishing = session.transaction()
    await publishing.start()
    await session.call("publish", "orders.1.paid", "1")
    run_id = await wait(ann, scene.store, asks())
    await session.call("publish", "orders.1.paid", "2")
    await publishing.commit()
    assert await events_of(scene.store, run_id) == [2]


async def test_an_event_while_a_run_subscribes(scene: Scene, ann: ManualWorker) -> None:
    """Edge case 18. An uncommitted subscription holds up nobody; after its commit it holds."""
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    subscribing = session.transaction()
    await subscribing.start()
    part = turn(task, asks(), then=Suspend(awaiting=(f"event:{PAID}",)))
    await session.commit("ann", replace(part, has_commands=True))
    before, _ = await scene.store.publish(NewEvent(topic="orders.1.paid", payload="1"))
    await subscribing.commit()
    after, _ = await scene.store.publish(NewEvent(topic="orders.1.paid", payload="2"))
    assert (before.runs, after.runs) == (0, 1)
    assert await events_of(scene.store, run_id) == [2]
    assert await ann.claims() == [run_id]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_run_beside_an_open_publish(scene: Scene, ann: ManualWorker, commits: bool) -> None:
    """Edge case 20. Its worker does not wait; it continues with the event or without it."""
    run_id = await start(scene.store)
    task = await ann.take()
    await ann.commit(task, asks())
    session = await scene.session()
    publishing = session.transaction()
    await publishing.start()
    await session.call("publish", "orders.1.paid", "1")
    suspend = Suspend(awaiting=(f"event:{PAID}",))
    yielded = Event("WorkflowTaskYielded", None, None, 0)
    refused = await ann.refusal(task, yielded, then=suspend, expected=2)
    assert refused.reason in ("busy", "conflict")
    await (publishing.commit() if commits else publishing.rollback())
    answer = await ann.commit(task, yielded, then=suspend, expected=2)
    assert bool(answer.refused) == commits
    assert await events_of(scene.store, run_id) == [1] * commits


async def test_an_unsubscribe_while_an_event_is_published(scene: Scene, ann: ManualWorker) -> None:
    """Edge case 18. The publish waits for a run that it tells; then the workflow has gone."""
    run_id = await wait(ann, scene.store, asks())
    subscribed = await subscribe(scene.store)
    session = await scene.session()
    holding = session.transaction()
    await holding.start()
    await session.connection.execute(
        "select from holdfast.tasks where run_id = $1 for update", run_id
    )

    async def release() -> None:
        assert await scene.store.unsubscribe(subscribed)
        await holding.commit()

    event = NewEvent(topic="orders.1.paid", payload="1")
    published, _ = await scene.while_blocked(scene.store.publish(event), release)
    assert (published.workflows, published.refused, published.runs) == (0, 0, 1)
    assert await events_of(scene.store, run_id) == [1]


@pytest.mark.parametrize("commits", [True, False])
async def test_two_publishes_of_one_event_id(scene: Scene, commits: bool) -> None:
    """B14, edge case 20. The second waits; it counts if the first is rolled back."""
    await subscribe(scene.store)
    session = await scene.session()
    first = session.transaction()
    await first.start()
    await session.call("publish", "orders.1.paid", "1", "e-1")
    event = NewEvent(topic="orders.1.paid", event_id="e-1")
    release = first.commit if commits else first.rollback
    second, _ = await scene.while_blocked(scene.store.publish(event), release)
    assert second.is_new != commits
    assert await scene.value("select count(*) from holdfast.runs") == 1


async def test_an_event_while_a_run_continues_as_new(scene: Scene, ann: ManualWorker) -> None:
    """Edge case 22. The publish was about to tell the run that ends: the next one is told."""
    run_id = await wait(ann, scene.store, asks())
    await scene.store.publish(NewEvent(topic="orders.1.paid", payload="1"))
    task = await ann.take()
    new_id = uuid4()
    told = {"run_id": str(new_id), "input": None, "version": 1, "signals": []}
    continued = Event("WorkflowContinuedAsNew", None, json.dumps(told), 0)
    output = json.dumps({"run_id": str(new_id)})
    session = await scene.session()
    continuing = session.transaction()
    await continuing.start()
    part = turn(task, continued, then=Finish("continued", output))
    await session.commit("ann", replace(part, has_commands=True))
    event = NewEvent(topic="orders.1.paid", payload="2")
    published, _ = await scene.while_blocked(scene.store.publish(event), continuing.commit)
    assert published.runs == 1
    assert await events_of(scene.store, run_id) == [1]
    assert await events_of(scene.store, new_id) == [2]


async def waiting_runs(scene: Scene, count: int) -> None:
    """Let many runs wait, each for another value."""
    await scene.value(
        """
        with numbers as (
            select n, gen_random_uuid() as run_id from generate_series(1, $1::int) as n
        ), runs as (
            insert into holdfast.runs (run_id, name, version, queue, priority, input, created_at)
            select run_id, 'order', 1, 'default', 2, '1', now() from numbers
        ), events as (
            insert into holdfast.events (run_id, idx, event_type, at)
            select run_id, 0, 'WorkflowStarted', now() from numbers
        ), tasks as (
            insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, awaiting)
            select run_id, 'default', 'order@1', 2, 'infinity', array['event:orders.*.paid?' || n]
            from numbers
        ), subscriptions as (
            insert into holdfast.subscriptions (pattern, path, match, match_digest, match_key, kind,
                run_id, signal, created_at)
            select 'orders.*.paid', 'orders.*.paid.', jsonb_build_object('order', n), n::text,
                holdfast._match_key(jsonb_build_object('order', n)), 'run', run_id,
                'event:orders.*.paid?' || n, now()
            from numbers
        )
        select 1
        """,
        count,
    )


@pytest.mark.fresh_database
async def test_ten_thousand_runs_with_other_conditions_are_not_looked_at(scene: Scene) -> None:
    """B14. What a publish reads does not grow with those that wait."""
    read: list[tuple[int, int]] = []
    session = await scene.session()
    for count in (10, 10_000):
        await waiting_runs(scene, count)
        for payload in ('{"order": 0, "by": "card"}', '{"order": 7}'):
            async with session.transaction():
                before = await session.connection.fetchrow(READ)
                row = await session.connection.fetchrow(
                    "select * from holdfast.publish('orders.7.paid', $1::json)", payload
                )
                after = await session.connection.fetchrow(READ)
                assert before is not None
                assert after is not None
                assert row is not None
                read.append((after[0] - before[0], after[1] - before[1]))
                if payload == '{"order": 7}':
                    assert row["runs"] >= 1
    few, _, many, _ = read
    assert few[0] == many[0] == 0
    assert many[1] <= few[1] + 20


async def test_a_publish_to_many_idle_runs_is_one_statement(
    scene: Scene, ann: ManualWorker
) -> None:
    """B14. All are told, and each once."""
    runs = [await wait(ann, scene.store, asks()) for _ in range(20)]
    published, _ = await scene.store.publish(NewEvent(topic="orders.1.paid", event_id="e"))
    assert published.runs == 20
    for run_id in runs:
        assert len([e for e in await log(scene.store, run_id) if e.type == "SignalReceived"]) == 1
    assert sorted(await ann.claims()) == sorted(runs)


async def test_what_was_published_while_its_subscription_was_removed_is_deleted(
    scene: Scene,
) -> None:
    """Edge case 18. It is not delivered, and does not stay for ever."""
    target = UrlTarget(url="https://example.org/", secret="x" * 16)
    one, _ = await scene.store.subscribe(NewSubscription(pattern="a", target=target))
    session = await scene.session()
    publishing = session.transaction()
    await publishing.start()
    await session.call("publish", "a", "1")
    assert await scene.store.unsubscribe(one)
    await publishing.commit()
    assert await scene.store.claim_deliveries(limit=10) == []
    assert await scene.store.sweep_topics() == 1
    assert await scene.store.list_deliveries() == []


async def test_what_a_queue_with_filters_cannot_hold_is_refused_with_its_name(scene: Scene) -> None:
    """B14, edge case 13. As a send to that queue is."""
    await scene.store.create_queue(QueueSettings(name="alarms", has_filters=True))
    await scene.store.subscribe(NewSubscription(pattern="#", target=QueueTarget(queue="alarms")))
    with pytest.raises(InvalidInput, match="queue alarms, which is subscribed to a, has filters"):
        await scene.store.publish(NewEvent(topic="a", payload="1e200000"))
