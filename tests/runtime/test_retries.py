"""Retries of runs: only calls whose failures ended the run are made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from holdfast import App, Client, Context, Retry
from holdfast.errors import CallFailed, RunFailed
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.memory.rows import EventRow
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import Event
from tests.runtime.desk import working

Pay = Callable[..., Coroutine[Any, Any, str]]
KINDS = ["step", "activity", "child"]


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, on real time."""
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("module_database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()


@dataclass
class Shop:
    """A workflow that pays; `broken` cards are refused, `bug` is one of the workflow's own code."""

    kind: str
    store: Store
    database_url: str
    app: App = field(default_factory=lambda: App("shop", retry=Retry.NEVER))
    paid: list[str] = field(default_factory=list[str])
    broken: set[str] = field(default_factory=set[str])
    bug: bool = True

    async def charge(self, card: str) -> str:
        self.paid.append(card)
        if card in self.broken:
            raise LookupError(f"{card} is refused")
        return card

    def define(self, code: Callable[[Context, Pay], Awaitable[object]]) -> None:
        """Define the workflow `checkout`, whose code pays by steps, activities or children."""

        async def charge(card: str) -> str:
            return await self.charge(card)

        step, activity = self.app.step(charge), self.app.activity(charge)

        @self.app.workflow(name="charge")
        async def charging(ctx: Context, card: str) -> str:
            return await step(card)

        pay = {"step": step, "activity": activity, "child": charging}[self.kind]

        async def checkout(ctx: Context) -> object:
            return await code(ctx, pay)

        self.app.workflow(checkout)


@pytest.fixture(params=KINDS)
async def shop(request: pytest.FixtureRequest, store: Store, module_database_url: str) -> Shop:
    return Shop(request.param, store, module_database_url)


async def result(shop: Shop, *, forget: bool = False) -> object:
    """Return what the retry returns; `forget` lets the run be one of an older release."""
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        if forget:
            await forget_calls(shop)
        shop.paid.clear()
        shop.broken, shop.bug = set(), False
        retry = await client.runs.retry(handle.run_id)
        return await retry.result(timeout="60s")


async def forget_calls(shop: Shop) -> None:
    """Leave the ends of runs as an older release wrote them."""
    if isinstance(shop.store, PostgresStore):
        connection = await asyncpg.connect(shop.database_url)
        await connection.execute(
            "update holdfast.events set details = null where event_type = 'WorkflowFailed'"
        )
        await connection.close()
        return
    assert isinstance(shop.store, MemoryStore)
    tables = shop.store._tables  # pyright: ignore[reportPrivateUsage]
    for rows in tables.logs.values():
        last = rows[-1]
        if last.event.type == "WorkflowFailed":
            rows[-1] = EventRow(Event(last.event.type, None, None, last.event.at), last.token)


@pytest.mark.parametrize("forget", [False, True])
async def test_a_call_whose_failure_was_handled_is_not_made_again(shop: Shop, forget: bool) -> None:
    shop.broken = {"visa"}

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            card = await pay("visa")
        except CallFailed:
            card = await pay("amex")
        await asyncio.sleep(0.01)
        if shop.bug:
            raise ValueError("a bug")
        return [card, await pay("tip")]

    shop.define(code)
    assert await result(shop, forget=forget) == ["amex", "tip"]
    assert shop.paid == ["tip"]


@pytest.mark.parametrize("forget", [False, True])
async def test_a_bug_in_a_handler_is_not_the_failure_that_was_handled(
    shop: Shop, forget: bool
) -> None:
    """The bug's context is the failure: a corrected handler continues from where it was."""
    shop.broken = {"visa"}

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            return await pay("visa")
        except CallFailed:
            card = await pay("amex")
            if shop.bug:
                raise ValueError("a bug")  # noqa: B904
            return card

    shop.define(code)
    assert await result(shop, forget=forget) == "amex"
    assert shop.paid == []


@pytest.mark.parametrize("forget", [False, True])
async def test_what_was_waited_for_after_a_handled_failure_is_not_waited_for_again(
    shop: Shop, forget: bool
) -> None:
    shop.broken = {"visa", "ship"}
    timers: list[str] = []

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            await pay("visa")
        except CallFailed:
            await ctx.sleep(0.05)
        with contextlib.suppress(TimeoutError):
            await ctx.wait_for_signal("packed", timeout=0.05)
        return await pay("ship")

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        if forget:
            await forget_calls(shop)
        timers = [e.event.key or "" for e in await handle.log() if e.event.type == "TimerFired"]
        shop.paid.clear()
        shop.broken = set()
        retry = await client.runs.retry(handle.run_id)
        log = [entry.event for entry in await retry.log()]
        assert [event.key for event in log if event.type == "TimerFired"] == timers
        assert len(timers) == 2
        assert await retry.result(timeout="60s") == "ship"
        fired = [e for e in await retry.log() if e.event.type == "TimerFired"]
    assert shop.paid == ["ship"]
    assert len(fired) == 2


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("how", ["bare", "translated", "cause"])
async def test_the_call_that_ended_the_run_is_made_again(
    shop: Shop, how: str, forget: bool
) -> None:
    shop.broken = {"visa"}

    async def code(ctx: Context, pay: Pay) -> object:
        await pay("tip")
        try:
            return await pay("visa")
        except CallFailed as error:
            if how == "bare":
                raise
            if how == "translated":
                raise ValueError("not paid")  # noqa: B904
            raise ValueError("not paid") from error

    shop.define(code)
    assert await result(shop, forget=forget) == "visa"
    assert shop.paid == ["visa"]


async def test_a_failure_is_the_cause_that_the_code_names(shop: Shop) -> None:
    """Also where the code has cleaned up in between."""
    shop.broken = {"visa"}

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            return await pay("visa")
        except CallFailed as error:
            await pay("mail")
            raise ValueError("not paid") from error

    shop.define(code)
    assert await result(shop) == "visa"
    assert shop.paid == ["visa"]


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("how", ["gather", "group", "exceptions"])
async def test_calls_that_failed_beside_each_other_are_retried_together(
    shop: Shop, how: str, forget: bool
) -> None:
    """By one retry, which calls all of them that had failed, and nothing else."""
    cards = [f"card-{number}" for number in range(4)]
    shop.broken = set(cards)

    async def code(ctx: Context, pay: Pay) -> object:
        await pay("tip")
        if how == "gather":
            return list(await asyncio.gather(*(pay(card) for card in cards)))
        if how == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(pay(card)) for card in cards]
            return [task.result() for task in tasks]
        found = await asyncio.gather(*(pay(card) for card in cards), return_exceptions=True)
        if failures := [one for one in found if isinstance(one, Exception)]:
            raise ExceptionGroup("not paid", failures)
        return found

    shop.define(code)
    assert await result(shop, forget=forget) == cards
    assert sorted(shop.paid) == cards


async def test_a_failure_that_a_branch_handled_beside_the_last_one_is_kept(shop: Shop) -> None:
    shop.broken = {"ship", "visa"}
    handled = asyncio.Event()

    async def order(ctx: Context, pay: Pay) -> str:
        try:
            return await pay("visa")
        except CallFailed:
            return await pay("amex")

    async def ship(ctx: Context, pay: Pay) -> str:
        await ctx.wait_for_signal("go")
        return await pay("ship")

    async def code(ctx: Context, pay: Pay) -> object:
        return list(await asyncio.gather(order(ctx, pay), ship(ctx, pay)))

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        async for entry in handle.follow_log():
            if entry.event.type.endswith("Completed") and "amex" in (entry.event.details or ""):
                handled.set()
                break
        await handle.signal("go")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        shop.paid.clear()
        shop.broken = set()
        retry = await client.runs.retry(handle.run_id)
        assert await retry.result(timeout="60s") == ["amex", "ship"]
    assert handled.is_set()
    assert shop.paid == ["ship"]


async def test_only_the_last_of_two_failures_one_by_one_is_made_again(shop: Shop) -> None:
    """Visa was refused, and so was amex, which the run ended by."""
    shop.broken = {"visa", "amex"}

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            return await pay("visa")
        except CallFailed:
            return await pay("amex")

    shop.define(code)
    assert await result(shop) == "amex"
    assert shop.paid == ["amex"]


async def test_a_timeout_around_the_call_that_failed_starts_again(shop: Shop) -> None:
    shop.broken = {"visa"}

    async def code(ctx: Context, pay: Pay) -> object:
        async with asyncio.timeout(600):
            await ctx.wait_for_signal("go")
            return await pay("visa")

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        async for entry in handle.follow_log():
            if entry.event.type == "TimerScheduled":
                break
        await handle.signal("go")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        shop.broken = set()
        retry = await client.runs.retry(handle.run_id)
        types = [entry.event.type for entry in await retry.log()]
        assert "TimerScheduled" not in types[: types.index("WorkflowForked")]
        assert await retry.result(timeout="60s") == "visa"
