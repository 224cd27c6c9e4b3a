"""Consumers: functions that workers call with messages; acknowledged on return, given back else."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Context, Discard, Limit, Retry, Singleton, Snooze, current_message
from holdfast.client import Client, Outgoing
from holdfast.definitions.consumers import MessageContext
from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    HoldfastError,
    InvalidInput,
    InvalidName,
)
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.testing import Environment
from holdfast.types import Notice, Receipt, Receive, Received
from holdfast.worker import Worker, WorkerOptions
from tests.runtime.desk import eventually

SOON = Retry(backoff="fixed", base="10s", jitter=0)


@dataclass(frozen=True)
class Order:
    number: int


async def counts(client: Client, queue: str) -> int:
    """Return how many messages can be received now, and give them back."""
    found = await client.queues.receive(queue, 1000)
    await client.queues.nack(found)
    return len(found)


async def test_messages_are_typed_and_acknowledged_when_the_function_returns() -> None:
    app, orders = App("shop"), list[Order]()

    @app.consumer("orders")
    async def book(order: Order) -> None:
        orders.append(order)

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send_many("orders", [Outgoing(Order(n)) for n in range(30)])
        await eventually(lambda: len(orders) == 30)
        await env.advance("1h")
        assert await counts(env.client, "orders") == 0
    assert sorted(order.number for order in orders) == list(range(30))


async def test_message_of_a_function_that_raises_is_given_back_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is due again after the pause of the policy, and knows its attempt and the error."""
    app, seen = App("shop"), list[tuple[int, str | None]]()

    @app.consumer("orders", retry=SOON)
    async def book(order: Order) -> None:
        message = current_message()
        seen.append((message.attempt, message.messages[0].error))
        if message.attempt < 3:
            raise ConnectionError("the ledger is away")

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send("orders", Order(1))
        await eventually(lambda: len(seen) == 1)
        await env.advance("9s")
        assert len(seen) == 1
        await env.advance("1s")
        await eventually(lambda: len(seen) == 2)
        await env.advance("10s")
        await eventually(lambda: len(seen) == 3)
        await env.advance("1h")
    error = "ConnectionError: the ledger is away"
    assert seen == [(1, None), (2, error), (3, error)]
    assert caplog.text.count('raise ConnectionError("the ledger is away")') == 2  # the tracebacks


async def test_message_that_fails_too_often_or_does_not_fit_is_a_dead_letter() -> None:
    app = App("shop")

    @app.consumer("orders", retry=SOON)
    async def book(order: Order) -> None:
        raise ValueError("no")

    async with Environment(app) as env:
        await env.client.queues.create("orders", max_receives=2)
        await env.client.queues.send("orders", Order(1))
        await env.client.queues.send("orders", "not an order")
        await env.advance("1m")
        await env.wait_until_idle()
        dead = await env.client.queues.receive("orders.dead", 10)
    texts = sorted(message.error or "" for message in dead)
    assert len(texts) == 2
    assert texts[0].startswith("InvalidInput: book(order): ")
    assert texts[1] == "ValueError: no"


async def test_batch_is_one_call_with_a_list_and_may_fail_in_part() -> None:
    app, calls = App("shop"), list[list[int]]()

    @app.consumer("clicks", batch=10, concurrency=1, retry=SOON)
    def count(clicks: list[Order]) -> list[Exception | None]:
        calls.append([click.number for click in clicks])
        again = current_message().attempt > 1
        return [ValueError("odd") if click.number % 2 and not again else None for click in clicks]

    async with Environment(app) as env:
        await env.client.queues.create("clicks")
        await env.client.queues.send_many("clicks", [Outgoing(Order(n)) for n in range(20)])
        await eventually(lambda: sum(map(len, calls)) == 20)
        assert max(map(len, calls)) == 10
        await env.advance("10s")
        await eventually(lambda: sum(map(len, calls)) == 30)
        await env.advance("1h")
        assert await counts(env.client, "clicks") == 0
    assert sorted(n for call in calls for n in call) == sorted([*range(20), *range(1, 20, 2)])


async def test_groups_of_a_fifo_queue_are_consumed_in_their_order() -> None:
    """Also if messages fail: what comes after them in the group waits."""
    app, seen = App("shop"), list[tuple[str | None, int]]()

    @app.consumer("moves", concurrency=4, retry=Retry(backoff="fixed", base=1, jitter=0))
    async def move(number: int) -> None:
        message = current_message()
        if number == 2 and message.attempt == 1:
            raise ValueError("not yet")
        seen.append((message.group, number))

    async with Environment(app) as env:
        await env.client.queues.create("moves", fifo=True)
        sent = [Outgoing(n, group=group) for n in range(5) for group in "abc"]
        await env.client.queues.send_many("moves", sent)
        await env.advance("5s")
        await eventually(lambda: len(seen) == 15)
    for group in "abc":
        assert [number for of, number in seen if of == group] == [0, 1, 2, 3, 4]


async def test_what_waits_for_a_failed_message_of_its_group_is_not_counted() -> None:
    """B13, edge case 10. It is consumed once the failed one is a dead letter."""
    app, calls = App("shop"), list[list[str]]()

    @app.consumer("moves", batch=10, retry=SOON)
    async def move(moves: list[str]) -> list[Exception | None]:
        calls.append(moves)
        if "bad" in moves:
            at = moves.index("bad")
            return [None if n < at else ValueError(moves[n]) for n in range(len(moves))]
        return [None] * len(moves)

    async with Environment(app) as env:
        await env.client.queues.create("moves", fifo=True, max_receives=2)
        await env.client.queues.send_many(
            "moves", [Outgoing(each, group="g") for each in ("good", "bad", "later", "last")]
        )
        await env.advance("5m")
        assert calls == [
            ["good", "bad", "later", "last"],
            ["bad", "later", "last"],
            ["later", "last"],
        ]
        [dead] = await env.client.queues.messages("moves.dead")
        assert (dead.payload, dead.error) == ('"bad"', "ValueError: bad")


async def test_group_waits_for_a_message_of_a_batch_that_does_not_fit() -> None:
    """What is older of the batch is consumed; what is newer comes after it, and is not counted."""
    app, calls = App("shop"), list[tuple[list[int], int]]()

    @app.consumer("moves", batch=10, retry=SOON)
    async def move(numbers: list[int]) -> None:
        calls.append((numbers, current_message().attempt))

    async with Environment(app) as env:
        await env.client.queues.create("moves", fifo=True, max_receives=2)
        moves = [Outgoing(each, group="a") for each in (1, "two", 3, 4)]
        await env.client.queues.send_many("moves", moves)
        await eventually(lambda: calls == [([1], 1)])
        await env.advance("9s")
        assert calls == [([1], 1)]
        await env.advance("1s")
        await eventually(lambda: calls == [([1], 1), ([3, 4], 1)])
        [dead] = await env.client.queues.receive("moves.dead", 10)
        assert dead.payload == "two"


@pytest.mark.parametrize("fifo", [False, True])
async def test_queue_that_comes_back_as_another_kind_keeps_the_limits_of_its_consumer(
    fifo: bool,
) -> None:
    app, seen, running, most = App("shop"), list[int](), 0, 0

    @app.consumer("moves", batch=3, concurrency=2)
    async def move(numbers: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        assert len(numbers) <= 3
        seen.extend(numbers)
        running -= 1

    async with Environment(app) as env:
        for number, is_fifo in enumerate((fifo, not fifo)):
            await env.client.queues.delete("moves")
            await env.client.queues.create("moves", fifo=is_fifo)
            first = 10 * number
            groups = [f"g{n}" if is_fifo else None for n in range(10)]
            moves = [Outgoing(first + n, group=group) for n, group in enumerate(groups)]
            await env.client.queues.send_many("moves", moves)
            await eventually(lambda: len(seen) >= first + 10)  # noqa: B023
    assert sorted(seen) == list(range(20))
    assert most <= 2


async def test_no_more_calls_than_the_concurrency_run_at_once_also_in_threads() -> None:
    app, lock, running, most = App("shop"), threading.Lock(), 0, 0
    ended: list[int] = []

    @app.consumer("orders", concurrency=3)
    def book(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
        ended.append(number)

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send_many("orders", [Outgoing(n) for n in range(20)])
        await eventually(lambda: len(ended) == 20)
    assert most <= 3
    assert sorted(ended) == list(range(20))


async def test_consumer_waits_for_a_queue_that_does_not_exist_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.consumer_loop._ABSENT_SECONDS", 0.01)
    app, seen = App("shop"), list[int]()

    @app.consumer("orders")
    async def book(number: int) -> None:
        seen.append(number)

    with caplog.at_level(logging.WARNING, "holdfast.consumers"):
        async with Environment(app) as env:
            await eventually(lambda: "holdfast queue create orders" in caplog.text)
            await env.client.queues.create("orders")
            await env.client.queues.send("orders", 7)
            await eventually(lambda: seen == [7])


async def nothing(ctx: Context) -> None: ...


async def test_a_queue_that_the_code_declares_is_created_and_one_that_exists_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, other, seen = App("shop"), App("desk"), list[int]()
    app.message_queue("orders", visibility="1m", max_receives=3, dead_letters="lost")
    other.message_queue("orders", fifo=True)
    other.workflow(nothing)

    @app.consumer("orders")
    async def book(number: int) -> None:
        seen.append(number)

    async with Environment(app, other) as env:
        await env.client.queues.send("orders", 7)
        await env.wait_until_idle()
        await env.kill()  # other workers find it, and say nothing of it
        await env.client.queues.send("orders", 8)
        await env.wait_until_idle()
        assert seen == [7, 8]
        found = await env.client.queues.get("orders")
        assert found.settings == app.message_queues["orders"]
        assert (found.settings.max_receives, found.settings.dead_letters) == (3, "lost")
    assert caplog.text.count("message queue orders has other settings than the code declares") == 2


async def test_queues_of_dead_letters_are_as_declared_in_any_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("shop")
    app.workflow(nothing)
    app.message_queue("orders", max_receives=3, dead_letters="lost")
    app.message_queue("lost", keep="1h", max_receives=5)  # its dead letters are in lost.dead
    app.message_queue("lost.dead", keep="7d")
    app.message_queue("left", max_receives=3, dead_letters="right")
    app.message_queue("right", max_receives=3, dead_letters="left")  # in a circle
    async with Environment(app) as env:
        found = {each.settings.name: each.settings for each in await env.client.queues.list()}
        assert found.keys() == app.message_queues.keys()
        assert (found["lost"].keep_seconds, found["lost"].dead_letters) == (3600, "lost.dead")
        assert found["lost.dead"].keep_seconds == 7 * 86_400
    assert "message queue lost" not in caplog.text


async def test_a_worker_names_the_declared_queue_that_cannot_be() -> None:
    app = App("shop")
    app.workflow(nothing)
    app.message_queue("orders", fifo=True, priorities=True)
    with pytest.raises(ConfigurationError, match=r"^app.message_queue\('orders'\): a FIFO queue"):
        async with Environment(app):
            pass


def test_a_queue_is_declared_once() -> None:
    app = App("shop")
    app.message_queue("orders")
    with pytest.raises(ConfigurationError, match="message queue orders is declared twice"):
        app.message_queue("orders", fifo=True)
    with pytest.raises(InvalidName):
        app.message_queue("no spaces")


async def test_worker_that_stops_gives_back_what_did_not_end_and_does_not_count_it() -> None:
    app, begun = App("shop"), asyncio.Event()

    @app.consumer("orders")
    async def book(number: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    store = MemoryStore(wall_clock)
    worker = Worker(app, store, WorkerOptions())
    async with Client(store=store) as client:
        await client.queues.create("orders")
        await worker.start()
        await client.queues.send("orders", 1)
        async with asyncio.timeout(30):
            await begun.wait()
        await worker.stop(grace=0.01)
        [message] = await client.queues.receive("orders", wait="10s")
    assert message.attempts == 1


async def test_worker_that_stops_while_its_last_message_is_acknowledged_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call that acknowledges has no answer yet: the second one finds nothing in flight."""

    class Slow(MemoryStore):
        def __init__(self) -> None:
            super().__init__(wall_clock)
            self.acked, self.repeated = asyncio.Event(), asyncio.Event()

        async def receive_messages(self, receive: Receive) -> Received:
            answer = await super().receive_messages(receive)
            if receive.acks:
                self.acked.set()
                await self.repeated.wait()
            return answer

        async def ack_messages(
            self, receipts: Sequence[Receipt]
        ) -> tuple[list[bool], list[Notice]]:
            answer = await super().ack_messages(receipts)
            self.repeated.set()
            return answer

    app, store = App("shop"), Slow()

    @app.consumer("orders")
    async def book(number: int) -> None:
        pass

    worker = Worker(app, store, WorkerOptions())
    async with Client(store=store) as client:
        await client.queues.create("orders")
        await client.queues.send("orders", 1)
        await worker.start()
        async with asyncio.timeout(60):
            await store.acked.wait()
        await worker.stop()
        assert store.repeated.is_set()
    assert "too late" not in caplog.text


async def test_workflows_and_consumers_share_an_app_its_lifespans_and_its_middleware() -> None:
    app, seen = App("shop"), list[str]()

    class Watch(Middleware):
        async def message(self, context: MessageContext, call_next: CallNext) -> object:
            seen.append(f"{context.queue} {dict(context.headers)}")
            return await call_next()

    app.add_middleware(Watch())

    @app.workflow
    async def ship(ctx: Context, number: int) -> int:
        return number

    @app.consumer("orders")
    async def book(number: int) -> None:
        seen.append(f"booked {number}")

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send("orders", 7, headers={"from": "web"})
        assert await env.run(ship, 8) == 8
        await eventually(lambda: len(seen) == 2)
    assert seen == ["orders {'from': 'web'}", "booked 7"]


def test_what_cannot_be_a_consumer_is_refused() -> None:
    app = App("shop")

    def two(a: int, b: int) -> None: ...

    def one(order: Order) -> None: ...

    def many(orders: list[Order]) -> None: ...

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (two, {}, "so it has one parameter"),
        (one, {"batch": 5}, r"must be a list, such as list\[Order\]"),
        (many, {"batch": 0}, "batch is 1 to 1,000, not 0"),
        (one, {"concurrency": "many"}, "concurrency is 1 to 1,000, not 'many'"),
        (one, {"visibility": 0}, "visibility"),
        (one, {"name": "no spaces"}, "name"),
    ]
    for fn, options, text in cases:
        with pytest.raises(ConfigurationError, match=text):
            app.consumer("orders", **options)(fn)
    app.consumer("orders")(one)
    with pytest.raises(ConfigurationError, match="consumer one receives from queue orders already"):
        app.consumer("orders", name="other")(one)
    with pytest.raises(LookupError, match="no consumer of a worker"):
        current_message()


class Flaky(MemoryStore):
    """A store whose first acknowledgement of single messages gets no answer."""

    def __init__(self) -> None:
        super().__init__(wall_clock)
        self.acked: list[Receipt] = []
        self.refuses = False

    async def ack_messages(self, receipts: Sequence[Receipt]) -> tuple[list[bool], list[Notice]]:
        """Acknowledge messages, or fail once."""
        if self.refuses:
            self.refuses = False
            raise DatabaseUnavailable("the line is down")
        self.acked += receipts
        return await super().ack_messages(receipts)


async def test_message_that_has_ended_is_acknowledged_while_others_of_its_receive_run() -> None:
    """Also if no call has room, so that nothing more is received."""
    app, go_on, begun = App("shop"), asyncio.Event(), list[int]()

    @app.consumer("orders", concurrency=2)
    async def book(number: int) -> None:
        begun.append(number)
        if number > 0:
            await go_on.wait()

    store = Flaky()
    worker = Worker(app, store, WorkerOptions())
    async with Client(store=store) as client:
        await client.queues.create("orders")
        await client.queues.send_many("orders", [Outgoing(n) for n in (1, 0, 2)])
        await worker.start()
        await eventually(lambda: len(begun) == 3)
        await eventually(lambda: len(store.acked) == 1)
        go_on.set()
        await eventually(lambda: not worker.busy)
        await worker.stop()
        assert await counts(client, "orders") == 0


async def test_failed_acknowledgement_of_one_message_does_not_take_its_siblings_with_it() -> None:
    """It is repeated for that message alone: one that fails later comes again."""
    app, go_on, seen = App("shop"), asyncio.Event(), list[tuple[int, int]]()

    @app.consumer("orders", concurrency=3, retry=Retry(backoff="fixed", base=0.01))
    async def book(number: int) -> None:
        attempt = current_message().attempt
        seen.append((number, attempt))
        if number == 1 and attempt == 1:
            await go_on.wait()
            raise ValueError("not yet")

    store = Flaky()
    store.refuses = True
    worker = Worker(app, store, WorkerOptions())
    async with Client(store=store) as client:
        await client.queues.create("orders")
        await client.queues.send_many("orders", [Outgoing(n) for n in (0, 1)])
        await worker.start()
        await eventually(lambda: len(seen) == 2 and not store.refuses)
        await client.queues.send("orders", 2)
        await eventually(lambda: bool(store.acked))
        go_on.set()
        await eventually(lambda: (1, 2) in seen)
        await worker.stop()
    assert (0, 2) not in seen


async def test_workflow_starts_with_the_acknowledgement_of_its_message() -> None:
    """A call that raises has started nothing; its next attempt starts the run, once."""
    app, asked = App("shop"), list[UUID]()

    @app.workflow
    async def pack(ctx: Context, number: int) -> None:
        await ctx.sleep("1m")

    @app.consumer("orders", retry=SOON)
    def book(order: Order) -> None:
        message = current_message()
        asked.append(message.start(pack, order.number, tags=["order"]))
        if message.attempt == 1:
            raise ValueError("no")

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send_many("orders", [Outgoing(Order(n)) for n in range(3)])
        await env.advance("1h")
        runs = (await env.client.runs.list(tags=["order"])).runs
        assert {run.run_id for run in runs} == set(asked[3:])
        assert {run.status for run in runs} == {"completed"}
        assert await counts(env.client, "orders") == 0
    assert len(asked) == 6


async def test_flow_starts_with_the_acknowledgement_of_its_message() -> None:
    """A call that raises has started nothing; workflows and flows may start together."""
    app, asked, labels = App("shop"), list[UUID](), list[str]()
    ship = app.flow("ship")

    @ship.step
    def label() -> str:
        labels.append("a")
        return "a"

    @app.workflow
    async def pack(ctx: Context, number: int) -> None: ...

    @app.consumer("orders", retry=SOON)
    def book(order: Order) -> None:
        message = current_message()
        asked.append(message.start(ship, tags=["order"]))
        asked.append(message.start(pack, order.number, tags=["order"]))
        if message.attempt == 1:
            raise ValueError("no")

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send("orders", Order(7))
        await env.advance("1h")
        runs = (await env.client.runs.list(tags=["order"])).runs
        assert {run.run_id for run in runs} == set(asked[2:])
        assert {run.status for run in runs} == {"completed"}
        assert await counts(env.client, "orders") == 0
    assert (len(asked), labels) == (4, ["a"])


async def test_start_that_is_refused_gives_its_message_back_with_the_error() -> None:
    app, errors = App("shop"), list[str | None]()

    @app.workflow(singleton=Singleton(on_conflict="refuse"))
    async def pack(ctx: Context, number: int) -> None:
        await ctx.sleep("15s")

    @app.consumer("orders", batch=2, retry=SOON)
    async def book(orders: list[int]) -> None:
        errors.extend(each.error for each in current_message().messages)
        for order in orders:
            current_message().start("pack", order)

    async with Environment(app) as env:
        await env.client.queues.create("orders", max_receives=2)
        await env.client.queues.send_many("orders", [Outgoing(n) for n in range(2)])
        await env.advance("1h")
        assert (await env.client.runs.list()).runs == []
        dead = await env.client.queues.messages("orders.dead")
        assert len(dead) == 2
        assert all("RunActive" in (each.error or "") for each in dead)
    assert [error is None for error in errors] == [True, True, False, False]


async def test_what_a_message_cannot_start_is_refused_in_its_code() -> None:
    app, refused, late = App("shop"), list[str](), list[MessageContext]()

    @app.workflow
    async def pack(ctx: Context, number: int) -> None: ...

    @app.consumer("orders")
    async def book(order: int) -> None:
        late.append(current_message())
        for given, value in ((pack, "one"), ("unknown", 1)):
            with pytest.raises(HoldfastError) as caught:
                late[0].start(given, value)
            refused.append(str(caught.value))

    async with Environment(app) as env:
        await env.client.queues.create("orders")
        await env.client.queues.send("orders", 1)
        await env.advance("1m")
        assert len(refused) == 2
        with pytest.raises(ConfigurationError, match=r"has ended: start shop/pack before"):
            late[0].start(pack, 1)


async def test_snoozed_message_comes_again_and_its_receive_does_not_count() -> None:
    app, seen = App("shop"), list[int]()

    @app.consumer("orders")
    async def book(number: int) -> Snooze | None:
        message = current_message()
        message.start("pay", number)
        seen.append(message.attempt)
        return Snooze("10m") if len(seen) < 4 else None

    @app.workflow
    async def pay(ctx: Context, number: int) -> None: ...

    async with Environment(app) as env:
        await env.client.queues.create("orders", max_receives=1)
        await env.client.queues.send("orders", 1)
        await eventually(lambda: len(seen) == 1)
        await env.advance("9m")
        assert seen == [1]
        assert (await env.client.runs.list()).runs == []  # nothing starts with a snooze
        await env.advance("1h")
        assert seen == [1, 1, 1, 1]
        assert len((await env.client.runs.list()).runs) == 1
        assert await env.client.queues.messages("orders") == []
        assert await env.client.queues.messages("orders.dead") == []


@pytest.mark.parametrize("max_receives", [5, None])
async def test_discarded_message_is_not_tried_again(
    max_receives: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    app, seen = App("shop"), list[int]()

    @app.consumer("orders", batch=10)
    def book(numbers: list[int]) -> list[Discard | Snooze | Exception | None] | Discard:
        seen.extend(numbers)
        if numbers == [9]:
            return Discard("all of them")
        ends = [None, Discard("sold out"), Snooze(5), ValueError("no")]
        return [ends[number] for number in numbers]

    async with Environment(app) as env:
        waiting = env.client.queues.messages
        await env.client.queues.create("orders", max_receives=max_receives)
        await env.client.queues.send_many("orders", [Outgoing(number) for number in range(4)])
        await eventually(lambda: len(seen) == 4)
        await env.client.queues.send("orders", 9)
        await eventually(lambda: len(seen) == 5)
        async with asyncio.timeout(60):  # until the ends of all calls are recorded
            while {each.payload for each in await waiting("orders")} != {"2", "3"}:
                await asyncio.sleep(0.01)
        assert "discards message 2: sold out" in caplog.text
        if max_receives:
            dead = await env.client.queues.messages("orders.dead")
            assert [each.error for each in dead] == ["sold out", "all of them"]
            assert [each.receives for each in dead] == ["1", "1"]


async def test_snoozed_message_of_a_group_holds_up_what_comes_after_it() -> None:
    """What a discarded one does not; what is snoozed keeps its own delay."""
    app, calls = App("shop"), list[tuple[int, ...]]()

    @app.consumer("moves", batch=10)
    async def move(moves: list[int]) -> list[Snooze | Discard | None]:
        calls.append(tuple(moves))
        if len(calls) > 1:
            return [None] * len(moves)
        return [None, Discard("no"), Snooze("1m"), Snooze("5m"), Snooze(0)]

    async with Environment(app) as env:
        await env.client.queues.create("moves", fifo=True, max_receives=1)
        moves = [Outgoing(each, group="a") for each in range(5)]
        await env.client.queues.send_many("moves", moves)
        await env.advance("50s")
        assert calls == [(0, 1, 2, 3, 4)]
        await env.advance("20s")
        assert calls[1:] == [(2,)]
        await env.advance("5m")
        assert calls[2:] == [(3, 4)]


@pytest.mark.parametrize(
    "make",
    [lambda: Snooze("soon"), lambda: Snooze(-1), lambda: Discard(""), lambda: Discard(None)],  # type: ignore[arg-type]
)
def test_what_is_not_a_delay_or_a_reason_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"Snooze: delay: not a duration|Discard: reason"):
        make()


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (None, lambda: Snooze),
        (None, lambda: Discard),
        (None, lambda: ValueError("x")),
        (None, lambda: ValueError),
        (None, lambda: [Snooze("1s")]),
        (2, lambda: [None, Discard]),
        (2, lambda: [ValueError, None]),
        (2, lambda: {1: Snooze("1s")}),
        (2, lambda: (Discard("no") for _ in range(2))),
        (2, lambda: {Discard("no")}),
        (2, lambda: ValueError("x")),
    ],
)
def test_what_only_looks_like_an_end_is_refused(batch: int | None, found: Any) -> None:
    """Acknowledged, the messages would be lost."""
    app = App("near")

    @app.consumer("parcels")
    def pack(parcel: Any) -> object:
        return None

    @app.consumer("letters", batch=2)
    def send(letters: list[int]) -> object:
        return None

    consumer = next(each for each in (pack, send) if (each.batch is None) is (batch is None))
    with pytest.raises(InvalidInput, match="return Snooze"):
        consumer.failures(found(), 2 if batch else 1)
    for kept in (None, "done", 7, {"a": 1}, [1, 2], ("a", "b"), {3}):
        assert list(consumer.failures(kept, 2)) == [None, None]


async def test_a_limit_of_the_queue_holds_for_the_calls_of_all_workers() -> None:
    """Which the code declares; each worker alone would make ten calls at once."""
    app, other = App("shop"), App("depot")
    running, most, done = list[int](), list[int](), list[int]()
    app.queue("orders", concurrency=[Limit(3), Limit(1, key="input.customer")])

    async def book(order: dict[str, int]) -> None:
        running.append(order["customer"])
        most.append(len(running))
        assert len(set(running)) == len(running)
        await asyncio.sleep(0.001)
        running.remove(order["customer"])
        done.append(order["number"])

    for each in (app, other):
        each.consumer("orders", concurrency=10)(book)
    async with Environment(app, other) as env:
        await env.client.queues.create("orders", max_receives=1)
        orders = [{"customer": n % 5, "number": n} for n in range(40)]
        await env.client.queues.send_many("orders", map(Outgoing, orders))
        await eventually(lambda: len(done) == 40)
    assert sorted(done) == list(range(40))
    assert max(most) == 3
