"""Retries of all failed runs of a filter: the work of a family is done once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import App, ChildFailed, Client, Context, Retry
from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.runtime.desk import working

WAIT = 60.0


class Service:
    """A service that is away at first, and records what it was asked for."""

    def __init__(self) -> None:
        self.away, self.done = True, list[str]()
        self.go, self.let_go, self.begun = asyncio.Event(), asyncio.Event(), asyncio.Event()


def families(service: Service) -> App:
    """Return an app of runs that start runs whose step fails while the service is away."""
    app = App("families")

    @app.step(retry=Retry(attempts=1))
    async def hand_over(order: str) -> None:
        if service.away:
            raise ConnectionError("away")
        service.done.append(order)

    @app.step
    async def wait_for_go() -> None:
        await service.go.wait()

    @app.step
    async def wait_until_begun() -> None:
        await service.begun.wait()

    @app.step
    async def wait_to_let_go() -> None:
        await service.let_go.wait()

    @app.workflow
    async def ship(ctx: Context, order: str) -> None:
        await hand_over(order)

    @app.workflow
    async def ship_later(ctx: Context, order: str) -> None:
        await wait_for_go()
        await hand_over(order)

    @app.workflow
    async def buy(ctx: Context, order: str) -> None:
        await ship(order)

    @app.workflow
    async def buy_all(ctx: Context, order: str) -> None:
        await buy(order)

    @app.workflow
    async def buy_carefully(ctx: Context, order: str) -> str:
        try:
            await ship(order)
        except ChildFailed:
            return "another way"
        return "shipped"

    @app.workflow
    async def buy_patiently(ctx: Context, order: str) -> None:
        try:
            await ship(order)
        except ChildFailed:
            await ctx.wait_for_signal("again")
            await ship(order)

    @app.workflow(retry=Retry(attempts=2, base="1h", max="1h"))
    async def buy_again(ctx: Context, order: str) -> None:
        await ctx.start_child(ship_later, order)
        await hand_over("itself")

    @app.workflow
    async def let_go(ctx: Context, order: str) -> None:
        await ctx.start_child(ship_later, order)

    @app.workflow
    async def loop(ctx: Context, order: str) -> None:
        if order:
            await ctx.start_child(ship_later, order)
            ctx.continue_as_new("")

    @app.workflow
    async def let_go_and_fail(ctx: Context, order: str) -> None:
        await ctx.start_child(ship_later, order)
        await hand_over("itself")

    @app.workflow
    async def buy_slowly(ctx: Context, rounds: int) -> None:
        await wait_to_let_go()
        if rounds:
            ctx.continue_as_new(rounds - 1)
        await ctx.start_child(ship_later, "o1")

    @app.workflow
    async def fail_beside(ctx: Context, rounds: int) -> None:
        await ctx.start_child(buy_slowly, rounds)
        await hand_over("itself")

    @app.workflow
    async def fail_after(ctx: Context, rounds: int) -> None:
        await buy_slowly(rounds)
        await hand_over("itself")

    @app.workflow
    async def buy_stubbornly(ctx: Context, order: str) -> None:
        await ctx.start_child(ship_later, order)
        service.begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await wait_to_let_go()

    @app.workflow
    async def fail_above(ctx: Context, order: int) -> None:
        await ctx.start_child(buy_stubbornly, "o1", parent_close="cancel")
        await wait_until_begun()
        await hand_over("itself")

    @app.workflow
    async def let_all_go(ctx: Context, rounds: int) -> None:
        await ctx.start_child(fail_beside, rounds)
        raise ConnectionError("away")

    @app.workflow
    async def let_go_again(ctx: Context, rounds: int) -> None:
        await ctx.start_child(buy_slowly, rounds)

    day = app.flow("day", input=str, attempts=1)
    day.run_step("shipped", ship)
    return app


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, with nothing in it."""
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(store: Store, service: Service) -> AsyncIterator[Client]:
    """Provide a client of an app of which a worker runs."""
    app = families(service)
    async with working(app, store), Client(app=app, store=store) as client:
        yield client


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT):
        while not await holds():
            await asyncio.sleep(0.02)


async def states(client: Client) -> list[tuple[str, str]]:
    """Return the names and states of all runs."""
    found = [run async for run in client.runs.iterate()]
    return sorted((run.name, run.state) for run in found)


async def start_and_fail(client: Client, name: str, failures: int, **options: Any) -> Any:
    """Start a run while the service is away, and let it come back when these runs have failed."""
    handle = await client.start(name, "o1", **options)

    async def have_failed() -> bool:
        return len((await client.runs.list(states="failed")).runs) == failures

    await eventually(have_failed)
    return handle


async def retry(client: Client, where: RunFilters | None = None) -> BulkOutcome:
    """Retry the failed runs when the service has come back: as many as a dry run counts."""
    foreseen = await client.runs.retry_all(where or {}, dry_run=True)
    done = await client.runs.retry_all(where or {})
    assert done == foreseen

    async def have_ended() -> bool:
        return not (await client.runs.list(states=("queued", "running"))).runs

    await eventually(have_ended)
    return done


@pytest.mark.parametrize(("name", "failures"), [("buy", 2), ("buy_all", 3), ("day", 2)], ids=str)
async def test_a_family_that_failed_is_retried_from_its_top(
    client: Client, service: Service, name: str, failures: int
) -> None:
    await start_and_fail(client, name, failures)
    service.away = False
    left = failures - 1
    assert await retry(client) == BulkOutcome(failures, 1, left, left)
    assert service.done == ["o1"]
    assert (await retry(client)).changed == 0


async def test_a_child_whose_failure_was_handled_is_left_out(
    client: Client, service: Service
) -> None:
    handle = await start_and_fail(client, "buy_carefully", 1)
    assert await handle.result(timeout=WAIT) == "another way"
    service.away = False
    assert await retry(client) == BulkOutcome(1, 0, 1, 1)
    assert service.done == []


async def test_a_child_whose_parent_is_open_is_left_out(client: Client, service: Service) -> None:
    handle = await start_and_fail(client, "buy_patiently", 1)
    service.away = False
    assert await retry(client, {"names": "ship"}) == BulkOutcome(1, 0, 1, 1)
    await handle.signal("again")
    await handle.result(timeout=WAIT)
    assert service.done == ["o1"]


@pytest.mark.parametrize("name", ["let_go", "loop"])
async def test_a_child_that_nobody_waits_for_any_more_is_retried(
    client: Client, service: Service, name: str
) -> None:
    """Its parent completed, or continued as new, before it failed."""
    handle = await client.start(name, "o1")
    await handle.result(timeout=WAIT)
    service.go.set()
    await eventually(lambda: _failed(client, "ship_later"))
    service.away = False
    assert await retry(client) == BulkOutcome(1, 1, 0)
    assert service.done == ["o1"]


@pytest.mark.parametrize(("name", "failed"), [("let_go_and_fail", 2), ("buy_again", 1)])
async def test_a_child_that_outlived_a_parent_which_is_retried_is_left_out(
    client: Client, service: Service, name: str, failed: int
) -> None:
    """The next attempt of the parent, or its retry, is told of the failure."""
    handle = await client.start(name, "o1")

    async def has_failed() -> bool:
        run = await client.runs.get(handle.run_id)
        return run.status == "failed" or run.last_failure is not None

    await eventually(has_failed)
    service.go.set()
    await eventually(lambda: _failed(client, "ship_later"))
    service.away = False
    done = await client.runs.retry_all({})
    assert done == BulkOutcome(failed, failed - 1, 1, 1)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize(
    ("name", "failed", "changed"),
    [("fail_beside", 2, 2), ("let_all_go", 3, 2), ("fail_after", 2, 2), ("let_go_again", 1, 1)],
)
async def test_a_grandchild_is_retried_if_no_retry_above_starts_its_parent_again(
    client: Client, service: Service, name: str, failed: int, changed: int, rounds: int
) -> None:
    """Its parent has let it go; the run above that keeps the parent's end, or takes it over."""
    await client.start(name, rounds)
    early = {"fail_beside": 1, "let_all_go": 2}.get(name, 0)

    async def have_failed() -> bool:
        return len((await client.runs.list(states="failed")).runs) == early

    await eventually(have_failed)
    if name == "let_go_again":
        await eventually(lambda: _completed(client, name))
    service.let_go.set()
    await eventually(lambda: _completed(client, "buy_slowly"))
    if name == "fail_after":
        await eventually(lambda: _failed(client, name))
    service.go.set()
    await eventually(lambda: _failed(client, "ship_later"))
    service.away = False
    assert await retry(client) == BulkOutcome(failed, changed, failed - changed, failed - changed)
    assert service.done.count("o1") == 1, service.done


async def test_a_grandchild_is_left_out_if_a_retry_above_starts_its_parent_again(
    client: Client, service: Service
) -> None:
    """Its parent was asked to stop when the run above ended, and completed."""
    await client.start("fail_above", 0)
    await eventually(lambda: _completed(client, "buy_stubbornly"))
    service.go.set()
    await eventually(lambda: _failed(client, "ship_later"))
    service.away = False
    assert await retry(client) == BulkOutcome(2, 1, 1, 1)


async def test_a_grandchild_is_left_out_if_a_run_above_was_deleted(
    client: Client, store: Store, service: Service
) -> None:
    """Or if the caller does not see it: others may retry it."""
    await eventually(lambda: _has_swept(store))
    await client.start("fail_beside", 0, retention=0.001)
    await eventually(lambda: _failed(client, "fail_beside"))
    service.let_go.set()
    await eventually(lambda: _completed(client, "buy_slowly"))
    assert await client.retention.sweep() == 1
    service.go.set()
    await eventually(lambda: _failed(client, "ship_later"))
    assert await retry(client) == BulkOutcome(1, 0, 1, 1)


async def test_children_are_retried_if_they_or_their_parent_are_given(
    client: Client, service: Service
) -> None:
    handle = await start_and_fail(client, "buy", 2)
    [child] = (await client.runs.list(parent=handle.run_id)).runs
    service.away = False
    given = await client.runs.retry_all([child.run_id], dry_run=True)
    assert given == BulkOutcome(1, 1, 0)
    assert await retry(client, {"parent": handle.run_id}) == BulkOutcome(1, 1, 0)
    assert service.done == ["o1"]


async def test_a_child_whose_parent_was_deleted_is_left_out(
    client: Client, store: Store, service: Service
) -> None:
    """It may have been told, and the work been done in another way."""
    await eventually(lambda: _has_swept(store))
    await start_and_fail(client, "buy", 2, retention=0.001)
    await asyncio.sleep(0.01)
    assert await client.retention.sweep() == 1
    service.away = False
    assert await retry(client) == BulkOutcome(1, 0, 1, 1)


async def test_the_pages_of_a_filter_count_together(client: Client, service: Service) -> None:
    for number in range(3):
        await start_and_fail(client, "buy", 2 * (number + 1))
    service.away = False
    assert await retry(client, {"limit": 2}) == BulkOutcome(6, 3, 3, 3)
    assert service.done == ["o1"] * 3


async def _has_swept(store: Store) -> bool:
    """Return True if the worker has made its only sweep: it would keep or delete runs of a test."""
    return (await store.get_sweeper(limit=0)).ended_at is not None


async def _failed(client: Client, name: str) -> bool:
    return bool((await client.runs.list(states="failed", names=name)).runs)


async def _completed(client: Client, name: str) -> bool:
    return bool((await client.runs.list(states="completed", names=name)).runs)
