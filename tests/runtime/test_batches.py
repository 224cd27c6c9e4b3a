"""Batch activities: calls of several runs are one call with a list, and each has its own end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import ActivityFailed, App, Batch, Context, Retry, current_batch
from holdfast.errors import ConfigurationError
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.testing import Environment
from tests.runtime.desk import Desk, eventually, working

ONCE = Retry(attempts=1)
LONG = Batch(4, within="30s")  # only a full batch starts


@dataclass(frozen=True)
class Mail:
    to: str


@pytest.fixture
async def desk() -> Desk:
    """Return a run that orders activities, on real time."""
    return await Desk(MemoryStore(wall_clock), "media").open()


async def outcomes(app: App, workflow: Any, inputs: Sequence[object]) -> list[object]:
    """Run a workflow for each input at once; return the outputs, or the errors."""
    async with Environment(app) as env:
        handles = [await env.client.start(workflow, each) for each in inputs]
        ends = (env.result(handle) for handle in handles)
        return await asyncio.gather(*ends, return_exceptions=True)


async def test_calls_of_several_runs_are_one_call_with_a_list() -> None:
    app, calls = App("post"), list[list[Mail]]()

    @app.activity(batch=LONG)
    async def send(mails: list[Mail]) -> list[str]:
        calls.append(mails)
        return [f"sent to {mail.to}" for mail in mails]

    @app.workflow
    async def notify(ctx: Context, to: str) -> str:
        return await send(Mail(to))

    assert await outcomes(app, notify, list("abcd")) == [f"sent to {to}" for to in "abcd"]
    assert [{mail.to for mail in mails} for mails in calls] == [set("abcd")]


async def test_batch_that_is_not_full_starts_after_its_time() -> None:
    app, sizes = App("post"), list[int]()

    @app.activity(batch=Batch(100, within="20ms"))
    def double(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        assert threading.current_thread() is not threading.main_thread()
        return [2 * number for number in numbers]

    @app.workflow
    async def sums(ctx: Context, count: int) -> int:
        return sum(await asyncio.gather(*(double(number) for number in range(count))))

    assert await outcomes(app, sums, [5]) == [20]
    assert sum(sizes) == 5


async def test_exception_in_place_of_a_result_fails_its_call_alone() -> None:
    app, sizes = App("post"), list[int]()

    @app.activity(batch=LONG, retry=ONCE)
    async def check(numbers: list[int]) -> list[int | ValueError]:
        sizes.append(len(numbers))
        return [n if n % 2 == 0 else ValueError(f"{n} is odd") for n in numbers]

    @app.workflow
    async def judge(ctx: Context, number: int) -> str:
        try:
            return f"good {await check(number)}"
        except ActivityFailed as error:
            return f"bad: {error.error.message}"

    found = await outcomes(app, judge, [0, 1, 2, 3])
    assert found == ["good 0", "bad: 1 is odd", "good 2", "bad: 3 is odd"]
    assert sizes == [4]


async def test_error_that_is_raised_fails_all_and_all_are_tried_again() -> None:
    app, attempts = App("post"), list[list[int]]()

    @app.activity(batch=LONG, retry=Retry(attempts=2, base=0.01, jitter=0))
    async def flaky(numbers: list[int]) -> list[int]:
        attempts.append([each.attempt for each in current_batch().elements])
        if len(attempts) == 1:
            raise OSError("the line is down")
        return numbers

    @app.workflow
    async def call(ctx: Context, number: int) -> int:
        return await flaky(number)

    assert await outcomes(app, call, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert attempts[0] == [1] * 4
    assert [number for each in attempts[1:] for number in each] == [2] * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 2, 3], "returned 3 results for 4 inputs"),
        ("abcd", "returns a list of results, not str"),
    ],
)
async def test_results_that_do_not_match_the_inputs_fail_all(wrong: Any, message: str) -> None:
    app, calls = App("post"), list[int]()

    @app.activity(batch=LONG)
    async def odd(numbers: list[int]) -> list[int]:
        calls.append(len(numbers))
        found: list[int] = wrong
        return found

    @app.workflow
    async def call(ctx: Context, number: int) -> str:
        try:
            await odd(number)
        except ActivityFailed as error:
            return error.error.message
        return "no error"

    found = await outcomes(app, call, [1, 2, 3, 4])
    assert all(message in str(each) for each in found)
    assert calls == [4]  # another attempt would return the same


async def test_result_of_another_type_fails_its_call_alone() -> None:
    app = App("post")

    @app.activity(batch=LONG)
    async def mixed(numbers: list[int]) -> list[int]:
        return ["x" if n == 1 else n for n in numbers]  # type: ignore[misc]

    @app.workflow
    async def call(ctx: Context, number: int) -> str:
        try:
            return f"good {await mixed(number)}"
        except ActivityFailed as error:
            return error.error.kind

    assert sorted(map(str, await outcomes(app, call, [0, 1, 2, 3]))) == [
        "good 0",
        "good 2",
        "good 3",
        "holdfast.errors.InvalidInput",
    ]


async def test_cancelled_element_leaves_the_others_alone(desk: Desk) -> None:
    """S10. Its end is recorded at once, and the call continues."""
    app, entered, go = App("media"), asyncio.Event(), asyncio.Event()
    cancelled: list[bool] = []

    @app.activity(batch=Batch(2, within="30s"))
    async def slow(numbers: list[int]) -> list[int]:
        entered.set()
        await go.wait()
        cancelled.extend(each.cancelled for each in current_batch().elements)
        return numbers

    async with working(app, desk.store):
        for number in (1, 2):
            await desk.order(f"slow-{number}", number, activity="slow")
        await entered.wait()
        await desk.cancel("slow-1")
        error, _ = await desk.failure("slow-1")
        go.set()
        assert await desk.result("slow-2") == 2
    assert error.matches(asyncio.CancelledError)
    assert sorted(cancelled) == [False, True]


async def test_call_whose_elements_are_all_cancelled_is_cancelled(desk: Desk) -> None:
    app, entered, stopped = App("media"), asyncio.Event(), asyncio.Event()

    @app.activity(batch=Batch(2, within="30s"))
    async def slow(numbers: list[int]) -> list[int]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return numbers

    async with working(app, desk.store):
        for number in (1, 2):
            await desk.order(f"slow-{number}", number, activity="slow")
        await entered.wait()
        for number in (1, 2):
            await desk.cancel(f"slow-{number}")
        await asyncio.wait_for(stopped.wait(), 60)


async def test_element_that_is_cancelled_while_the_batch_fills_is_not_executed(desk: Desk) -> None:
    app, called = App("media"), list[list[int]]()

    @app.activity(batch=Batch(2, within="30s"))
    async def late(numbers: list[int]) -> list[int]:
        called.append(numbers)
        return numbers

    async with working(app, desk.store) as worker:
        await desk.order("late-1", 1, activity="late")
        await eventually(lambda: worker.executing)
        await desk.cancel("late-1")
        await desk.failure("late-1")
        for number in (2, 3):
            await desk.order(f"late-{number}", number, activity="late")
        assert [await desk.result("late-2"), await desk.result("late-3")] == [2, 3]
    assert [sorted(each) for each in called] == [[2, 3]]


async def test_time_limit_counts_from_the_call_and_ends_single_elements() -> None:
    app, go = App("post"), asyncio.Event()

    @app.activity(batch=Batch(2, within="30s"), retry=ONCE)
    async def slow(numbers: list[int]) -> list[int]:
        await go.wait()
        return numbers

    limited = slow.with_options(start_to_close="50ms")

    @app.step
    async def let_go() -> None:
        go.set()

    @app.workflow
    async def call(ctx: Context, number: int) -> str:
        try:
            return f"good {await (limited if number == 1 else slow)(number)}"
        except ActivityFailed as error:
            await let_go()
            return type(error).__name__

    assert await outcomes(app, call, [1, 2]) == ["ActivityTimedOut", "good 2"]


async def test_heartbeats_of_a_batch_are_those_of_its_elements() -> None:
    app, seen = App("post"), list[object]()

    @app.activity(batch=Batch(2, within="30s"), retry=Retry(attempts=2, base=0.01, jitter=0))
    async def import_all(numbers: list[int]) -> list[int]:
        batch = current_batch()
        seen.extend(each.last_heartbeat for each in batch.elements)
        batch.heartbeat({"done": 3})
        if batch.attempt == 1:
            raise OSError("the line is down")
        return numbers

    @app.workflow
    async def call(ctx: Context, number: int) -> int:
        return await import_all(number)

    assert await outcomes(app, call, [1, 2]) == [1, 2]
    assert seen == [None, None, {"done": 3}, {"done": 3}]


async def test_outside_of_a_workflow_a_call_is_a_batch_of_one() -> None:
    app = App("post")

    @app.activity(batch=LONG)
    async def check(numbers: list[int]) -> list[int | ValueError]:
        return [n if n > 0 else ValueError("not positive") for n in numbers]

    assert await check(7) == 7
    with pytest.raises(ValueError, match="not positive"):
        await check(-1)


def takes_two(a: list[int], b: int) -> list[int]:
    return a


def takes_one(a: int) -> list[int]:
    return [a]


def returns_one(a: list[int]) -> int:
    return a[0]


def returns_nothing(a: list[int]) -> None: ...


def returns_errors(a: list[int]) -> list[ValueError]:
    return []


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (takes_two, "has one parameter, the list of inputs"),
        (takes_one, r"its parameter a must be a list, such as list\[int\], not int"),
        (returns_one, r"its result must be a list, such as list\[int\], not int"),
        (returns_nothing, r"its result must be a list"),
        (returns_errors, "can return nothing but exceptions"),
    ],
)
def test_function_that_cannot_be_a_batch_is_refused(fn: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        App("post").activity(batch=LONG)(fn)


def test_batch_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="size: a whole number from 1 to 10,000 is needed, not 0"
    ):
        Batch(0)
    with pytest.raises(ConfigurationError, match="within is at most 60 s"):
        Batch(10, within="2m")


def test_there_is_no_batch_outside_of_a_worker() -> None:
    with pytest.raises(LookupError, match="no batch of a worker"):
        current_batch()
