"""holdfast.testing: the worker, the client and the runtime on virtual time, without a database."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from holdfast import (
    App,
    Context,
    Retry,
    RunCancelled,
    RunFailed,
    StepFailed,
    current_activity,
    current_step,
)
from holdfast.database import embedded
from holdfast.errors import ConfigurationError, RunTimedOut, StepTimedOut
from holdfast.testing import Environment

calls: list[str] = []
app = App("environment", retry=Retry(attempts=3, base="10s", max="1h", jitter=0))


class Declined(Exception):
    """A card that is not taken."""


@app.step
async def tell(text: str) -> None:
    calls.append(text)


@app.step
def flaky(fail: int) -> int:
    """Fail so often, then say at which attempt it worked."""
    attempt = current_step().attempt
    calls.append(f"attempt {attempt}")
    if attempt <= fail:
        raise ConnectionError(f"attempt {attempt}")
    return attempt


@app.step(retry=Retry(attempts=None, base="10ms", max="10ms", jitter=0))
async def dogged(fail: int) -> int:
    attempt = current_step().attempt
    if attempt <= fail:
        raise ConnectionError(f"attempt {attempt}")
    return attempt


@app.workflow
async def persevere(ctx: Context, fail: int) -> int:
    return await dogged(fail)


@app.step(retry=Retry.NEVER)
async def decline() -> None:
    raise Declined("no money")


@app.step(timeout="20ms", retry=Retry.NEVER)
async def slow() -> None:
    await asyncio.sleep(60)


@app.step
async def lingering() -> None:
    calls.append("begun")
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.02)
        calls.append("cleaned up")


@app.workflow
async def nap(ctx: Context, days: float) -> float:
    begin = ctx.now()
    await asyncio.sleep(days * 86_400)
    return (ctx.now() - begin) / timedelta(days=1)


@app.workflow
async def patient(ctx: Context) -> str:
    try:
        return await ctx.wait_for_signal("packed", type=str, timeout="7d")
    except TimeoutError:
        await tell("too late")
        return "nobody packed"


@app.workflow
async def expectant(ctx: Context) -> str:
    return await ctx.wait_for_signal("packed", type=str)


@app.workflow
async def stubborn(ctx: Context, fail: int) -> int:
    return await flaky(fail)


@app.workflow
async def declined(ctx: Context) -> None:
    await decline()


@app.workflow
async def impatient(ctx: Context) -> str:
    try:
        await slow()
    except StepTimedOut as late:
        return late.key
    return "in time"


@app.workflow(timeout="2h")
async def limited(ctx: Context) -> None:
    await asyncio.sleep(86_400)


@app.workflow
async def tidy(ctx: Context) -> None:
    try:
        await asyncio.sleep(86_400)
    finally:
        await tell("tidied")


@app.workflow
async def ticking(ctx: Context) -> None:
    for hour in range(3):
        ctx.set_value("hour", hour)
        await asyncio.sleep(3_600)


@app.workflow
async def forgetful(ctx: Context) -> object:
    return asyncio.gather(tell("done"))


@app.workflow
async def monthly(ctx: Context, month: int) -> None:
    await asyncio.sleep(30 * 86_400)
    ctx.continue_as_new(month + 1)


@app.workflow
async def for_ever(ctx: Context) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    calls.clear()


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    async with Environment(app) as env:
        yield env


async def test_a_month_of_sleep_passes_at_once(env: Environment) -> None:
    assert await env.run(nap, 30.0) == 30.0


async def test_a_hundred_runs_sleep_side_by_side(env: Environment) -> None:
    """Time jumps to the earliest moment of all runs, so each wakes at its own."""
    handles = await env.client.start_many(nap, [float(days) for days in range(1, 101)])
    began = env.now
    assert await asyncio.gather(*(env.result(each) for each in handles)) == [*range(1, 101)]
    assert env.now - began == timedelta(days=100)


async def test_a_signal_before_the_timeout_wins(env: Environment) -> None:
    handle = await env.client.start(patient)
    await env.advance("6d")
    assert await handle.status() == "running"
    await handle.signal("packed", "by Ann")
    assert await env.result(handle) == "by Ann"
    assert calls == []


async def test_the_timeout_wins_when_no_signal_comes_in_time(env: Environment) -> None:
    handle = await env.client.start(patient)
    await env.advance("7d")
    assert calls == ["too late"]
    assert await env.result(handle) == "nobody packed"


async def test_a_signal_sent_before_the_wait_is_kept_for_it(env: Environment) -> None:
    """Trap 4."""
    handle = await env.client.start(patient, delay="1d")
    await handle.signal("packed", "early")
    assert await env.result(handle) == "early"


async def test_advance_stops_at_each_due_moment(env: Environment) -> None:
    handle = await env.client.start(ticking)
    await env.advance("90m")
    assert await handle.values() == {"hour": 1}
    await env.advance("1h")
    assert await handle.values() == {"hour": 2}


async def test_retries_wait_in_virtual_time(env: Environment) -> None:
    began = env.now
    assert await env.run(stubborn, 2) == 3
    assert calls == ["attempt 1", "attempt 2", "attempt 3"]
    assert env.now - began == timedelta(seconds=10 + 20)


async def test_an_attempt_is_not_made_before_its_backoff_is_over(env: Environment) -> None:
    await env.client.start(stubborn, 1)
    await env.advance("9s")
    assert calls == ["attempt 1"]
    await env.advance("1s")
    assert calls == ["attempt 1", "attempt 2"]


async def test_a_step_may_fail_more_often_than_schedules_may_tick(env: Environment) -> None:
    """Short pauses between attempts are alarms of the worker, and no ticks of a schedule."""
    assert await env.run(persevere, 150) == 151


async def test_exhausted_attempts_fail_the_run_with_the_steps_error(env: Environment) -> None:
    with pytest.raises(RunFailed) as failure:
        await env.run(stubborn, 3)
    assert failure.value.matches(StepFailed)
    cause = failure.value.error.cause
    assert cause is not None
    assert cause.matches(ConnectionError)
    assert cause.message == "attempt 3"


async def test_an_error_without_retries_fails_at_once(env: Environment) -> None:
    began = env.now
    with pytest.raises(RunFailed, match="no money"):
        await env.run(declined)
    assert env.now == began


async def test_a_steps_own_timeout_is_real_time(env: Environment) -> None:
    assert await env.run(impatient) == "slow"


async def test_a_run_past_its_deadline_is_ended(env: Environment) -> None:
    handle = await env.client.start(limited)
    with pytest.raises(RunTimedOut):
        await env.result(handle)
    assert (await handle.get()).completed_at == (await handle.get()).deadline_at


async def test_a_cancelled_run_cleans_up(env: Environment) -> None:
    handle = await env.client.start(tidy)
    await env.advance("1h")
    assert await handle.cancel()
    with pytest.raises(RunCancelled):
        await env.result(handle)
    assert calls == ["tidied"]


@pytest.mark.parametrize("kind", ["async", "thread", "step of a flow"])
async def test_an_attempt_on_another_worker_hears_of_a_cancel(kind: str) -> None:
    app, begun, stopped = App("cancels"), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @app.activity
    def in_a_thread() -> None:
        loop.call_soon_threadsafe(begun.set)
        while not current_activity().cancelled:
            time.sleep(0.001)
        stopped.set()

    on_loop = app.activity(work)

    @app.workflow
    async def call(ctx: Context) -> None:
        await (on_loop() if kind == "async" else in_a_thread())

    flow = app.flow("graph")

    @flow.step
    async def endless() -> None:
        await work()

    async with Environment(app) as env:
        handle = await env.client.start(flow if kind == "step of a flow" else call)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await env.result(handle)
    assert stopped.wait(5)


async def test_a_delayed_start_waits_in_virtual_time(env: Environment) -> None:
    began = env.now
    await env.run(stubborn, 0, delay="12h")
    assert env.now - began == timedelta(hours=12)


async def test_the_same_key_is_the_same_run(env: Environment) -> None:
    first = await env.client.start(stubborn, 0, key="order-7")
    await env.result(first)
    again = await env.client.start(stubborn, 1, key="order-7")
    assert (again.run_id, again.already_existed, again.status_at_start) == (
        first.run_id,
        True,
        "completed",
    )
    assert await env.result(again) == 1
    assert calls == ["attempt 1"]


async def test_another_task_of_the_test_may_send_the_signal(env: Environment) -> None:
    handle = await env.client.start(expectant)

    async def pack() -> None:
        while (await handle.get()).state != "waiting":
            await asyncio.sleep(0)
        await handle.signal("packed", "meanwhile")

    packing = asyncio.create_task(pack())
    assert await env.result(handle) == "meanwhile"
    await packing


async def test_another_task_of_the_test_may_take_its_time(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a hundred looks at a run without anything due, a fifth of a second, were too many."""
    monkeypatch.setattr("holdfast.testing.environment._PATIENCE_SECONDS", 60)
    handle = await env.client.start(expectant)
    looks = 0
    newest_runs = env.store.newest_runs

    async def count(run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        nonlocal looks
        looks += 1
        return await newest_runs(run_ids)

    async def pack() -> None:
        while looks < 500:
            await asyncio.sleep(0)
        await handle.signal("packed", "at last")

    monkeypatch.setattr(env.store, "newest_runs", count)
    packing = asyncio.create_task(pack())
    assert await env.result(handle) == "at last"
    await packing


def by_callback(send: Callable[[], object]) -> object:
    return asyncio.get_running_loop().call_later(0.02, send)


def by_thread(send: Callable[[], object]) -> object:
    loop = asyncio.get_running_loop()
    return threading.Timer(0.02, loop.call_soon_threadsafe, [send]).start()


def by_executor(send: Callable[[], object]) -> object:
    loop = asyncio.get_running_loop()

    def work() -> None:
        time.sleep(0.02)
        loop.call_soon_threadsafe(send)

    return loop.run_in_executor(None, work)


@pytest.mark.parametrize("later", [by_callback, by_thread, by_executor])
async def test_what_is_no_task_may_send_the_signal(
    env: Environment, later: Callable[[Callable[[], object]], object]
) -> None:
    """Fault: without another task of the test, the error was raised at once."""
    sent: list[asyncio.Task[bool]] = []
    handle = await env.client.start(expectant)
    kept = later(lambda: sent.append(asyncio.ensure_future(handle.signal("packed", "later"))))
    assert await env.result(handle) == "later"
    await asyncio.gather(*sent)
    del kept


async def test_a_task_that_ends_may_leave_the_signal_to_a_callback(env: Environment) -> None:
    sent: list[asyncio.Task[bool]] = []
    handle = await env.client.start(expectant)

    async def work() -> None:
        await asyncio.sleep(0.3)
        by_callback(lambda: sent.append(asyncio.ensure_future(handle.signal("packed", "later"))))

    working = asyncio.create_task(work())
    assert await env.result(handle) == "later"
    await asyncio.gather(working, *sent)


async def test_waiting_for_a_signal_that_nobody_sends_is_an_error_soon(env: Environment) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(AssertionError, match="waits for signal packed"):
        await env.run(expectant)
    assert asyncio.get_running_loop().time() - began < 4


async def test_a_task_that_sends_nothing_is_waited_for_a_while(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.environment._PATIENCE_SECONDS", 0.02)
    other = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(AssertionError, match="waits for signal packed"):
        await env.run(expectant)
    other.cancel()


async def test_a_forgotten_await_is_guessed(env: Environment) -> None:
    with pytest.raises(RunFailed, match=r"output of forgetful: .* an await is missing"):
        await env.run(forgetful)


async def test_a_signal_that_does_not_fit_is_named(env: Environment) -> None:
    handle = await env.client.start(expectant)
    await handle.signal("packed", 7)
    with pytest.raises(RunFailed, match="InvalidInput: signal packed: Expected `str`, got `int`"):
        await env.result(handle)


async def test_an_activity_whose_code_does_not_take_its_arguments_is_named() -> None:
    app, media = App("shop"), App("media")

    @media.activity
    async def render(size: str) -> str:
        return size

    @app.workflow
    async def show(ctx: Context) -> object:
        return await ctx.activity("media/render", 5)

    @app.workflow
    async def show_all(ctx: Context) -> object:
        return await show()

    async with Environment(app, media) as env:
        for workflow in (show, show_all):
            with pytest.raises(AssertionError, match=r"render of run .* cannot be begun: its arg"):
                await env.run(workflow)


async def test_a_run_that_never_ends_is_an_error_and_not_an_endless_test(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.environment._MOST_SUCCESSORS", 3)
    with pytest.raises(AssertionError, match="continued as new 3 times and has not ended"):
        await env.run(monthly, 1)


async def test_a_stuck_run_is_an_error_and_not_an_endless_retry(env: Environment) -> None:
    with pytest.raises(AssertionError, match="stuck: the workflow waits for nothing durable"):
        await env.run(for_ever)


async def test_the_same_run_writes_the_same_log_in_each_environment() -> None:
    """Virtual time begins at the same moment in each: logs can be compared."""
    run_id = UUID(int=7)

    async def log() -> list[tuple[int, str, str | None]]:
        async with Environment(app) as env:
            await env.run(ticking, run_id=run_id)
            entries = await env.client.runs.log(run_id)
            return [(each.event.at, each.event.type, each.event.key) for each in entries]

    assert await log() == await log()


async def test_no_database_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a test environment asked for a database")

    monkeypatch.setattr(asyncpg, "connect", refuse)
    monkeypatch.setattr(asyncpg, "create_pool", refuse)
    monkeypatch.setattr(embedded.EmbeddedServer, "acquire", refuse)
    monkeypatch.setitem(os.environ, "HOLDFAST_DATABASE_URL", "postgresql://nowhere.invalid/none")
    async with Environment(app) as env:
        assert await env.run(nap, 1.0) == 1.0


async def test_entering_and_leaving_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with Environment(app) as env:
        await env.client.start(patient)
        await env.wait_until_idle()
    assert asyncio.all_tasks() == before


async def test_a_run_that_was_just_started_has_begun_when_the_environment_is_idle(
    env: Environment,
) -> None:
    """T1. Its wake-up follows close upon others of the same words, which are spaced out."""
    for _ in range(50):
        handle = await env.client.start(patient)
        await env.wait_until_idle()
        run = await handle.get()
        assert run.wait is not None
        assert run.wait.awaiting == ("packed",)


@app.workflow
async def giving_up(ctx: Context) -> None:
    task = asyncio.create_task(lingering())
    await ctx.wait_for_signal("packed")
    task.cancel()
    await tell("after")


async def test_a_step_that_waits_for_a_cancelled_one_is_waited_for(env: Environment) -> None:
    handle = await env.client.start(giving_up)
    while not calls:
        await asyncio.sleep(0)
    await handle.signal("packed")
    await env.wait_until_idle()
    assert calls == ["begun", "cleaned up", "after"]


async def test_time_begins_when_the_test_says() -> None:
    leap = App("leap")

    @leap.schedule("0 9 29 2 *")
    @leap.workflow
    async def once_in_four_years(ctx: Context) -> int:
        return ctx.now().year

    async with Environment(leap, now=datetime(2028, 2, 28, 23, tzinfo=UTC)) as env:
        await env.advance("1d")
        assert env.now == datetime(2028, 2, 29, 23, tzinfo=UTC)
        [run] = (await env.client.runs.list(payloads=True)).runs
        assert (run.output, run.created_at) == (2028, datetime(2028, 2, 29, 9, tzinfo=UTC))
    with pytest.raises(ConfigurationError, match="no time zone"):
        Environment(leap, now=datetime(2028, 2, 28))
