"""What a turn makes of steps that their own transactions have recorded in the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from holdfast import App, Context
from holdfast.errors import RunFailed, StepFailed
from holdfast.events import PAUSED, RESUMED, in_transaction, read_step_completed
from holdfast.runtime.code.steps import Restored, completed_step
from holdfast.runtime.log.virtual_log import is_external
from holdfast.testing import Environment
from holdfast.types import Event

from .bench import Bench

app = App("bookings")
ways: list[bool] = []


@app.step
async def book(n: int) -> int:
    raise AssertionError("the bench says what it returns")


@app.step
async def mail(n: int) -> int:
    raise AssertionError("the bench says what it returns")


def committed(bench: Bench, key: str, result: object) -> tuple[int, Event]:
    """Let the transaction of a step commit; return what the driver is told of it later."""
    [call] = [call for call in bench.started if call.key == key]
    event = in_transaction(completed_step(call, json.dumps(result), bench.now, bench.now))
    bench.log.append(event)
    return len(bench.log) - 1, event


@pytest.fixture(autouse=True, params=["restored", "read"])
def as_restored(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let `told` give the result as the attempt has made it, or have it read from the entry."""
    ways.append(request.param == "restored")
    yield
    ways.clear()


def told(bench: Bench, index: int, event: Event) -> None:
    result = json.loads(bytes(read_step_completed(event.details or "").result))
    restored = Restored(result) if ways[-1] else None
    bench.take(bench.turn.step_recorded(event.key or "", index, event, restored))


def replayed(bench: Bench) -> Any:
    """Return what the code computes if another worker replays the log."""
    bench.crash()
    bench.settle()
    return bench.output


async def one_after_another(ctx: Context) -> list[int]:
    return [await book(1), await book(2), await mail(3)]


async def at_once(ctx: Context) -> list[object]:
    order = list[object]()

    async def note(call: Any) -> None:
        order.append(await call)

    await asyncio.gather(note(book(1)), note(book(2)), note(mail(3)))
    return order


def test_the_next_step_starts_without_a_commit() -> None:
    bench = Bench(one_after_another)
    told(bench, *committed(bench, "book", 10))
    assert bench.commit_due is None
    assert bench.starts == ["book", "book#2"]
    told(bench, *committed(bench, "book#2", 20))
    bench.complete("mail", 30)
    bench.settle()
    assert bench.output == [10, 20, 30]
    assert [is_external(event) for event in bench.log] == [True, True, True, False, False]


def test_a_crash_before_the_worker_heard_of_it_leaves_the_result() -> None:
    bench = Bench(one_after_another)
    committed(bench, "book", 10)
    bench.crash()
    assert bench.starts == ["book#2"]


def test_a_result_that_was_in_the_tail_is_not_fed_twice() -> None:
    bench = Bench(one_after_another)
    index, event = committed(bench, "book", 10)
    bench.take(bench.turn.take_unread([event], index))
    assert bench.starts == ["book", "book#2"]
    told(bench, index, event)
    assert bench.starts == ["book", "book#2"]


def test_a_result_in_a_pause_is_fed_after_it() -> None:
    fed = list[int]()

    async def code(ctx: Context) -> None:
        fed.append(await book(1))

    bench = Bench(code)
    bench.news(bench.plain(PAUSED, '{"reason":null}'))
    told(bench, *committed(bench, "book", 10))
    bench.settle()
    assert fed == []
    bench.resume(bench.plain(RESUMED))
    assert fed == [10]


def test_a_result_that_the_code_has_given_up_is_dropped() -> None:
    async def code(ctx: Context) -> int:
        booking = asyncio.create_task(book(1))
        await ctx.wait_for_signal("stop")
        booking.cancel()
        return await mail(2)

    bench = Bench(code)
    bench.news(bench.signal("stop"))
    told(bench, *committed(bench, "book", 10))
    bench.complete("mail", 20)
    bench.settle()
    assert bench.output == 20


def after_a_commit(bench: Bench) -> None:
    """The commit of the mail is written first, and answered last."""
    bench.complete("mail", 3)
    part = bench.commit_due
    assert part is not None
    bench.log += part.events
    first = committed(bench, "book", 1)
    told(bench, *first)
    bench.commit_due = None
    bench.take(bench.turn.committed())
    told(bench, *committed(bench, "book#2", 2))


def before_a_commit(bench: Bench) -> None:
    """The transaction is first, so the commit of the mail is refused with it."""
    bench.complete("mail", 3)
    index, event = committed(bench, "book", 1)
    told(bench, index, event)
    bench.commit_due = None
    bench.take(bench.turn.conflict([event]))
    bench.settle()
    told(bench, *committed(bench, "book#2", 2))


def in_another_order(bench: Bench) -> None:
    """The worker hears of the second one first."""
    first, second = committed(bench, "book", 1), committed(bench, "book#2", 2)
    told(bench, *second)
    assert bench.turn.lacks_entries
    told(bench, *first)
    assert not bench.turn.lacks_entries
    bench.complete("mail", 3)


def after_a_signal(bench: Bench) -> None:
    """Another process wrote between; the driver reads the tail that is lacking."""
    signal = bench.signal("hello")
    bench.log.append(signal)
    index, event = committed(bench, "book", 1)
    told(bench, index, event)
    assert bench.turn.lacks_entries
    bench.take(bench.turn.take_unread([signal, event], index - 1))
    assert not bench.turn.lacks_entries
    told(bench, *committed(bench, "book#2", 2))
    bench.complete("mail", 3)


WAYS = [after_a_commit, before_a_commit, in_another_order, after_a_signal]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_a_replay_sees_the_order_that_the_code_saw(way: Callable[[Bench], None]) -> None:
    bench = Bench(at_once)
    way(bench)
    bench.settle()
    seen = bench.output
    assert sorted(seen) == [1, 2, 3]
    bench.log.pop()
    assert replayed(bench) == seen


@pytest.mark.parametrize("retry_in", [None, 1, 60])
def test_a_failure_of_what_was_committed_after_all_is_dropped(retry_in: float | None) -> None:
    """Fault: the log had both ends, and the code that knew the other one was stuck with it."""

    async def code(ctx: Context) -> list[object]:
        try:
            return [await book(1), await mail(2)]
        except StepFailed:
            return [0, await mail(3)]

    bench = Bench(code)
    [call] = [call for call in bench.started if call.key == "book"]
    bench.fail("book", OSError("too little"), retry_in=retry_in)
    result = in_transaction(completed_step(call, "10", bench.now, bench.now))
    bench.refuse(result)
    bench.settle()
    bench.complete("mail", 2)
    bench.settle()
    assert bench.output == [10, 2]
    assert len(bench.of_type("StepCompleted")) == 2
    assert bench.of_type("StepFailed") + bench.of_type("StepRetryScheduled") == []
    bench.log.pop()
    assert replayed(bench) == [10, 2]


def test_the_end_of_the_code_that_was_not_recorded_is_no_change_of_code() -> None:
    """A failure ends the run while a transaction commits; the worker dies before its commit."""

    async def code(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(book(1))
            await ctx.wait_for_signal("stop")
            raise ValueError("stopped")

    bench = Bench(code)
    bench.news(bench.signal("stop"))
    committed(bench, "book", 1)
    bench.crash()
    bench.settle()
    assert bench.stuck is None
    assert bench.error["kind"] == "builtins.ExceptionGroup"


def test_a_record_that_a_failover_has_lost_is_made_again() -> None:
    """Another entry was before it, and both are gone: nothing would ever bring them."""
    bench = Bench(one_after_another)
    signal = bench.signal("hello")
    bench.log.append(signal)
    index, event = committed(bench, "book", 1)
    told(bench, index, event)
    del bench.log[1:]
    assert bench.turn.lacks_entries
    bench.take(bench.turn.take_unread([], 1))
    assert bench.needs_log
    assert not bench.turn.lacks_entries
    bench.take(bench.turn.rebuild(bench.log))
    assert bench.starts == ["book", "book"]


async def test_without_a_database_the_error_says_what_to_do() -> None:
    shop = App("shop")

    @shop.transaction
    async def reserve(connection: asyncpg.Connection, n: int) -> int:
        raise AssertionError("there is no connection")

    @shop.workflow
    async def order(ctx: Context) -> int:
        return await reserve(1)

    async with Environment(shop) as env:
        with pytest.raises(RunFailed, match="Environment"):
            await env.run(order)
