"""Random sends, receives and acknowledgements on both stores, beside a small model.

Nothing is lost, nothing is handed out twice within its visibility, and the order of a group is
never broken.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from agreement import Agreement, run_machine
from hypothesis.stateful import initialize, rule
from msgspec.structs import replace

from holdfast.errors import MessageInFlight
from holdfast.store.port import Store
from holdfast.types import MessageChange, MessageReturn, NewMessage, QueueSettings, Receipt, Receive

SECOND = 1_000_000
MOST = 3  # receives, before a message is a dead letter
GROUPS = ("ann", "bob", "eve")
QUEUES = st.sampled_from(["plain", "urgent", "fifo"])
DELAYS = st.sampled_from([0, 0, 5])
DEDUP_SECONDS = 4
ALL = 1000


@dataclass
class Known:
    """What the model knows of a message."""

    queue: str
    group: str | None
    due_at: int
    priority: int = 2
    state: str = "waiting"  # or: flight, done, dead, purged
    failures: int = 0
    attempts: int = 0
    delivery: int = -1
    until: int = 0


class MessagesAgree(Agreement):
    """Does everything on both stores, and checks it against the model."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Known] = []  # a payload is the place of its message
        self.receipts: list[tuple[int, int]] = []  # (message, delivery) of all receives
        self.stored: dict[tuple[int, int, int], Receipt] = {}  # with the id of the store
        self.numbers: dict[tuple[int, int], int] = {}  # of messages, by the ids of the stores
        self.dedups: dict[tuple[str, str], tuple[int, int]] = {}  # the message, and until when
        self.deliveries = 0
        self.now = 0

    @initialize()
    def begin(self) -> None:
        """Create the queues."""
        for name in ("plain", "urgent", "fifo"):
            settings = QueueSettings(
                name=name,
                fifo=name == "fifo",
                has_priorities=name == "urgent",
                max_receives=MOST,
                visibility_seconds=10,
                dedup_seconds=DEDUP_SECONDS,
                keep_seconds=1e6 if name != "urgent" else None,
            )
            assert self.both(lambda store, settings=settings: store.create_queue(settings))

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=4), delay=DELAYS)
    def send_to_groups(self, groups: list[str], delay: int) -> None:
        """Send to the FIFO queue."""
        self.send("fifo", [NewMessage("", group=group) for group in groups], delay)

    @rule(count=st.integers(1, 4), delay=DELAYS)
    def send_plain(self, count: int, delay: int) -> None:
        """Send to the plain queue."""
        self.send("plain", [NewMessage("")] * count, delay)

    @rule(priorities=st.lists(st.integers(0, 4), min_size=1, max_size=4), delay=DELAYS)
    def send_urgent(self, priorities: list[int], delay: int) -> None:
        """Send to the queue with priorities."""
        self.send("urgent", [NewMessage("", priority=each) for each in priorities], delay)

    @rule(queue=QUEUES, ids=st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=3))
    def send_once(self, queue: str, ids: list[str | None]) -> None:
        """Send with deduplication ids, also one twice in a call."""
        group = "ann" if queue == "fifo" else None
        self.send(queue, [NewMessage("", dedup_id=each, group=group) for each in ids], 0)

    def send(self, queue: str, messages: list[NewMessage], delay: int) -> None:
        """Send, and check which messages are new."""
        numbers: list[int] = []
        new: list[NewMessage] = []
        for message in messages:
            number, until = self.dedups.get((queue, message.dedup_id or ""), (-1, self.now))
            if message.dedup_id is None or until <= self.now:
                number = len(self.messages)
                due_at, priority = self.now + delay, message.priority
                known = Known(queue, message.group, due_at, 2 if priority is None else priority)
                self.messages.append(known)
                if message.dedup_id is not None:
                    self.dedups[queue, message.dedup_id] = (number, self.now + DEDUP_SECONDS)
            numbers.append(number)
            new.append(replace(message, payload=str(number), delay_seconds=float(delay) or None))

        async def send(store: Store) -> list[int]:
            found = (await store.send_messages(queue, new))[0]
            pairs = zip(found, numbers, strict=True)
            return [self.numbers.setdefault((id(store), each), number) for each, number in pairs]

        assert self.both(send) == numbers

    @rule(
        queue=QUEUES,
        limit=st.integers(1, 4),
        per_group=st.integers(1, 3),
        seconds=st.sampled_from([3, 10]),
    )
    def receive(self, queue: str, limit: int, per_group: int, seconds: int) -> None:
        """Receive; of the FIFO queue from all groups: their order among each other is open."""
        self.take(queue, ALL if queue == "fifo" else limit, per_group, seconds)

    @rule(queue=QUEUES, limit=st.integers(1, 4), per_group=st.integers(1, 3))
    def pop(self, queue: str, limit: int, per_group: int) -> None:
        """Receive, and be done."""
        self.take(queue, ALL if queue == "fifo" else limit, per_group, 10, pops=True)

    def take(
        self, queue: str, limit: int, per_group: int, seconds: int, *, pops: bool = False
    ) -> int:
        """Receive, and check what comes. Return how many messages."""
        self.expire(queue)
        expected = self.expected(queue, limit, per_group)
        wanted = Receive(
            queue=queue,
            limit=limit,
            per_group=per_group,
            visibility_seconds=float(seconds),
            pops=pops,
        )

        async def receive(store: Store) -> dict[str, list[tuple[int, int]]]:
            found = (await store.receive_messages(wanted)).deliveries
            for each in found:
                for place, message in enumerate(each.messages, 1):
                    receipt = Receipt(each.queue_id, each.delivery_id, place)
                    self.stored[id(store), int(message.payload), self.deliveries] = receipt
            return {
                each.group or "": [(int(one.payload), one.attempts) for one in each.messages]
                for each in found
            }

        found: dict[str, list[tuple[int, int]]] = self.both(receive)
        assert {group: [n for n, _ in each] for group, each in found.items()} == expected
        for group in sorted(found):
            for number, attempts in found[group]:
                message = self.messages[number]
                message.state, message.delivery = "done" if pops else "flight", self.deliveries
                message.until, message.attempts = self.now + seconds, message.attempts + 1
                assert attempts == message.attempts
                self.receipts.append((number, self.deliveries))
        self.deliveries += 1
        return sum(map(len, found.values()))

    def expire(self, queue: str) -> None:
        """Give back what is beyond its visibility."""
        for message in self.messages:
            if message.queue == queue and message.state == "flight" and message.until <= self.now:
                self.give_back(message, 0)

    def give_back(self, message: Known, delay: int, *, discarded: bool = False) -> None:
        """Let a message wait again, or be a dead letter."""
        message.state = "waiting"
        message.failures += 1
        message.due_at = self.now + delay
        if discarded or message.attempts >= MOST:
            message.state, message.priority = "dead", 2  # its queue has no priorities

    def expected(self, queue: str, limit: int, per_group: int) -> dict[str, list[int]]:
        """Return what a receive must hand out, by group."""
        waiting = [
            (each.due_at, number)
            for number, each in enumerate(self.messages)
            if each.queue == queue and each.state == "waiting"
        ]
        if queue != "fifo":
            waiting.sort(key=lambda each: (self.messages[each[1]].priority, *each))
            due = [number for due_at, number in waiting if due_at <= self.now][:limit]
            return {"": due} if due else {}
        found: dict[str, list[int]] = {}
        for group in GROUPS:
            own = [each for each in self.messages if each.group == group]
            if any(each.state == "flight" for each in own):
                continue
            firsts = [n for _, n in waiting if self.messages[n].group == group][:per_group]
            due: list[int] = []
            for number in firsts:
                if self.messages[number].due_at > self.now:
                    break
                due.append(number)
            if due:
                found[group] = due
        return found

    @rule(chosen=st.lists(st.integers(0, 30), min_size=1, max_size=3, unique=True))
    def acknowledge(self, chosen: list[int]) -> None:
        """Acknowledge receipts, old ones too."""
        picked = [self.receipts[-1 - each] for each in chosen if each < len(self.receipts)]

        async def ack(store: Store) -> list[bool]:
            return (await store.ack_messages([self.receipt(store, *each) for each in picked]))[0]

        acked = self.both(ack)
        assert acked == [self.is_in_flight(*each) for each in picked]
        for (number, _), ok in zip(picked, acked, strict=True):
            if ok:
                self.messages[number].state = "done"

    @rule(
        back=st.integers(0, 20),
        delay=st.sampled_from([0, 0, 4]),
        how=st.sampled_from(["counted", "uncounted", "discarded"]),
    )
    def give(self, back: int, delay: int, how: str) -> None:
        """Give a message back, with a receipt that may be old."""
        if back >= len(self.receipts):
            return
        number, delivery = self.receipts[-1 - back]
        counted, discarded = how != "uncounted", how == "discarded"

        async def give(store: Store) -> list[bool]:
            receipt = self.receipt(store, number, delivery)
            given = MessageReturn(receipt, float(delay), "no", counted, discarded)
            return (await store.return_messages([given]))[0]

        returned = self.both(give)
        assert returned == [self.is_in_flight(number, delivery)]
        if returned[0]:
            message = self.messages[number]
            if counted:
                self.give_back(message, delay, discarded=discarded)
            else:
                message.state, message.due_at = "waiting", self.now + delay
                message.attempts -= 1

    @rule(back=st.integers(0, 20), seconds=st.sampled_from([2, 8]))
    def extend(self, back: int, seconds: int) -> None:
        """Extend the delivery of a receipt that may be old."""
        if back >= len(self.receipts):
            return
        number, delivery = self.receipts[-1 - back]
        message = self.messages[number]

        async def extend(store: Store) -> list[bool]:
            receipt = self.receipt(store, number, delivery)
            return await store.extend_deliveries([receipt], seconds=float(seconds))

        together = self.together(message, delivery)
        assert self.both(extend) == [bool(together)]
        for each in together:
            each.until = self.now + seconds

    @rule(
        back=st.integers(0, 20),
        act=st.sampled_from(["cancel", "change"]),
        delay=st.sampled_from([None, 0, 5]),
        priority=st.integers(0, 4),
    )
    def act_on_one(self, back: int, act: str, delay: int | None, priority: int) -> None:
        """Cancel or change a message by its id, in flight or not."""
        if back >= len(self.messages):
            return
        number = len(self.messages) - 1 - back
        message = self.messages[number]
        change = MessageChange(
            payload=str(number),
            delay_seconds=delay,
            priority=priority if message.queue == "urgent" else None,
        )

        async def carry_out(store: Store) -> bool | str:
            found = self.id_of(store, number)
            try:
                if act == "cancel":
                    return (await store.cancel_message(message.queue, found))[0]
                return (await store.change_message(message.queue, found, change))[0]
            except MessageInFlight:
                return "in flight"

        done = self.both(carry_out)
        if message.state == "flight" and message.until <= self.now:
            for each in self.together(message, message.delivery):
                self.give_back(each, 0)
        assert done == ("in flight" if message.state == "flight" else message.state == "waiting")
        if message.state == "waiting" and act == "cancel":
            message.state = "purged"
        elif message.state == "waiting":
            message.due_at = message.due_at if delay is None else self.now + delay
            message.priority = priority if message.queue == "urgent" else message.priority

    @rule(back=st.integers(0, 20))
    def look_at_one(self, back: int) -> None:
        """Look at a message by its id, and at its errors."""
        if back >= len(self.messages):
            return
        number = len(self.messages) - 1 - back
        message = self.messages[number]
        queue = f"{message.queue}.dead" if message.state == "dead" else message.queue

        async def look(store: Store) -> tuple[object, int]:
            found = self.id_of(store, number)
            shown = await store.get_message(queue, found)
            failures = (await store.message_failures([found])).get(found, ())
            return None if shown is None else (shown.in_flight, shown.attempts), len(failures)

        expected: tuple[object, int] = (None, 0)
        if message.state not in ("done", "purged"):
            attempts = 0 if message.state == "dead" else message.attempts
            expected = (message.state == "flight", attempts), min(20, message.failures)
        assert self.both(look) == expected

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def pass_time(self, seconds: int) -> None:
        """Move time on."""
        self.now += seconds
        self.model.advance(seconds)
        self.wait(self.clock.advance(seconds))

    @rule(queue=QUEUES)
    def redrive(self, queue: str) -> None:
        """Move dead letters back."""

        async def redrive(store: Store) -> int:
            return (await store.redrive_messages(queue))[0]

        dead = [each for each in self.messages if (each.queue, each.state) == (queue, "dead")]
        assert self.both(redrive) == len(dead)
        for message in dead:
            message.state, message.attempts, message.due_at = "waiting", 0, self.now

    @rule(queue=QUEUES)
    def purge(self, queue: str) -> None:
        """Delete what waits; what is in flight stays."""
        waiting = [each for each in self.messages if (each.queue, each.state) == (queue, "waiting")]
        assert self.both(lambda store: store.purge_messages(queue, limit=ALL)) == len(waiting)
        for message in waiting:
            message.state = "purged"

    def check_kept(self, queue: str) -> None:
        """Compare what is kept of what was acknowledged, the newest first."""
        done = [
            (number, each.attempts)
            for number, each in enumerate(self.messages)
            if each.queue == queue and each.state == "done"
        ]

        async def kept(store: Store) -> list[tuple[int, int]]:
            found = await store.list_kept(queue, limit=ALL)
            return [(int(each.payload), each.attempts) for each in found]

        assert self.both(kept) == done[::-1]

    def teardown(self) -> None:
        """Receive all that is left: nothing is lost."""
        if not self.messages:
            return
        self.pass_time(100)
        for queue in ("plain", "urgent", "fifo"):
            self.expire(queue)
            self.both(lambda store, queue=queue: _take_nothing(store, queue))
            self.redrive(queue)
            for _ in range(len(self.messages) + 1):
                before = len(self.receipts)
                if not self.take(queue, ALL, 3, 10):
                    break
                self.acknowledge(list(range(len(self.receipts) - before)))
        for queue in ("plain", "fifo"):
            self.check_kept(queue)
        assert {each.state for each in self.messages} <= {"done", "purged"}

    def together(self, message: Known, delivery: int) -> list[Known]:
        """Return what is in flight of a delivery that a message was in."""
        return [
            each
            for each in self.messages
            if each.state == "flight"
            and each.delivery == delivery
            and (each.queue, each.group) == (message.queue, message.group)
        ]

    def id_of(self, store: Store, number: int) -> int:
        """Return the id that a message has in a store."""
        return next(
            found for (of, found), each in self.numbers.items() if (of, each) == (id(store), number)
        )

    def receipt(self, store: Store, number: int, delivery: int) -> Receipt:
        """Return the receipt that a store gave with a message."""
        return self.stored[id(store), number, delivery]

    def is_in_flight(self, number: int, delivery: int) -> bool:
        """Return True if a receipt is not old."""
        message = self.messages[number]
        return message.state == "flight" and message.delivery == delivery


async def _take_nothing(store: Store, queue: str) -> int:
    """Give back what is beyond its visibility."""
    return (await store.return_expired(limit=ALL))[0] * 0


@pytest.mark.timeout(600)  # a failure is reduced to the fewest steps, which takes its time
def test_both_stores_hand_out_messages_as_the_model_does(module_database_url: str) -> None:
    run_machine(MessagesAgree, module_database_url, examples=25, steps=25)
