"""Activities on their workers: attempts, retries, cancels, drains, and ends from outside."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast import App, Batch, Retry, current_activity
from holdfast.errors import InvalidInput, WorkerLost
from holdfast.insight.actions import Action
from holdfast.insight.why import explain_run
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Notice
from holdfast.worker import Worker, WorkerOptions
from tests.runtime.desk import CountedBeats, Desk, eventually, working

LEASE = 30.0
SILENCE = 0.3


@pytest.fixture
async def desk(store: Store) -> Desk:
    return await Desk(store, "media").open()


# Attempts


async def test_async_and_sync_activities_are_run_and_recorded(store: Store, desk: Desk) -> None:
    """S7."""
    app = App("media")

    @app.activity
    async def length(text: str) -> int:
        return len(text)

    @app.activity
    def shout(text: str, *, times: int = 1) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return text.upper() + "!" * times

    async with working(app, store) as worker:
        await desk.order("length", "four")
        await desk.order("shout", "hey")
        assert await desk.result("length") == 4
        end = await desk.end("shout")
        assert (end["result"], end["attempt"]) == ("HEY!", 1)
        assert end["worker"] == worker.worker_id


async def test_a_retry_finds_what_the_attempt_before_said_last(store: Store, desk: Desk) -> None:
    """S7. B2. The database decides when; the attempt says how far it came."""
    app = App("media")
    seen: list[tuple[int, object]] = []

    @app.activity
    def convert() -> str:
        activity = current_activity()
        seen.append((activity.attempt, activity.last_heartbeat))
        activity.heartbeat({"page": 10 * activity.attempt})
        if activity.attempt < 3:
            raise ConnectionError("away")
        return activity.idempotency_key

    async with working(app, store):
        await desk.order("convert", attempts=3)
        assert await desk.result("convert") == f"{desk.run_id}/convert"
    assert seen == [(1, None), (2, {"page": 10}), (3, {"page": 20})]
    assert (await desk.types("convert")).count("ActivityRetryScheduled") == 2


async def test_the_last_failure_is_the_activitys(store: Store, desk: Desk) -> None:
    """S7. T3."""
    app = App("media")

    @app.activity
    async def convert() -> None:
        raise ConnectionError(f"attempt {current_activity().attempt}")

    async with working(app, store):
        await desk.order("convert", attempts=2)
        error, timed_out = await desk.failure("convert")
    assert (error.message, timed_out) == ("attempt 2", False)
    assert error.matches(OSError)


@pytest.mark.parametrize("name", ["refused", "unstorable", "misfit"])
async def test_an_error_that_no_attempt_would_mend_is_not_tried_again(
    store: Store, desk: Desk, name: str
) -> None:
    """T3. should_retry says no; a result cannot be stored; arguments never fitted."""
    app = App("media")

    @app.activity(retry=Retry(should_retry=lambda error: not isinstance(error, KeyError)))
    async def refused(x: int) -> None:
        raise KeyError("gone")

    @app.activity
    async def unstorable(x: int) -> float:
        return float("nan")

    @app.activity
    async def misfit(x: str) -> None:
        raise AssertionError("it must not be called")

    async with working(app, store):
        await desk.order(name, 1, attempts=5, misfit=name == "misfit")
        await desk.failure(name)
    assert await desk.types(name) == ["ActivityScheduled", "ActivityFailed"]


@dataclass
class Raising:
    """A type of which no value can be made."""

    size: int = 1

    def __post_init__(self) -> None:
        raise KeyError("sizes")


class Leaving(Raising):
    def __post_init__(self) -> None:
        raise SystemExit(3)


class Cancelling(Raising):
    def __post_init__(self) -> None:
        raise asyncio.CancelledError


_BATCHES = (None, Batch(2, within="1ms"))


@pytest.mark.parametrize(
    ("batch", "kind"), [*product(_BATCHES, [str, Raising, Leaving, Cancelling]), (None, "Unknown")]
)
async def test_arguments_that_fitted_are_held_for_code_that_they_fit(
    store: Store, desk: Desk, batch: Batch | None, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A deploy in between cannot fail the call: the reason stands at it, and no attempt counts."""
    app = App("media")

    async def one(x: Any) -> None:
        raise AssertionError("it must not be called")

    async def many(x: Any) -> list[None]:
        raise AssertionError("it must not be called")

    one.__annotations__["x"] = kind
    many.__annotations__["x"] = list[kind]
    app.activity(name="measure", batch=batch)(many if batch else one)
    async with working(app, store):
        await desk.order("measure", 1 if kind in (str, "Unknown") else {}, attempts=1)

        async def is_held() -> bool:
            [found] = await store.list_activities(desk.run_id)
            return found.stuck is not None

        await eventually(is_held)
    [found] = await store.list_activities(desk.run_id)
    assert (found.attempts, found.worker) == (0, None)
    assert "its arguments do not fit this code" in (found.stuck or "")
    assert await desk.types("measure") == ["ActivityScheduled"]
    assert "activity measure of run" in caplog.text
    run = (await store.get_runs([desk.run_id]))[desk.run_id]
    why = await explain_run(store, run)
    [told] = [each for each in why.details if "it cannot be begun" in each]
    assert "is tried again in" in told
    assert told.endswith("or roll the code back")
    assert Action("start_worker", name="default") in why.actions


@pytest.mark.parametrize("by_keyword", [False, True])
async def test_a_required_parameter_that_was_added_holds_the_call(
    store: Store, desk: Desk, by_keyword: bool
) -> None:
    """The call itself would raise TypeError, and use up its attempts."""
    app = App("media")

    if by_keyword:

        @app.activity(name="measure")
        async def keyword(x: int, *, y: int) -> None:
            raise AssertionError("it must not be called")
    else:

        @app.activity(name="measure")
        async def positional(x: int, y: int) -> None:
            raise AssertionError("it must not be called")

    async with working(app, store):
        await desk.order("measure", 1, attempts=1)

        async def is_held() -> bool:
            [found] = await store.list_activities(desk.run_id)
            return "missing a required" in (found.stuck or "")

        await eventually(is_held)
    assert await desk.types("measure") == ["ActivityScheduled"]


async def test_workers_serve_the_queues_that_they_are_told_to(store: Store, desk: Desk) -> None:
    """S7."""
    app = App("media")
    served: list[str] = []

    @app.activity(queue="gpu")
    async def render() -> None:
        served.append("gpu")

    @app.activity(queue="cpu")
    async def count() -> None:
        served.append("cpu")

    async with working(app, store, queues=("cpu",)):
        await desk.order("render", queue="gpu")
        await desk.order("count", queue="cpu")
        await desk.end("count")
        assert served == ["cpu"]
        async with working(app, store, queues=("gpu",)):
            await desk.end("render")
    assert served == ["cpu", "gpu"]


# Cancels


async def test_a_cancel_reaches_an_async_activity_at_its_await(store: Store, desk: Desk) -> None:
    """S10. Its end is recorded when it has cleaned up."""
    app = App("media")
    begun, seen = asyncio.Event(), list[str]()

    @app.activity
    async def convert() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    async with working(app, store):
        await desk.order("convert", attempts=5)
        await begun.wait()
        await desk.cancel("convert")
        error, _ = await desk.failure("convert")
    assert error.matches(asyncio.CancelledError)
    assert seen == ["cleaned up"]
    assert "ActivityRetryScheduled" not in await desk.types("convert")


@pytest.mark.parametrize("asks", ["flag", "heartbeat"])
async def test_an_activity_in_a_thread_sees_a_cancel(store: Store, desk: Desk, asks: str) -> None:
    """S10. By looking at the flag, or by the next heartbeat."""
    app = App("media")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.activity
    def convert() -> str:
        loop.call_soon_threadsafe(begun.set)
        activity = current_activity()
        if asks == "flag":
            assert activity.wait_cancelled(30)
            return "stopped halfway"
        while True:
            activity.heartbeat()

    async with working(app, store):
        await desk.order("convert")
        await begun.wait()
        await desk.cancel("convert")
        if asks == "flag":
            assert await desk.result("convert") == "stopped halfway"
        else:
            error, _ = await desk.failure("convert")
            assert error.matches(asyncio.CancelledError)


class Mute(CountedBeats):
    """Loses every wake-up that is sent to a worker."""

    async def notify(self, notices: Sequence[Notice]) -> None:
        await super().notify([each for each in notices if not each.topic.startswith("worker/")])


async def test_if_the_notice_of_a_cancel_is_lost_the_heartbeat_brings_it() -> None:
    """Trap 1. S10. Every heartbeat says it again: the activity is cancelled once."""
    app, store = App("media"), Mute()
    desk, begun, cleaned = await Desk(store, app.name).open(), asyncio.Event(), list[bool]()

    @app.activity
    async def convert() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(store.await_renewal)
            cleaned.append(True)

    options = WorkerOptions(heartbeat_seconds=0.01, silent_seconds=1e9)
    worker = Worker(app, store, options, heartbeat_store=lambda: store)
    await worker.start()
    await desk.order("convert")
    await begun.wait()
    await desk.cancel("convert")
    await desk.failure("convert")
    await worker.stop(0)
    assert cleaned == [True]


# Leases


def gated(app: App) -> tuple[threading.Event, threading.Event]:
    """Define an activity that waits in a thread; return what says it began, and what lets it go."""
    begun, gate = threading.Event(), threading.Event()

    @app.activity
    def convert() -> str:
        begun.set()
        gate.wait(30)
        return "done"

    return begun, gate


async def claim_as_rival(store: MemoryStore, app: App) -> list[ClaimedTask]:
    """Claim as another worker, which is heard without a gap if it is heard once a lease."""
    info = Worker(app, store).info
    rival = msgspec.structs.replace(info, worker_id="rival")
    await store.heartbeat(rival, [], lease_seconds=LEASE, interval_seconds=LEASE)
    claims = await store.claim_tasks("rival", ["default"], app.handlers(), 1, lease_seconds=LEASE)
    return claims.tasks


async def test_an_end_that_comes_after_the_lease_is_dropped() -> None:
    """Trap 8. Another has the activity by then; what the first one did counts for nothing."""
    store, app = MemoryStore(), App("media")
    desk = await Desk(store, app.name).open()
    begun, gate = gated(app)
    assert await claim_as_rival(store, app) == []
    async with working(app, store, lease_seconds=LEASE) as worker:
        await desk.order("convert", attempts=2)
        await eventually(begun.is_set)
        store.advance(LEASE + 1)
        [task] = await claim_as_rival(store, app)
        gate.set()
        await eventually(lambda: worker.active == 0)
        assert await desk.types("convert") == ["ActivityScheduled", "WorkerLost"]
        assert await desk.complete(f"{desk.run_id}:{task.lease_no}:convert", '"by rival"') == [
            "recorded"
        ]
        assert await desk.result("convert") == "by rival"


async def test_an_attempt_beyond_the_policy_is_not_made() -> None:
    """S6. A worker lost at the last attempt ends the activity."""
    store, app = MemoryStore(), App("media")
    desk = await Desk(store, app.name).open()

    @app.activity
    async def convert() -> None:
        raise AssertionError("there is no attempt left")

    await desk.order("convert", attempts=1)
    await store.claim_tasks("doomed", ["default"], app.handlers(), 1, lease_seconds=LEASE)
    store.advance(LEASE + 1)
    async with working(app, store):
        error, _ = await desk.failure("convert")
    assert error.matches(WorkerLost)


@pytest.mark.parametrize("limited", [True, False], ids=["silent", "not limited"])
async def test_the_lease_of_an_activity_that_is_silent_too_long_is_not_renewed(
    limited: bool,
) -> None:
    """S7. Trap 24. Also where it blocks the event loop, on which its limit would be noticed."""
    store, app = CountedBeats(), App("media")
    desk = await Desk(store, app.name).open()
    taken: list[int] = []

    def rival() -> None:
        taken.append(len(asyncio.run(claim_as_rival(store, app))))

    @app.activity
    async def block() -> None:
        begun_at = time.monotonic()
        while time.monotonic() < begun_at + SILENCE:
            store.await_renewal()
        store.advance(0.7 * LEASE)
        store.await_renewal()
        store.advance(0.7 * LEASE)
        thread = threading.Thread(target=rival)
        thread.start()
        thread.join()

    options = WorkerOptions(lease_seconds=LEASE, heartbeat_seconds=0.01, silent_seconds=1e9)
    worker = Worker(app, store, options, heartbeat_store=lambda: store)
    assert await claim_as_rival(store, app) == []
    await worker.start()
    await desk.order("block", attempts=2, heartbeat_timeout=SILENCE if limited else None)
    await eventually(lambda: bool(taken))
    await worker.stop(0)
    assert taken == [1 if limited else 0]


async def test_the_next_attempt_finds_what_the_lost_worker_said_last() -> None:
    """S7. The heartbeat of the worker carries them."""
    store, app = CountedBeats(), App("media")
    desk = await Desk(store, app.name).open()
    said, gate = threading.Event(), threading.Event()

    @app.activity
    def convert() -> None:
        current_activity().heartbeat("page 7")
        said.set()
        gate.wait(30)

    options = WorkerOptions(lease_seconds=LEASE, heartbeat_seconds=0.01, silent_seconds=1e9)
    worker = Worker(app, store, options, heartbeat_store=lambda: store)
    await worker.start()
    await desk.order("convert", attempts=2)
    await eventually(said.is_set)
    await asyncio.to_thread(store.await_renewal)
    _, notices = await store.reap_workers(worker_ids=[worker.worker_id])
    claims = await store.claim_tasks("rival", ["default"], app.handlers(), 1, lease_seconds=LEASE)
    gate.set()
    await worker.stop(0)
    assert [task.heartbeat for task in claims.tasks] == ['"page 7"']
    assert notices


# Drain


async def test_a_drain_lets_an_activity_end(store: Store, desk: Desk) -> None:
    """Trap 26. S12."""
    app = App("media")
    begun, gate = gated(app)
    worker = Worker(app, store)
    await worker.start()
    await desk.order("convert")
    await eventually(begun.is_set)
    stopping = asyncio.create_task(worker.stop("30s"))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert await desk.result("convert") == "done"


async def test_an_activity_that_outlives_the_grace_period_is_free_at_once(
    store: Store, desk: Desk
) -> None:
    """Trap 26. S12. Without an attempt counted, and with what was said last."""
    app, next_app = App("media"), App("media")
    said, gate = threading.Event(), threading.Event()

    @app.activity
    def convert() -> None:
        current_activity().heartbeat("page 7")
        said.set()
        gate.wait(30)

    @next_app.activity(name="convert")
    async def convert_again() -> list[object]:
        return [current_activity().attempt, current_activity().last_heartbeat]

    async with working(app, store):
        await desk.order("convert")
        await eventually(said.is_set)
    gate.set()
    assert await desk.types("convert") == ["ActivityScheduled"]
    async with working(next_app, store):
        assert await desk.result("convert") == [1, "page 7"]


async def test_what_an_attempt_said_last_is_read_as_a_type(store: Store, desk: Desk) -> None:
    app = App("media")

    @app.activity
    async def convert() -> list[object]:
        activity = current_activity()
        if activity.attempt == 1:
            assert activity.read_heartbeat(UUID) is None
            activity.heartbeat(UUID(int=7))
            raise OSError
        with pytest.raises(InvalidInput):
            activity.read_heartbeat(int)
        return [activity.read_heartbeat(UUID) == UUID(int=7)]

    async with working(app, store):
        await desk.order("convert", attempts=2)
        assert await desk.result("convert") == [True]


# Ends from outside


async def test_an_activity_is_completed_later_by_its_token(store: Store, desk: Desk) -> None:
    """S7. The attempt ends without a result, and holds no worker."""
    app = App("media")
    tokens: asyncio.Queue[str] = asyncio.Queue()

    @app.activity
    async def ask() -> str:
        tokens.put_nowait(current_activity().token)
        current_activity().complete_later()

    async with working(app, store) as worker:
        await desk.order("ask")
        token = await tokens.get()
        await eventually(lambda: worker.active == 0)
        assert await desk.types("ask") == ["ActivityScheduled"]
        assert await desk.complete(token, '"yes"') == ["recorded"]
        assert await desk.complete(token, '"no"') == ["lost"]
    assert await desk.result("ask") == "yes"


async def test_an_activity_that_is_not_completed_in_time_is_tried_again(
    store: Store, desk: Desk
) -> None:
    """S7. Trap 8. The token of the attempt before is worth nothing then."""
    app = App("media")
    tokens: list[str] = []

    @app.activity
    def ask() -> str:
        tokens.append(current_activity().token)
        if len(tokens) == 1:
            current_activity().complete_later()
        return "asked twice"

    async with working(app, store):
        await desk.order("ask", attempts=2, start_to_close=0.05)
        assert await desk.result("ask") == "asked twice"
    assert await desk.complete(tokens[0], '"late"') == ["lost"]


async def test_an_activity_that_is_not_completed_in_time_fails_after_the_last_attempt(
    store: Store, desk: Desk
) -> None:
    """S7."""
    app = App("media")

    @app.activity
    async def ask() -> str:
        current_activity().complete_later()

    async with working(app, store):
        await desk.order("ask", attempts=1, start_to_close=0.02)
        error, _ = await desk.failure("ask")
    assert error.matches(WorkerLost)
