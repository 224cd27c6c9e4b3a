"""Random subscriptions and events on both stores, which must agree."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from machine_runs import NAMES, PICK, WorkAgrees
from msgspec.structs import replace
from seeded import act, run_seeds, some

from holdfast.store.port import Store
from holdfast.types import (
    EventTarget,
    MessageReturn,
    NewEvent,
    NewSubscription,
    QueueSettings,
    QueueTarget,
    Receipt,
    Receive,
    RunTarget,
)

PATTERNS = ("a.b", "a.*", "#", "c.#")
TOPICS = ("a.b", "a.c", "c", "c.d.e")
MATCHES = (None, None, '{"n": 1}', '{"n": [1]}')  # as jsonb writes it
PAYLOADS = ("null", '{"n":1}', '{"n":[1,2]}', "[1]")
QUEUES = ("mail", "fifo", "dead")
IDS = ("", "", "e-1", "e-2", "e-3")  # "" for one of its own


class TopicsAgree(WorkAgrees):
    """Subscribes workflows and message queues, publishes events, and receives messages."""

    def begin(self, chance: Random) -> None:
        """Create the queues."""
        self.published = 0
        self.subscriptions: list[int] = []
        self.receipts: dict[int, list[Receipt]] = {id(self.model): [], id(self.other): []}
        for name in ("dead", "mail", "fifo"):
            self.create(name)
        for _ in range(2):
            self.subscribe(chance.choice(PATTERNS), None, chance.choice([*NAMES, "mail", "fifo"]))

    @act(name=QUEUES)
    def create(self, name: str) -> None:
        """Create a queue, which may exist."""
        settings = QueueSettings(name=name, fifo=name == "fifo", visibility_seconds=3.0)
        known = [queue.settings.name for queue in self.wait(self.model.list_queues())]
        if name == "mail":
            settings = replace(settings, max_receives=2, dead_letters="dead")
        if name not in known:
            self.do(lambda store: store.create_queue(settings))

    @act(name=("mail", "fifo"))
    def delete(self, name: str) -> None:
        """Delete a queue with its messages; its subscriptions go with it, or reach nothing."""
        self.do(lambda store: store.delete_queue(name))

    @act(weight=2, pattern=PATTERNS, match=MATCHES, name=(*NAMES, "mail", "fifo"))
    def subscribe(self, pattern: str, match: str | None, name: str) -> None:
        """Subscribe a workflow or a queue that exists."""
        known = [queue.settings.name for queue in self.wait(self.model.list_queues())]
        if name in NAMES or name in known:
            to: EventTarget = RunTarget(name=name) if name in NAMES else QueueTarget(queue=name)
            new = NewSubscription(pattern=pattern, match=match, target=to)
            self.agree_on_the_next_id()
            self.subscriptions.append(self.do(lambda store: store.subscribe(new))[0])

    @act(weight=3, seconds=(0, 40, 100), patterns=some(PATTERNS, 0, 1))
    def declare(self, seconds: float, patterns: list[str]) -> None:
        """Subscribe what the code of an app says; what it says no longer is paused after a time."""
        self.move(seconds)
        news = [NewSubscription(pattern=each, target=RunTarget(name=NAMES[1])) for each in patterns]
        self.agree_on_the_next_id()
        self.do(lambda store: store.declare_subscriptions("shop", news))

    def agree_on_the_next_id(self) -> None:
        """Let the sequence continue where the model does: one that exists uses up an id, too."""
        sequence = "holdfast.subscriptions_subscription_id_seq"
        made = self.model_tables.subscriptions_made
        self.wait(self.clock.execute(f"alter sequence {sequence} restart with {made + 1}"))

    @act(when="subscriptions", number=PICK)
    def unsubscribe(self, number: int) -> None:
        """Remove a subscription, perhaps once more."""
        which = self.subscriptions[number % len(self.subscriptions)]
        self.do(lambda store: store.unsubscribe(which))

    @act(weight=6, topic=TOPICS, payload=PAYLOADS, event_id=IDS)
    def publish(self, topic: str, payload: str, event_id: str) -> None:
        """Publish an event; one with the same id counts once."""
        self.published += 1
        event_id = event_id or f"own-{self.published}"
        event = NewEvent(topic=topic, payload=payload, event_id=event_id)
        self.do(lambda store: store.publish(event))
        self.learn()

    @act(topic=TOPICS, payload=PAYLOADS, event_id=IDS)
    def roll_back(self, topic: str, payload: str, event_id: str) -> None:
        """Publish in a transaction that is rolled back: nothing of it is left."""
        call = f"holdfast.publish('{topic}', '{payload}', nullif('{event_id}', ''))"
        self.wait(self.clock.execute(f"begin; select {call}; rollback"))
        self.learn()

    @act(sweep=(True, False))
    def forget_ids(self, sweep: bool) -> None:
        """Let the ids of events be old, and perhaps do what maintenance does."""
        self.move(3601)
        if sweep:
            self.do(lambda store: store.sweep_topics())

    @act(weight=3, queue=QUEUES, seconds=(0, 1, 4))
    def receive(self, queue: str, seconds: float) -> None:
        """Receive all that is due. Receipts are kept in the same order for both stores."""
        self.move(seconds)
        if queue not in [each.settings.name for each in self.wait(self.model.list_queues())]:
            return

        async def payloads(store: Store) -> Any:
            answer = await store.receive_messages(Receive(queue=queue, limit=100, per_group=2))
            found = sorted(
                (each.group or "", one.message_id, one.payload, one.attempts, each, place)
                for each in answer.deliveries
                for place, one in enumerate(each.messages, 1)
            )
            self.receipts[id(store)] += [
                Receipt(each.queue_id, each.delivery_id, place) for *_, each, place in found
            ]
            return [(group, payload, attempts) for group, _, payload, attempts, *_ in found]

        self.do(payloads)

    @act(weight=2, numbers=some(PICK, 1, 6))
    def acknowledge(self, numbers: list[int]) -> None:
        """Acknowledge many, also late and twice."""

        async def ack(store: Store) -> Any:
            return (await store.ack_messages(self.picked(store, numbers)))[0]

        self.do(ack)

    @act(numbers=some(PICK, 1, 3))
    def give_back(self, numbers: list[int]) -> None:
        """Give some back: after two receives they are dead letters."""

        async def back(store: Store) -> Any:
            returns = [MessageReturn(each, error="no") for each in self.picked(store, numbers)]
            return (await store.return_messages(returns))[0]

        self.do(back)

    def picked(self, store: Store, numbers: list[int]) -> list[Receipt]:
        """Return receipts of a store, the newest being 0; each once."""
        kept = self.receipts[id(store)]
        return list(dict.fromkeys(kept[-1 - number % len(kept)] for number in numbers if kept))

    def check(self) -> None:
        """Compare who is subscribed, and how many messages there are."""
        super().check()

        async def all_of(store: Store) -> Any:
            counts = [await store.count_subscriptions(topic) for topic in TOPICS]
            queues = [(each.settings, each.is_paused) for each in await store.list_queues()]
            return await store.list_subscriptions(), counts, queues, await store.queue_metrics()

        self.both(all_of)


@pytest.mark.timeout(600)
def test_both_stores_publish_alike_whatever_is_asked(module_database_url: str) -> None:
    run_seeds(TopicsAgree, module_database_url, seeds=30, steps=40)
