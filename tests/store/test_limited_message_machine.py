"""Random sends, receives and limits of message queues on both stores.

Both hand out the same, in the same order, and never more than the limits allow.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from agreement import Agreement, run_machine
from hypothesis.stateful import initialize, rule

from holdfast.errors import MessageInFlight
from holdfast.store.port import Store
from holdfast.types import (
    LimitKind,
    LimitRule,
    MessageChange,
    MessageReturn,
    NewMessage,
    QueueSettings,
    Receipt,
    Receive,
)

NAMES = ("plain", "urgent", "some")
QUEUES = st.sampled_from(NAMES)
TENANTS = st.sampled_from(["ann", "bob", "eve"])
BACK = st.integers(0, 12)


@dataclass
class Flying:
    """A message in flight."""

    queue: str
    tenant: str
    until: int
    delivery: int


class LimitsAgree(Agreement):
    """Does everything on both stores, and counts what is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.tenants: list[tuple[str, str]] = []  # of each message, which is its number
        self.stored: dict[tuple[int, int], int] = {}  # by store and number
        self.receipts: dict[tuple[int, int], Receipt] = {}  # by store and number: the last
        self.flying: dict[int, Flying] = {}
        self.taken: list[int] = []
        self.limits: dict[tuple[str, LimitKind, str], int] = {}  # by queue, kind and key
        self.deliveries = 0

    @initialize()
    def begin(self) -> None:
        """Create the queues."""
        for name in NAMES:
            settings = QueueSettings(
                name=name, has_priorities=name == "urgent", has_filters=name == "some"
            )
            assert self.both(lambda store, settings=settings: store.create_queue(settings))

    @rule(
        queue=QUEUES,
        tenants=st.lists(TENANTS, min_size=1, max_size=5),
        delay=st.sampled_from([0, 0, 5]),
        priority=st.integers(0, 4),
    )
    def send(self, queue: str, tenants: list[str], delay: int, priority: int) -> None:
        """Send messages of tenants."""
        first = len(self.tenants)
        self.tenants += [(queue, each) for each in tenants]
        new = [
            NewMessage(
                json.dumps({"of": each, "n": number}),
                delay_seconds=float(delay) or None,
                priority=priority if queue == "urgent" else None,
            )
            for number, each in enumerate(tenants, first)
        ]

        async def send(store: Store) -> int:
            for number, found in enumerate((await store.send_messages(queue, new))[0], first):
                self.stored[id(store), number] = found
            return len(new)

        assert self.both(send) == len(tenants)

    @rule(
        queue=QUEUES,
        kind=st.sampled_from(["concurrency", "concurrency", "rate"]),
        key=st.sampled_from(["", "input.of"]),
        most=st.integers(0, 3),
    )
    def limit(self, queue: str, kind: LimitKind, key: str, most: int) -> None:
        """Set a limit, or remove it."""
        self.limits.pop((queue, kind, key), None)
        if most == 0:
            self.both(lambda store: store.remove_limit("queue", queue, kind, key))
            return
        self.limits[queue, kind, key] = most
        period = 10.0 if kind == "rate" else None
        limit = LimitRule(
            scope="queue", name=queue, kind=kind, most=most, key=key, period_seconds=period
        )
        self.both(lambda store: store.set_limit(limit))

    @rule(queue=QUEUES, limit=st.integers(1, 4), seconds=st.sampled_from([3, 12]))
    def receive(self, queue: str, limit: int, seconds: int) -> None:
        """Receive, and check that no limit is passed."""
        self.expire(queue)
        wanted = Receive(queue=queue, limit=limit, visibility_seconds=float(seconds))

        async def receive(store: Store) -> list[int]:
            found: list[int] = []
            for each in (await store.receive_messages(wanted)).deliveries:
                for place, message in enumerate(each.messages, 1):
                    number = json.loads(message.payload)["n"]
                    receipt = Receipt(each.queue_id, each.delivery_id, place)
                    self.receipts[id(store), number] = receipt
                    found.append(number)
            return found

        found: list[int] = self.both(receive)
        self.deliveries += 1
        for number in found:
            assert number not in self.flying
            tenant = self.tenants[number][1]
            self.flying[number] = Flying(queue, tenant, self.now + seconds, self.deliveries)
            self.taken.append(number)
        if found:
            self.check(queue, {self.tenants[number][1] for number in found})

    def check(self, queue: str, tenants: set[str]) -> None:
        """Compare what is in flight with the limits."""
        flying = Counter(each.tenant for each in self.flying.values() if each.queue == queue)
        for (of, kind, key), most in self.limits.items():
            if of == queue and kind == "concurrency":
                counted = [flying[each] for each in tenants] if key else [flying.total()]
                assert max(counted) <= most

    def expire(self, queue: str) -> None:
        """Forget what is beyond its visibility."""
        for number, each in list(self.flying.items()):
            if each.queue == queue and each.until <= self.now:
                del self.flying[number]

    @rule(back=BACK, act=st.sampled_from(["ack", "ack", "nack"]))
    def end(self, back: int, act: str) -> None:
        """Acknowledge a message or give it back, also one that is not in flight any more."""
        if back >= len(self.taken):
            return
        number = self.taken[-1 - back]

        async def end(store: Store) -> bool:
            receipt = self.receipts[id(store), number]
            if act == "ack":
                return (await store.ack_messages([receipt]))[0][0]
            return (await store.return_messages([MessageReturn(receipt)]))[0][0]

        assert self.both(end) == (number in self.flying)
        self.flying.pop(number, None)

    @rule(back=BACK, tenant=TENANTS, act=st.sampled_from(["change", "cancel"]))
    def act_on_one(self, back: int, tenant: str, act: str) -> None:
        """Give a message that waits to another tenant, or cancel it."""
        number = len(self.tenants) - 1 - back
        if number < 0:
            return
        queue = self.tenants[number][0]
        own = self.flying.get(number)
        if own is not None and own.until <= self.now:  # then all of its delivery is given back
            for other, each in list(self.flying.items()):
                if each.delivery == own.delivery:
                    del self.flying[other]
        change = MessageChange(payload=json.dumps({"of": tenant, "n": number}))

        async def carry_out(store: Store) -> bool | str:
            found = self.stored[id(store), number]
            try:
                if act == "cancel":
                    return (await store.cancel_message(queue, found))[0]
                return (await store.change_message(queue, found, change))[0]
            except MessageInFlight:
                return "in flight"

        if self.both(carry_out) is True and act == "change":
            self.tenants[number] = queue, tenant

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def pass_time(self, seconds: int) -> None:
        """Move time on."""
        self.now += seconds
        self.model.advance(seconds)
        self.wait(self.clock.advance(seconds))

    @rule(queue=QUEUES)
    def look(self, queue: str) -> None:
        """Count what is there, and what the limits hold."""

        async def look(store: Store) -> object:
            [counted] = await store.queue_metrics(queue)
            shown = await store.list_messages(queue)
            page = await store.message_page(queue, limit=100)
            limits = [
                (each.rule, each.held, each.used, each.full_keys, each.waiting)
                for each in await store.list_limits()
            ]
            numbers = [(json.loads(each.payload)["n"], each.priority) for each in shown]
            assert len(page.messages) == len(shown)
            return counted.due, counted.delayed, counted.in_flight, sorted(numbers), limits

        self.both(look)

    @rule(queue=QUEUES)
    def purge(self, queue: str) -> None:
        """Delete what waits."""
        self.both(lambda store: store.purge_messages(queue))

    def teardown(self) -> None:
        """Nothing is lost: without limits, all that waits is received."""
        if not self.tenants:
            return
        for queue, kind, key in self.limits:
            self.both(
                lambda store, q=queue, kind=kind, key=key: store.remove_limit("queue", q, kind, key)
            )
        self.limits.clear()
        self.pass_time(100)
        for queue in NAMES:

            async def drain(store: Store, queue: str = queue) -> tuple[int, int]:
                [counted] = await store.queue_metrics(queue)
                waits = counted.due + counted.in_flight
                found = await store.receive_messages(Receive(queue=queue, limit=1000))
                return waits, sum(len(each.messages) for each in found.deliveries)

            waiting, found = self.both(drain)
            assert waiting == found


@pytest.mark.timeout(600)  # a failure is reduced to the fewest steps, which takes its time
def test_both_stores_obey_limits_of_message_queues(module_database_url: str) -> None:
    run_machine(LimitsAgree, module_database_url, examples=40, steps=30)
