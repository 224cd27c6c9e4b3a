"""Deliveries of events to URLs: taken, tried again, dead. B14."""

from __future__ import annotations

import json

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import (
    ClaimedDelivery,
    EndedDelivery,
    NewEvent,
    NewSubscription,
    Notice,
    SubscriptionRecord,
    UrlTarget,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "https://example.org/events?a=b"


async def subscribe(store: Store, url: str = URL, pattern: str = "#", **fields: object) -> int:
    target = UrlTarget(url=url, secret=SECRET, allow_inner=bool(fields.get("allow_inner")))
    return (await store.subscribe(NewSubscription(pattern=pattern, target=target)))[0]


async def publish(store: Store, count: int = 1) -> list[Notice]:
    notices: list[Notice] = []
    for n in range(count):
        event = NewEvent(topic="a.b", payload=json.dumps({"n": n}), event_id=f"e-{n}")
        published, notices = await store.publish(event)
        assert published.urls > 0
    return notices


async def take(store: Store) -> ClaimedDelivery:
    [claimed] = await store.claim_deliveries(limit=10)
    return claimed


async def fail(store: Store, claimed: ClaimedDelivery, error: str = "the answer is 500") -> int:
    ended = EndedDelivery(claimed.delivery_id, claimed.attempt, 500, error)
    return await store.end_deliveries([ended])


async def test_an_attempt_waits_for_as_long_as_the_target_asked(store: Store, clock: Clock) -> None:
    """Never for less than the pause between attempts."""
    await subscribe(store)
    await publish(store)
    for seconds, pause in ((0.0, 10), (900.0, 900), (5.0, 60)):
        claimed = await take(store)
        error = "the answer is 429"
        ended = EndedDelivery(claimed.delivery_id, claimed.attempt, 429, error, seconds)
        assert await store.end_deliveries([ended]) == 0
        await clock.advance(pause - 1)
        assert await store.claim_deliveries(limit=10) == []
        await clock.advance(1)


async def test_an_event_is_delivered_once_it_was_taken(store: Store) -> None:
    """B14. The claim has all that a request needs; what was delivered leaves nothing."""
    subscribed = await subscribe(store, allow_inner=True)
    now = await store.now()
    assert await publish(store) == [Notice("deliveries", "")]
    assert await store.next_delivery_at() == now
    claimed = await take(store)
    assert claimed == ClaimedDelivery(
        delivery_id=claimed.delivery_id,
        attempt=1,
        subscription_id=subscribed,
        event_id="e-0",
        topic="a.b",
        payload='{"n": 0}',
        published_at=now,
        url=URL,
        secret=SECRET,
        allow_inner=True,
    )
    assert json.loads(claimed.body()) == {
        "type": "a.b",
        "timestamp": "2026-01-01T00:00:00+00:00",
        "data": {"n": 0},
    }
    assert await store.claim_deliveries(limit=10) == []
    ended = EndedDelivery(claimed.delivery_id, 1, 204)
    assert await store.end_deliveries([ended, ended]) == 0
    assert await store.list_deliveries() == []
    assert await store.next_delivery_at() is None


async def test_a_failed_delivery_is_tried_five_times(store: Store, clock: Clock) -> None:
    """B14. After 10, 30, 60 and 300 s; then it is dead, and can be delivered again or deleted."""
    await subscribe(store)
    await publish(store)
    for pause in (10, 30, 60, 300):
        assert await fail(store, await take(store)) == 0
        await clock.advance(pause - 1)
        assert await store.claim_deliveries(limit=10) == []
        await clock.advance(1)
    last = await take(store)
    assert last.attempt == 5
    assert await fail(store, last, "x" * 3_000) == 1
    [dead] = await store.list_deliveries(dead=True)
    assert (dead.attempts, dead.status, dead.due_at, dead.url) == (5, 500, None, URL)
    assert dead.dead_at == await store.now()
    assert dead.error is not None
    assert len(dead.error) == 2_000
    await clock.advance(1_000)
    assert await store.claim_deliveries(limit=10) == []
    assert await store.next_delivery_at() is None
    assert await store.list_deliveries(dead=False) == []
    assert await store.redrive_deliveries() == (1, [Notice("deliveries", "")])
    assert await store.redrive_deliveries([dead.delivery_id]) == (0, [])
    assert (await take(store)).attempt == 1
    assert await store.discard_deliveries() == 0


async def test_an_attempt_after_which_another_began_changes_nothing(
    store: Store, clock: Clock
) -> None:
    """B14. As a lease: the first worker was slow, and its success or failure comes too late."""
    await subscribe(store)
    await publish(store)
    slow = await take(store)
    await clock.advance(60)
    second = await take(store)
    assert (second.delivery_id, second.attempt) == (slow.delivery_id, 2)
    assert await store.end_deliveries([EndedDelivery(slow.delivery_id, 1, 200)]) == 0
    assert await fail(store, slow) == 0
    [open_one] = await store.list_deliveries(dead=False)
    assert (open_one.error, open_one.due_at) == (None, await store.now() + 60_000_000)
    assert await fail(store, second) == 0


async def test_a_delivery_that_kills_its_workers_is_dead_after_five(
    store: Store, clock: Clock
) -> None:
    """B14, as section 4 asks of a deliverer that is killed."""
    await subscribe(store)
    await publish(store)
    for _ in range(5):
        await take(store)
        await clock.advance(60)
    assert await store.claim_deliveries(limit=10) == []
    [dead] = await store.list_deliveries(dead=True)
    assert (dead.attempts, dead.error) == (5, "the worker was lost")
    assert await store.discard_deliveries([dead.delivery_id]) == 1


async def test_a_target_that_hangs_leaves_room_for_the_others(store: Store) -> None:
    """B14."""
    hangs = await subscribe(store, "https://example.org/hangs")
    await publish(store, 5)
    other = await subscribe(store, "https://example.org/other")
    taken = await store.claim_deliveries(limit=10, each=3)
    assert [each.subscription_id for each in taken] == [hangs] * 3
    await store.publish(NewEvent(topic="c"))
    taken = await store.claim_deliveries(limit=10, each=3, busy=[hangs] * 3)
    assert [each.subscription_id for each in taken] == [other]
    await store.publish(NewEvent(topic="d"))
    taken = await store.claim_deliveries(limit=1, each=3, busy=[hangs] * 2)
    assert [each.subscription_id for each in taken] == [other]  # it has fewer under way
    taken = await store.claim_deliveries(limit=10, each=3, busy=[hangs] * 2 + [other])
    assert [each.subscription_id for each in taken] == [hangs]
    assert len(await store.claim_deliveries(limit=2)) == 2


async def test_the_secret_is_never_shown(store: Store) -> None:
    """B14."""
    one = await subscribe(store)
    [shown] = await store.list_subscriptions(kind="url")
    assert shown.target == UrlTarget(url=URL)
    assert SECRET not in repr(shown)
    assert SECRET not in repr(UrlTarget(url=URL, secret=SECRET))
    assert isinstance(shown, SubscriptionRecord)
    await publish(store)
    assert await store.unsubscribe(one)
    assert await store.list_deliveries() == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.org/",
        "https://",
        "https://a b/",
        "https://user:pass@example.org/",
        "https://example.org/#part",
        "https://example.org/\r\nhost: other",
        "https://exämple.org/",
        "https://example.org/" + "x" * 2_048,
    ],
)
async def test_a_url_that_cannot_be_is_refused(store: Store, url: str) -> None:
    """Edge case 26, and no request can be smuggled into a header."""
    with pytest.raises(InvalidInput):
        await subscribe(store, url)


async def test_a_secret_that_cannot_sign_is_refused(store: Store) -> None:
    for secret in (None, "short", "x" * 1_025):
        new = NewSubscription(pattern="a", target=UrlTarget(url=URL, secret=secret))
        with pytest.raises(InvalidInput):
            await store.subscribe(new)
