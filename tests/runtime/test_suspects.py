"""Suspects, runs that have lost three workers: one at a time, and each as soon as it may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.client import Client, RunHandle
from holdfast.store.port import Store
from holdfast.store.port.claims import SUSPECT_ATTEMPTS
from holdfast.store.postgres import claims as postgres_claims
from holdfast.types import Claims
from holdfast.worker import claimer as claimer_module
from tests.runtime.desk import eventually, working

COUNT = 12
NEVER = 3600.0


@pytest.fixture(autouse=True)
def claim_only_when_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimer_module, "_FIRST_POLL_SECONDS", NEVER)
    monkeypatch.setattr(postgres_claims, "_WHOLE_AGAIN", round(NEVER * 1e6))


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(store=store) as client:
        yield client


@pytest.fixture
def claims(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Claims]:
    """Return the answers to all claims from now on."""
    made: list[Claims] = []
    claim_tasks = store.claim_tasks

    async def claim(*arguments: Any, **options: Any) -> Claims:
        answer = await claim_tasks(*arguments, **options)
        made.append(answer)
        return answer

    monkeypatch.setattr(store, "claim_tasks", claim)
    return made


async def lose_workers(store: Store, app: App, count: int, *queues: str) -> None:
    """Let three workers die, each of which has claimed all tasks that are due."""
    for number in range(SUSPECT_ATTEMPTS):
        taken = 0
        while taken < count:
            claims = await store.claim_tasks(
                f"gone-{number}",
                queues or ("default",),
                app.handlers(),
                count,
                lease_seconds=0.001,
                seeks_leases=True,
            )
            taken += len(claims.tasks)
            await asyncio.sleep(0.002)


async def waits(handle: RunHandle[Any]) -> bool:
    wait = (await handle.get()).wait
    return wait is not None and bool(wait.awaiting)


@pytest.mark.parametrize("concurrency", [1, 2, 200])
async def test_the_next_suspect_is_claimed_when_one_has_ended(
    store: Store, client: Client, claims: list[Claims], concurrency: int
) -> None:
    app = App(f"ends{concurrency}")

    @app.workflow
    async def work(ctx: Context) -> None: ...

    handles = [await client.start(work) for _ in range(COUNT)]
    await lose_workers(store, app, COUNT)
    claims.clear()
    async with working(app, store, concurrency=concurrency, poll_seconds=NEVER):
        for handle in handles:
            await handle.result()
    assert sum(len(each.tasks) for each in claims) == COUNT
    assert len(claims) <= 2 * COUNT + 4
    for handle in handles:
        events = await store.read_events([(handle.run_id, 0)])
        lost = [event for event in events[handle.run_id] if event.type == "WorkerLost"]
        assert len(lost) == SUSPECT_ATTEMPTS


async def test_the_next_suspect_is_claimed_when_one_has_recorded_something(
    store: Store, client: Client, claims: list[Claims]
) -> None:
    """They all wait in their second steps, on one worker."""
    app = App("progress")
    gate, waiting = asyncio.Event(), list[None]()

    @app.step
    async def first() -> None: ...

    @app.step
    async def second() -> None:
        waiting.append(None)
        await gate.wait()

    @app.workflow
    async def work(ctx: Context) -> None:
        await first()
        await second()

    handles = [await client.start(work) for _ in range(COUNT)]
    await lose_workers(store, app, COUNT)
    async with working(app, store, poll_seconds=NEVER):
        await eventually(lambda: len(waiting) == COUNT)
        gate.set()
        for handle in handles:
            await handle.result()


async def test_suspects_that_cannot_continue_make_way(
    store: Store, client: Client, claims: list[Claims]
) -> None:
    """A run that is stuck is given back without having recorded anything."""
    app, old = App("stuck"), App("stuck")

    @old.step
    async def gone() -> None: ...

    @old.workflow(name="work")
    async def old_work(ctx: Context) -> None:
        await gone()
        await ctx.wait_for_signal("go")

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.wait_for_signal("other")

    handles = [await client.start(old_work) for _ in range(COUNT)]
    async with working(old, store, poll_seconds=NEVER):
        for handle in handles:
            await eventually(partial(waits, handle))
    for handle in handles:
        await handle.signal("go")
    await lose_workers(store, app, COUNT)

    async def all_stuck() -> bool:
        waits = [(await handle.get()).wait for handle in handles]
        return all(wait is not None and wait.stuck for wait in waits)

    async with working(app, store, poll_seconds=NEVER):
        await eventually(all_stuck)


async def test_a_suspect_that_takes_long_costs_no_claims(
    store: Store, client: Client, claims: list[Claims]
) -> None:
    """The others wait for it, and the worker does other work meanwhile."""
    app = App("long")
    gate, begun = asyncio.Event(), list[None]()

    @app.step
    async def block() -> None:
        begun.append(None)
        await gate.wait()

    @app.workflow
    async def suspect(ctx: Context) -> None:
        await block()

    @app.workflow
    async def other(ctx: Context) -> None: ...

    handles = [await client.start(suspect) for _ in range(COUNT)]
    await lose_workers(store, app, COUNT)
    async with working(app, store, poll_seconds=NEVER):
        await eventually(lambda: bool(begun))
        claims.clear()
        for _ in range(COUNT):
            await (await client.start(other)).result()
        assert len(claims) <= 2 * COUNT
        assert len(begun) == 1
        gate.set()
        for handle in handles:
            await handle.result()


async def test_the_next_activity_is_claimed_when_one_has_ended(
    store: Store, client: Client, claims: list[Claims]
) -> None:
    """Also from another queue."""
    app = App("activities")
    running: list[str] = []

    async def convert() -> None:
        running.append("one")
        assert len(running) == 1
        await asyncio.sleep(0)
        running.pop()

    retry = Retry(attempts=9)
    large = app.activity(name="large", queue="large", retry=retry)(convert)
    small = app.activity(name="small", queue="small", retry=retry)(convert)

    @app.workflow
    async def work(ctx: Context, number: int) -> None:
        await (large() if number % 2 else small())

    handles = [await client.start(work, number) for number in range(COUNT)]
    async with working(app, store, queues=("default",), poll_seconds=NEVER):
        for handle in handles:
            await eventually(partial(waits, handle))
    await lose_workers(store, app, COUNT, "large", "small")
    async with working(app, store, poll_seconds=NEVER):
        for handle in handles:
            await handle.result()
