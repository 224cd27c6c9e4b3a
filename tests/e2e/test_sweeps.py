"""Sweeps: doing what is due in a limited time, for hosts without a worker (T7, T14)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest

from holdfast import App, Client, Context, Retry, current_message, sweep, sweep_sync
from holdfast.client import Outgoing
from holdfast.errors import ConfigurationError, InvalidDatabaseURL

app = App("hosts")
begun: asyncio.Event
let_go: asyncio.Event


@app.step
async def add(a: int, b: int) -> int:
    return a + b


@app.step
def add_in_a_thread(a: int, b: int) -> int:
    return a + b


@app.step
async def hold() -> str:
    begun.set()
    await let_go.wait()
    return "held"


@app.activity
async def announce(text: str) -> str:
    return text.upper()


@app.workflow
async def total(ctx: Context, numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result = await add_in_a_thread(await add(result, number), 0)
    return result


@app.workflow
async def shout(ctx: Context, text: str) -> str:
    return await announce(text)


@app.workflow
async def family(ctx: Context, text: str) -> list[str]:
    return [await ctx.child(shout, each) for each in (text, text)]


@app.workflow
async def nap(ctx: Context, length: str) -> str:
    await ctx.sleep(length)
    return "awake"


@app.workflow
async def held(ctx: Context) -> str:
    return await hold()


@app.workflow
async def told(ctx: Context) -> str:
    return await ctx.wait_for_signal("word", type=str)


@app.workflow(timeout="20ms")
async def late(ctx: Context) -> None:
    await ctx.wait_for_signal("never")


@app.consumer("words", concurrency=2, retry=Retry(base="1h", max="1h"))
async def hear(word: str) -> None:
    if word == "late":
        raise ValueError("not yet")
    current_message().start(shout, word, tags=["heard"])


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[Client]:
    global begun, let_go
    begun, let_go = asyncio.Event(), asyncio.Event()
    async with Client(database_url, app=app) as client:
        yield client


async def log_of(client: Client, run: object) -> list[str]:
    return [each.event.type for each in await run.log()]  # type: ignore[attr-defined]


def left_in(url: str) -> tuple[int, int]:
    """Return how many leases and how many workers the database has."""
    with psycopg.connect(url) as connection:
        leases = connection.execute("select count(*) from holdfast.tasks where worker is not null")
        workers = connection.execute("select count(*) from holdfast.workers")
        return leases.fetchone()[0], workers.fetchone()[0]  # type: ignore[index]


def sessions(url: str) -> int:
    """Return how many other sessions the database has."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        return found.fetchone()[0]  # type: ignore[index]


async def test_nothing_is_due(client: Client, database_url: str) -> None:
    done = await sweep(app, database_url)
    assert (done.runs, done.turns, done.remaining, done.next_due) == (0, 0, False, None)
    assert left_in(database_url) == (0, 0)


async def test_consumers_are_called_and_what_they_start_is_driven(
    client: Client, database_url: str
) -> None:
    """B13. A host without a worker consumes what is there, and is told when more is due."""
    await client.queues.create("words")
    await client.queues.send_many("words", [Outgoing(word) for word in ("a", "b", "c", "late")])
    done = await sweep(app, database_url)
    assert (done.messages, done.runs, done.ended, done.remaining) == (4, 3, 3, False)
    assert done.next_due is not None  # the message that failed
    [counted] = await client.queues.metrics("words")
    assert (counted.due, counted.delayed, counted.in_flight) == (0, 1, 0)
    assert left_in(database_url) == (0, 0)
    await client.queues.pause("words")
    assert (await sweep(app, database_url)).next_due is None  # it need not be called for that


async def test_everything_that_is_due_is_driven_to_its_end(
    client: Client, database_url: str
) -> None:
    """T7. Children, activities and steps in threads too; nothing is left behind."""
    before = sessions(database_url), threading.active_count()
    sums = [await client.start(total, [1, 2, number]) for number in range(5)]
    parent = await client.start(family, "hi")
    done = await sweep(app, database_url)
    while sessions(database_url) > before[0]:  # the server ends them soon after they are closed
        await asyncio.sleep(0.01)
    assert threading.active_count() <= before[1]
    assert [await each.result() for each in sums] == [3, 4, 5, 6, 7]
    assert await parent.result() == ["HI", "HI"]
    assert (done.runs, done.ended, done.activities, done.steps) == (8, 8, 2, 30)
    assert (done.remaining, done.next_due, done.interrupted) == (False, None, 0)
    assert left_in(database_url) == (0, 0)


async def test_it_says_when_the_next_timer_is_due(client: Client, database_url: str) -> None:
    run = await client.start(nap, "1h")
    before = datetime.now(UTC)
    done = await sweep(app, database_url)
    assert (done.ended, done.timers, done.remaining) == (0, 0, False)
    assert done.next_due is not None
    assert 3590 < (done.next_due - before).total_seconds() < 3660
    assert await log_of(client, run) == ["WorkflowStarted", "TimerScheduled"]


async def test_it_fires_timers_that_are_due(client: Client, database_url: str) -> None:
    run = await client.start(nap, "150ms")
    done = await sweep(app, database_url)  # a moment that is near is waited for
    assert await run.result() == "awake"
    assert (done.ended, done.timers) == (1, 1)


async def test_it_ends_runs_at_their_deadlines(client: Client, database_url: str) -> None:
    run = await client.start(late)
    await asyncio.sleep(0.03)
    await sweep(app, database_url)
    assert (await client.runs.get(run.run_id)).status == "timed_out"


async def test_a_signal_between_sweeps_wakes_the_run(client: Client, database_url: str) -> None:
    run = await client.start(told)
    assert (await sweep(app, database_url)).ended == 0
    await run.signal("word", "now")
    assert (await sweep(app, database_url)).ended == 1
    assert await run.result() == "now"


async def test_the_number_of_runs_is_limited(client: Client, database_url: str) -> None:
    for number in range(5):
        await client.start(total, [number])
    counts = [await sweep(app, database_url, max_runs=2) for _ in range(3)]
    assert [(each.runs, each.ended, each.remaining) for each in counts] == [
        (2, 2, True),
        (2, 2, True),
        (1, 1, False),
    ]


def let_pass(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass on this event loop: sweeps go by its clock."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + seconds)


async def test_a_step_that_takes_too_long_is_interrupted(
    client: Client, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14. It gives the run back before the time is over, and says so in the log."""
    run = await client.start(held)
    sweeping = asyncio.create_task(sweep(app, database_url, max_duration="10s", grace="100ms"))
    await begun.wait()
    let_pass(8, monkeypatch)  # claims end after 7.9 seconds
    done = await sweeping
    assert (done.interrupted, done.remaining) == (1, True)
    assert await log_of(client, run) == ["WorkflowStarted", "WorkflowTaskYielded"]
    assert left_in(database_url) == (0, 0)
    let_go.set()
    assert (await sweep(app, database_url)).ended == 1
    assert await run.result() == "held"
    assert "WorkerLost" not in await log_of(client, run)


async def test_a_step_that_ends_in_the_grace_period_is_recorded(
    client: Client, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await client.start(held)
    sweeping = asyncio.create_task(sweep(app, database_url, max_duration="20s", grace="10s"))
    await begun.wait()
    let_pass(8, monkeypatch)  # as long as it claims
    asyncio.get_running_loop().call_later(0.3, let_go.set)
    done = await sweeping
    assert (done.interrupted, done.steps) == (0, 1)
    assert "StepCompleted" in await log_of(client, run)


async def test_a_cancelled_sweep_leaves_nothing(client: Client, database_url: str) -> None:
    await client.start(held)
    sweeping = asyncio.create_task(sweep(app, database_url))
    await begun.wait()
    sweeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sweeping
    assert left_in(database_url) == (0, 0)


async def test_sweeps_may_meet(client: Client, database_url: str) -> None:
    runs = [await client.start(total, [1, number]) for number in range(30)]
    done = await asyncio.gather(*(sweep(app, database_url, max_runs=20) for _ in range(3)))
    assert sum(each.ended for each in done) == 30
    assert [await run.result() for run in runs] == [1 + number for number in range(30)]
    assert left_in(database_url) == (0, 0)


def test_it_works_without_asyncio(database_url: str) -> None:
    assert sweep_sync(app, database_url).runs == 0


async def test_a_thread_with_an_event_loop_is_refused(database_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"await holdfast\.sweep"):
        sweep_sync(app, database_url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_duration": 0}, "max_duration must be more than 0"),
        ({"max_duration": "2d"}, "max_duration must be more than 0 and at most"),
        ({"max_duration": "soon"}, "not a duration"),
        ({"max_runs": 0}, "max_runs must be 1 or more"),
        ({"max_duration": "10s", "grace": "9s"}, "a grace of 9 s leaves no time"),
    ],
)
async def test_limits_that_leave_nothing_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await sweep(app, "postgresql://nowhere.invalid/db", **options)  # type: ignore[arg-type]


async def test_a_database_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(InvalidDatabaseURL):
        await sweep(app, "mysql://localhost/db")
