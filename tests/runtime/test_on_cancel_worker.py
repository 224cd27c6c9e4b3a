"""Cancelled callers of activities and children, on workers and both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from holdfast import App, Context, Retry, RunCancelled, current_activity
from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.errors import ForkRefused
from holdfast.insight.why.explain import explain_run
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.runtime.desk import eventually, working

PATIENCE: Final = "60s"

app = App("guarded", retry=Retry(attempts=3, base="10ms", jitter=0))
done: list[str] = []
gate: list[asyncio.Event] = []  # one, of the loop of the test


@app.step
async def note(text: str) -> None:
    done.append(text)


@app.activity(queue="machines")
async def mill() -> str:
    """Turn until it is told to stop, and stop slowly."""
    done.append("mill begins")
    try:
        await gate[0].wait()
        return "milled"
    finally:
        await asyncio.sleep(0.05)
        done.append("mill ends")


@app.activity(queue="machines")
async def ask() -> str:
    """Leave the result to another program, which has the token."""
    done.append(current_activity().token)
    current_activity().complete_later()


@app.activity(queue="machines", on_cancel="wait")
async def stay() -> None:
    """Not stop when it is told to."""
    done.append("stubborn begins")
    while not gate[0].is_set():
        with suppress(asyncio.CancelledError):
            await gate[0].wait()


@app.workflow
async def stubborn(ctx: Context, queue: str = "machines") -> None:
    await stay.with_options(queue=queue)()


@app.workflow
async def guarded(ctx: Context, policy: Any) -> str:
    try:
        return await mill.with_options(on_cancel=policy)()
    finally:
        await note("run cleans up")


@app.workflow
async def limited(ctx: Context) -> str:
    try:
        async with asyncio.timeout(0.3):
            return await mill.with_options(on_cancel="wait")()
    except TimeoutError:
        return "late"


@app.workflow
async def asking(ctx: Context, policy: Any) -> str:
    return await ask.with_options(on_cancel=policy)()


@app.workflow
async def nobody(ctx: Context) -> None:
    await ctx.activity("elsewhere/paint", queue="unserved", on_cancel="wait")


@app.workflow
async def inner(ctx: Context) -> str:
    done.append("child begins")
    try:
        await ctx.wait_for_signal("go")
    except asyncio.CancelledError:
        await note("child cleans up")
        raise
    return "child went"


@app.workflow
async def outer(ctx: Context, policy: Any) -> object:
    try:
        return await ctx.child(inner, on_cancel=policy, id="inner", key="child")
    finally:
        await note("parent cleans up")


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, on real time."""
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client; one worker has the runs, another the activities."""
    done.clear()
    gate[:] = [asyncio.Event()]
    async with (
        Client(app=app, store=store) as client,
        working(app, store),
        working(app, store, queues=("machines",)),
    ):
        yield client


async def begun(client: Client, workflow: Any, input: object, first: str) -> RunHandle[Any]:
    handle = await client.start(workflow, input, key="k")
    await eventually(lambda: first in done)
    return handle


async def has_logged(handle: RunHandle[Any], kind: str) -> bool:
    return any(each.event.type == kind for each in await handle.log())


async def cancelled(handle: RunHandle[Any]) -> None:
    with pytest.raises(RunCancelled):
        await handle.result(timeout=PATIENCE)


async def test_the_run_cleans_up_after_the_activity_that_it_waits_out(client: Client) -> None:
    handle = await begun(client, guarded, "wait", "mill begins")
    await handle.cancel("enough")
    await cancelled(handle)
    assert done == ["mill begins", "mill ends", "run cleans up"]
    assert [entry.event.type for entry in await handle.log()][-4:] == [
        "ActivityCancelRequested",
        "ActivityFailed",
        "StepCompleted",
        "WorkflowCanceled",
    ]


async def test_why_names_what_the_cancelled_run_waits_for(client: Client, store: Store) -> None:
    done.clear()
    handle = await client.start(stubborn, "machines")
    await eventually(lambda: "stubborn begins" in done)
    await handle.cancel("enough")

    async def is_told() -> bool:
        run = (await store.get_runs([handle.run_id]))[handle.run_id]
        told = str(await explain_run(store, run))
        return "activity stay" in told and "it was asked to stop" in told

    await eventually(is_told)
    gate[0].set()
    await cancelled(handle)


async def test_a_worker_that_stops_gives_back_what_it_was_asked_to_stop(
    client: Client, store: Store
) -> None:
    """The next worker of its queue does not make another attempt: it tells the run."""
    async with working(app, store, queues=("others",)):
        handle = await client.start(stubborn, "others")
        await eventually(lambda: "stubborn begins" in done)
        await handle.cancel("enough")

        async def is_asked() -> bool:
            [activity] = await store.list_activities(handle.run_id)
            return activity.cancelled

        await eventually(is_asked)
    gate[0].set()
    async with working(app, store, queues=("others",)):
        await cancelled(handle)
    assert done == ["stubborn begins"]


async def test_an_abandoned_activity_works_to_its_end(client: Client) -> None:
    """The run has cleaned up by then, and ends after it; its result is nobody's."""
    handle = await begun(client, guarded, "abandon", "mill begins")
    await handle.cancel("enough")
    await eventually(lambda: "run cleans up" in done)
    assert await handle.status() == "running"
    gate[0].set()
    await cancelled(handle)
    assert done == ["mill begins", "run cleans up", "mill ends"]
    types = [entry.event.type for entry in await handle.log()]
    assert "ActivityCancelRequested" not in types
    assert types[-2:] == ["ActivityCompleted", "WorkflowCanceled"]


async def test_a_terminated_run_waits_for_nothing(client: Client) -> None:
    for policy in ("wait", "abandon"):
        done.clear()
        handle = await client.start(guarded, policy)
        await eventually(lambda: "mill begins" in done)
        await handle.terminate("now")
        assert await handle.status() == "terminated"
        await eventually(lambda: "mill ends" in done)


async def test_one_that_nobody_serves_or_that_others_were_to_end_stops_at_once(
    client: Client, store: Store
) -> None:
    handle = await client.start(nobody)
    await eventually(partial(has_logged, handle, "ActivityScheduled"))
    await handle.cancel()
    await cancelled(handle)
    asked = await client.start(asking, "wait")
    await eventually(lambda: bool(done))

    async def is_deferred() -> bool:
        [activity] = await store.list_activities(asked.run_id)
        return activity.worker is None

    await eventually(is_deferred)
    await asked.cancel()
    await cancelled(asked)


async def test_a_parent_cleans_up_after_the_child_that_it_waits_out(client: Client) -> None:
    handle = await begun(client, outer, "wait", "child begins")
    await handle.cancel("enough")
    await cancelled(handle)
    assert done == ["child begins", "child cleans up", "parent cleans up"]


async def test_an_abandoned_child_survives_its_parent(client: Client) -> None:
    handle = await begun(client, outer, "abandon", "child begins")
    await handle.cancel("enough")
    await cancelled(handle)
    child = await client.runs.get(("inner", "child"))
    await client.handle(child.run_id).signal("go")
    assert await client.handle(child.run_id).result(timeout=PATIENCE) == "child went"
    assert done == ["child begins", "parent cleans up"]


async def test_a_retry_makes_the_call_again_that_the_cancel_ended(client: Client) -> None:
    """Its stop is not taken over; the result of one that was abandoned is."""
    handle = await begun(client, guarded, "wait", "mill begins")
    await handle.cancel("enough")
    await cancelled(handle)
    gate[0].set()
    retried = await client.runs.retry(handle.run_id)
    assert await retried.result(timeout=PATIENCE) == "milled"
    with pytest.raises(ForkRefused):
        await client.runs.retry(retried.run_id)
    assert done.count("mill begins") == 2
    done.clear()
    gate[0].clear()
    other = await client.start(guarded, "abandon")
    await eventually(lambda: "mill begins" in done)
    await other.cancel("enough")
    await eventually(lambda: "run cleans up" in done)
    gate[0].set()
    await cancelled(other)
    again = await client.runs.retry(other.run_id)
    assert await again.result(timeout=PATIENCE) == "milled"
    assert done.count("mill begins") == 1


async def test_a_fork_of_a_run_that_waits_asks_again(client: Client) -> None:
    """The timeout has fired in the copied log; the request of the first run is not copied."""
    first = await begun(client, limited, None, "mill begins")
    await eventually(lambda: "mill ends" in done)
    log = await first.log()
    [asked] = [each.idx for each in log if each.event.type == "ActivityCancelRequested"]
    assert await first.result(timeout=PATIENCE) == "late"
    forked = await client.runs.fork(first.run_id, index=asked + 1)
    assert await forked.result(timeout=PATIENCE) == "late"
    types = [each.event.type for each in await forked.log()]
    assert types.count("ActivityCancelRequested") == types.count("ActivityFailed") == 1


async def test_a_paused_run_sees_the_end_when_it_is_resumed(client: Client) -> None:
    handle = await begun(client, stubborn, "machines", "stubborn begins")
    await handle.cancel("enough")
    await eventually(partial(has_logged, handle, "ActivityCancelRequested"))
    await handle.pause()
    gate[0].set()
    await eventually(partial(has_logged, handle, "ActivityCompleted"))
    assert await handle.status() == "running"
    await handle.resume()
    await cancelled(handle)
    assert done == ["stubborn begins"]
