"""The time limits of activities, and the reports of their ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from holdfast import App, current_activity
from holdfast.errors import DatabaseUnavailable, PayloadError
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.types import ActivitiesEnded, ActivityEnd
from tests.runtime.desk import Desk, eventually, working

app = App("limits")
stopped: list[str] = []
gate = threading.Event()


@app.activity
async def endless() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append("endless")


@app.activity
def stubborn() -> None:
    """Ignore everything until the test is over."""
    gate.wait(30)


@app.activity
async def talkative(seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        current_activity().heartbeat()
        await asyncio.sleep(0.01)
    return "done"


@app.activity
async def quick(text: str) -> str:
    return text


@pytest.fixture(autouse=True)
def let_go() -> None:
    stopped.clear()
    gate.clear()


@pytest.mark.parametrize("name", ["endless", "stubborn"])
@pytest.mark.parametrize("limit", ["start_to_close", "heartbeat_timeout"])
async def test_an_attempt_beyond_its_time_limit_has_failed(name: str, limit: str) -> None:
    """S7. Async ones are cancelled; a thread is told, and not listened to."""
    store = MemoryStore(wall_clock)
    desk = await Desk(store, app.name).open()
    async with working(app, store):
        await desk.order(name, **{limit: 0.05})
        error, timed_out = await desk.failure(name)
        gate.set()
    said = "ran longer than 0.05 s" if limit == "start_to_close" else "no heartbeat for 0.05 s"
    assert timed_out
    assert error.matches(TimeoutError)
    assert said in error.message
    assert stopped == (["endless"] if name == "endless" else [])


async def test_with_heartbeats_an_activity_outlives_its_heartbeat_timeout() -> None:
    """S7."""
    store = MemoryStore(wall_clock)
    desk = await Desk(store, app.name).open()
    async with working(app, store):
        await desk.order("talkative", 1.2, heartbeat_timeout=1)
        assert await desk.result("talkative") == "done"


async def test_an_activity_beyond_its_schedule_to_close_time_is_ended_and_told() -> None:
    """S7. By any worker's maintenance; the attempt under way is cancelled."""
    store = MemoryStore()
    desk = await Desk(store, app.name).open()
    async with working(app, store) as worker:
        await desk.order("endless", schedule_to_close=10)
        await eventually(lambda: worker.executing)
        store.advance(11)
        await worker.maintain()
        _, timed_out = await desk.failure("endless")
        await eventually(lambda: stopped == ["endless"])
        await eventually(lambda: worker.active == 0)
    assert timed_out
    assert await desk.types("endless") == ["ActivityScheduled", "ActivityFailed"]


# Reports


class Forgetful(MemoryStore):
    """Loses the answer to the first report of ends."""

    def __init__(self) -> None:
        super().__init__(wall_clock)
        self.calls = 0

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        answer = await super().end_activities(worker_id, ends)
        self.calls += 1
        if self.calls == 1:
            raise DatabaseUnavailable("the connection is gone")
        return answer


async def test_a_report_whose_answer_is_lost_is_repeated() -> None:
    """Trap 23. S7. What the first try recorded is recorded once."""
    store = Forgetful()
    desk = await Desk(store, app.name).open()
    async with working(app, store) as worker:
        await desk.order("quick", "a")
        assert await desk.result("quick") == "a"
        await eventually(lambda: worker.active == 0)
    assert store.calls == 2
    assert (await desk.types("quick")).count("ActivityCompleted") == 1


class Choosy(MemoryStore):
    """Refuses one value, and with it every call that has it."""

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        if any(end.result == '"bad"' for end in ends):
            raise PayloadError("the database refuses a value")
        return await super().end_activities(worker_id, ends)


async def test_a_value_that_the_database_refuses_fails_its_activity_alone() -> None:
    """Trap 20. S7."""
    store = Choosy(wall_clock)
    desk = await Desk(store, app.name).open()
    for key, text in [("first", "a"), ("second", "bad"), ("third", "c")]:
        await desk.order(key, text, activity="quick", attempts=5)
    async with working(app, store):
        assert await desk.result("first") == "a"
        assert await desk.result("third") == "c"
        error, _ = await desk.failure("second")
    assert "refuses a value" in error.message


async def test_ends_of_the_same_moment_share_a_call() -> None:
    """S7. A thousand activities are not a thousand transactions."""
    store = Forgetful()
    store.calls = 1
    desk = await Desk(store, app.name).open()
    for number in range(50):
        await desk.order(f"quick#{number}", "x", activity="quick")
    async with working(app, store) as worker:
        for number in range(50):
            await desk.end(f"quick#{number}")
        await eventually(lambda: worker.active == 0)
    assert store.calls < 25
