"""Retries of runs: only calls whose failures ended the run are made again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypedDict

import asyncpg
import pytest

from holdfast import App, Client, Context, Retry, current_activity
from holdfast.client.handle import RunHandle
from holdfast.details import OnCancel
from holdfast.errors import CallFailed, RunCancelled, RunFailed
from holdfast.insight.actions import Action
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.rows import EventRow
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import Event
from tests.runtime.desk import eventually, working

Pay = Callable[..., Coroutine[Any, Any, str]]
KINDS = ["step", "activity", "child"]


class RetryOptions(TypedDict, total=False):
    failed_steps: bool


@dataclass
class Shop:
    """A workflow that pays; `broken` cards are refused, `bug` is one of the workflow's own code.

    While it is `closed`, payments wait.
    """

    kind: str
    store: Store
    database_url: str
    app: App = field(default_factory=lambda: App("shop", retry=Retry.NEVER))
    paid: list[str] = field(default_factory=list[str])
    broken: set[str] = field(default_factory=set[str])
    bug: bool = True
    closed: bool = False

    async def charge(self, card: str) -> str:
        while self.closed:
            await asyncio.sleep(0.01)
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
            "update holdfast.events set details = null "
            "where event_type in ('WorkflowFailed', 'WorkflowCanceled')"
        )
        await connection.close()
        return
    assert isinstance(shop.store, MemoryStore)
    tables = shop.store._tables  # pyright: ignore[reportPrivateUsage]
    for rows in tables.logs.values():
        last = rows[-1]
        if last.event.type in ("WorkflowFailed", "WorkflowCanceled"):
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


async def effects(shop: Shop, *broken: str, options: RetryOptions | None = None) -> list[str]:
    """Run the code, then its retry; return what each paid, in order.

    `broken` are the cards that each run has refused, of which the last may be none.
    """
    found: list[str] = []
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle: RunHandle[object] | None = None
        for cards in broken:
            shop.broken = set(cards.split())
            if handle is None:
                handle = await client.start("checkout")
            else:
                shop.bug = False
                handle = await client.runs.retry(handle.run_id, **(options or {}))
            with contextlib.suppress(RunFailed) if cards else contextlib.nullcontext():
                await handle.result(timeout="60s")
                assert not cards, "it should have failed"
            found.append(" ".join(shop.paid))
            shop.paid.clear()
    return found


async def compensating(pay: Pay, how: str) -> None:
    """Charge and hand over; take the charge back if that fails."""
    match how:
        case "except":
            await pay("charge")
            try:
                await pay("hand")
            except CallFailed:
                await pay("refund")
                raise
        case "cause":
            await pay("charge")
            try:
                await pay("hand")
            except CallFailed as error:
                await pay("refund")
                raise ValueError("not handed over") from error
        case "finally":
            await pay("charge")
            try:
                await pay("hand")
            finally:
                if shield := sys.exception():
                    assert isinstance(shield, CallFailed)
                    await pay("refund")
        case "stack":
            async with contextlib.AsyncExitStack() as stack:
                await pay("charge")

                async def undo(*error: object) -> None:
                    if error[0] is not None:
                        await pay("refund")

                stack.push_async_exit(undo)
                await pay("hand")
        case "later":
            await pay("charge")
            failure: CallFailed | None = None
            try:
                await pay("hand")
            except CallFailed as error:
                failure = error
            if failure is not None:
                await pay("refund")
                raise failure
        case "tasks":
            await pay("charge")
            try:
                await pay("hand")
            except CallFailed:
                await asyncio.gather(pay("refund"))
                raise
        case "slept":
            await pay("charge")
            try:
                await pay("hand")
            except CallFailed:
                await asyncio.sleep(0.01)
                await asyncio.create_task(compensate(pay))
                raise
        case _:
            raise AssertionError(how)


async def compensate(pay: Pay) -> None:
    await asyncio.sleep(0)
    await pay("refund")


@pytest.mark.parametrize("how", ["except", "cause", "finally", "stack", "later", "tasks", "slept"])
async def test_a_compensation_is_made_again_for_the_failure_of_the_retry(
    shop: Shop, how: str
) -> None:
    """A2. Charged, failed, refunded; the second failure must be refunded too."""

    async def code(ctx: Context, pay: Pay) -> object:
        await compensating(pay, how)
        return None

    shop.define(code)
    assert await effects(shop, "hand", "hand", "") == ["charge hand refund", "hand refund", "hand"]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_what_is_done_whether_or_not_a_call_fails_is_done_by_the_retry(shop: Shop) -> None:
    """A2. The lock was released by the run that failed; the retry releases what it has."""

    async def code(ctx: Context, pay: Pay) -> object:
        await pay("lock")
        try:
            await pay("work")
        finally:
            await pay("release")
        return None

    shop.define(code)
    assert await effects(shop, "work", "work", "") == [
        "lock work release",
        "work release",
        "work release",
    ]


async def test_a_branch_that_ran_beside_the_failure_is_kept(shop: Shop) -> None:
    """A2. What it called after the failure, too: it was not told of it. Its neighbour was."""

    async def branch(pay: Pay, name: str) -> None:
        await pay(f"charge-{name}")
        try:
            await pay(f"ship-{name}")
        except CallFailed:
            await pay(f"refund-{name}")
            raise
        await asyncio.gather(pay(f"mail-{name}"), pay(f"bill-{name}"))

    async def code(ctx: Context, pay: Pay) -> object:
        first = asyncio.create_task(branch(pay, "a"))
        second = asyncio.create_task(behind(first, pay))
        found = await asyncio.gather(first, second, return_exceptions=True)
        if failures := [one for one in found if isinstance(one, Exception)]:
            await pay("alarm")
            raise ExceptionGroup("not all", failures)
        return None

    async def behind(first: asyncio.Task[None], pay: Pay) -> None:
        await pay("charge-b")
        await asyncio.wait([first])
        await branch(pay, "c")

    shop.define(code)
    first, second = await effects(shop, "ship-a", "")
    assert set(first.split()[:3]) == {"charge-a", "charge-b", "ship-a"}
    assert first.split()[3:5] == ["refund-a", "charge-c"]
    assert set(first.split()[5:]) == {"ship-c", "mail-c", "bill-c", "alarm"}
    assert set(second.split()) == {"ship-a", "mail-a", "bill-a"}


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_what_a_cancelled_branch_cleans_up_is_cleaned_up_again(shop: Shop) -> None:
    """A2. A group cancels the neighbours of a call that fails: they release what they have."""

    async def holding(pay: Pay) -> None:
        await pay("hold")
        try:
            await asyncio.Event().wait()
        finally:
            await pay("drop")

    async def failing(pay: Pay, holder: asyncio.Task[None]) -> None:
        await pay("ship")
        holder.cancel()

    async def code(ctx: Context, pay: Pay) -> object:
        await pay("begin")
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                holder = group.create_task(holding(pay))
                await asyncio.sleep(0.2)
                group.create_task(failing(pay, holder))
        return None

    shop.define(code)
    assert await effects(shop, "ship", "") == ["begin hold ship drop", "ship drop"]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_a_branch_that_handles_the_failure_of_another_compensates_again(shop: Shop) -> None:
    async def watching(pay: Pay, task: asyncio.Task[str]) -> None:
        try:
            await task
        except CallFailed:
            await pay("refund")
            raise

    async def code(ctx: Context, pay: Pay) -> object:
        task = asyncio.create_task(pay("hand"))
        await asyncio.create_task(watching(pay, task))
        return None

    shop.define(code)
    assert await effects(shop, "hand", "hand", "") == ["hand refund", "hand refund", "hand"]


async def test_an_earlier_failure_that_was_handled_keeps_what_followed_from_it(shop: Shop) -> None:
    async def code(ctx: Context, pay: Pay) -> object:
        try:
            await pay("visa")
        except CallFailed:
            await pay("amex")
        try:
            await pay("ship")
        except CallFailed:
            await pay("refund")
            raise
        return None

    shop.define(code)
    assert await effects(shop, "visa ship", "ship", "") == [
        "visa amex ship refund",
        "ship refund",
        "ship",
    ]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_the_retry_of_a_retry_keeps_what_both_have_done(shop: Shop) -> None:
    async def code(ctx: Context, pay: Pay) -> object:
        for card in ("a", "b", "c"):
            try:
                await pay(card)
            except CallFailed:
                await pay(f"undo-{card}")
                raise
        return None

    shop.define(code)
    assert await effects(shop, "a", "b", "b", "") == ["a undo-a", "a b undo-b", "b undo-b", "b c"]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_a_signal_that_a_compensation_took_is_unread_in_the_retry(shop: Shop) -> None:
    """A2. The retry did not ask for it: who waits for the next one gets it."""

    async def code(ctx: Context, pay: Pay) -> object:
        try:
            await pay("hand")
        except CallFailed:
            taken.append(await ctx.wait_for_signal("answer"))
            raise
        return [await ctx.wait_for_signal("answer"), await ctx.wait_for_signal("answer")]

    taken: list[object] = []
    shop.define(code)
    shop.broken = {"hand"}
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await handle.signal("answer", 1)
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        assert taken == [1]
        shop.broken = set()
        retry = await client.runs.retry(handle.run_id)
        await retry.signal("answer", 2)
        assert await retry.result(timeout="60s") == [1, 2]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_an_approval_of_a_compensation_is_asked_for_again(shop: Shop) -> None:
    async def code(ctx: Context, pay: Pay) -> object:
        try:
            await pay("hand")
        except CallFailed:
            ctx.set_value("phase", "undoing")
            decided.append(await ctx.request_approval("refund?"))
            raise
        return None

    decided: list[object] = []
    shop.define(code)
    shop.broken = {"hand"}
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        for _ in range(2):
            await decide(client, handle)
            with pytest.raises(RunFailed):
                await handle.result(timeout="60s")
            shop.closed = True  # else the run may set the value again before it is looked at
            handle = await client.runs.retry(handle.run_id)
            assert await handle.values() == {}
            shop.closed = False
        await decide(client, handle)
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
    assert len(decided) >= 3


async def decide(client: Client, handle: RunHandle[object]) -> None:
    """Approve what a run asks for, once it does."""
    async with asyncio.timeout(60):
        while not (asked := await handle.approvals()):
            await asyncio.sleep(0.01)
        await client.approvals.decide(handle.run_id, asked[0].key, approved=True)


@pytest.mark.parametrize("caught", [True, False])
async def test_a_retry_of_the_failed_steps_repeats_what_the_code_handled(
    shop: Shop, caught: bool
) -> None:
    """C20. The run ended by an error of its own; a plain retry would fail with it for ever."""

    async def branch(pay: Pay, name: str) -> None:
        await pay(f"charge-{name}")
        try:
            await pay(f"ship-{name}")
        except CallFailed:
            if caught:
                await pay(f"refund-{name}")
            raise

    async def code(ctx: Context, pay: Pay) -> object:
        work = [branch(pay, name) for name in "abc"]
        found: list[object] = []
        if caught:
            found += await asyncio.gather(*work, return_exceptions=True)
        else:
            for each in work:
                try:
                    await each
                except CallFailed as error:
                    found.append(error)
        if any(isinstance(one, Exception) for one in found):
            raise ValueError("not all were shipped")
        return None

    shop.define(code)
    first, second, third = await effects(
        shop, "ship-a ship-c", "ship-c", "", options={"failed_steps": True}
    )
    undone = ["refund-a", "refund-c"] if caught else []
    done = ["charge-a", "ship-a", "charge-b", "ship-b", "charge-c", "ship-c"]
    assert sorted(first.split()) == sorted(done + undone)
    assert sorted(second.split()) == sorted(["ship-a", "ship-c", *undone[1:]])
    assert third == "ship-c"


async def test_a_retry_of_the_failed_steps_finds_them_under_their_alias(store: Store) -> None:
    """Fault: the retry was stuck: it did not know the call that it was to make again."""
    paid = list[str]()

    def version(name: str, *aliases: str) -> App:
        app = App("shop", retry=Retry.NEVER)

        @app.step(name=name, aliases=aliases)
        async def charge(card: str) -> str:
            paid.append(card)
            if card == "b" and name == "pay":
                raise LookupError(card)
            return card

        @app.workflow
        async def checkout(ctx: Context) -> str:
            found = ""
            for card in "abc":
                with contextlib.suppress(CallFailed):
                    found += await charge(card)
            if found != "abc":
                raise ValueError(found)
            return found

        return app

    async with Client(store=store) as client:
        async with working(version("pay"), store):
            handle = await client.start("shop/checkout")
            with pytest.raises(RunFailed):
                await handle.result(timeout="60s")
        retry = await client.runs.retry(handle.run_id, failed_steps=True)
        async with working(version("charge", "pay"), store):
            assert await retry.result(timeout="60s") == "abc"
    assert paid == ["a", "b", "c", "b"]


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_why_names_what_a_retry_keeps_and_what_it_makes_again(shop: Shop) -> None:
    async def code(ctx: Context, pay: Pay) -> object:
        await compensating(pay, "except")
        return None

    shop.define(code)
    shop.broken = {"hand"}
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        found = await client.why(handle.run_id)
        plan = await client.runs.retry_plan(handle.run_id)
    assert (plan.kept, plan.failed, plan.after) == (("charge",), ("charge#2",), ("charge#3",))
    assert found.details[1:-1] == (
        "a retry makes again, because it failed: charge#2",
        "and because the code had called it for that reason: charge#3",
        "a call that is made again has a new idempotency key",
        "a retry keeps: charge",
    )
    assert "do not retry it: fork it" in found.details[-1]
    assert found.actions == (Action("retry", handle.run_id),)


@pytest.mark.parametrize("shop", ["step"], indirect=True)
async def test_why_offers_a_retry_of_the_failed_steps(shop: Shop) -> None:
    """C20. Until the run was retried."""

    async def code(ctx: Context, pay: Pay) -> object:
        found = await asyncio.gather(pay("a"), pay("b"), return_exceptions=True)
        if failed := [each for each in found if isinstance(each, Exception)]:
            raise ValueError(f"{len(failed)} of 2 failed")
        return None

    shop.define(code)
    shop.broken = {"b"}
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        with pytest.raises(RunFailed):
            await handle.result(timeout="60s")
        found = await client.why(handle.run_id)
        assert found.actions == (
            Action("retry", handle.run_id, failed_steps=True),
            Action("retry", handle.run_id),
        )
        assert any("a plain retry repeats no call" in each for each in found.details)
        assert "a retry makes again, because it failed: charge#2" in found.details
        shop.broken = set()
        retry = await client.runs.retry(handle.run_id, failed_steps=True)
        await retry.result(timeout="60s")
        after = await client.why(handle.run_id)
        assert after.actions == (Action("why", retry.run_id),)
        assert (await client.why(retry.run_id)).actions == ()
    assert shop.paid == ["a", "b", "b"]


# Cancelled runs


@pytest.mark.parametrize("ended", ["cancelled", "completed"])
async def test_a_copy_of_a_cancelled_run_is_not_stuck(store: Store, ended: str) -> None:
    """A retry has no cancel, and what the code did beside it does not stop it. A fork has it."""
    app, done, open_door = App("shop"), list[str](), asyncio.Event()

    @app.step
    async def act(name: str) -> str:
        done.append(name)
        if name == "wait" and not open_door.is_set():
            await asyncio.Event().wait()
        return name

    @app.workflow
    async def visit(ctx: Context) -> list[str]:
        try:
            found = [await act("wait"), await ctx.step("work", act, "work")]
        except asyncio.CancelledError:
            found = [await ctx.step("note", act, "note")]
            if ended == "cancelled":
                raise
        return [*found, await ctx.step("clean", act, "clean")]

    async with working(app, store), Client(store=store) as client:
        handle = await client.start(visit)
        await eventually(lambda: "wait" in done)
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == ended
        open_door.set()
        copy = client.runs.retry if ended == "cancelled" else client.runs.fork
        copied = await copy(handle.run_id)
        expected = ["wait", "work", "clean"] if ended == "cancelled" else ["note", "clean"]
        assert await copied.result(timeout="60s") == expected
    assert done.count("clean") == 1
    assert done.count("note") == 1


async def waits(handle: RunHandle[Any]) -> bool:
    return (await handle.get()).state == "waiting"


@pytest.mark.parametrize("failed_steps", [False, True])
@pytest.mark.parametrize("forget", [False, True])
async def test_a_retry_of_a_cancelled_run_makes_its_cleanup_again(
    shop: Shop, forget: bool, failed_steps: bool
) -> None:
    """It keeps what ran beside it, and all that runs of older releases called."""
    begun = asyncio.Event()

    async def code(ctx: Context, pay: Pay) -> str:
        beside = asyncio.create_task(pay("beside"))
        await pay("lock")
        try:
            await beside
            begun.set()
            await ctx.wait_for_signal("packed")
            return "goods" if forget else await pay("goods")
        finally:
            await pay("release")
            await asyncio.gather(*(pay(f"note {n}") for n in range(2)))

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(begun.is_set)
        await eventually(lambda: waits(handle))
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "cancelled"
        if forget:
            await forget_calls(shop)
        plan = await client.runs.retry_plan(handle.run_id, failed_steps=failed_steps)
        made_again = 0 if forget else 3
        assert (len(plan.kept), plan.failed, len(plan.after)) == (5 - made_again, (), made_again)
        told = str((await client.why(handle.run_id)).details)
        assert ("because the code had called it after the cancel" in told) is not forget
        shop.paid.clear()
        retry = await client.runs.retry(handle.run_id, failed_steps=failed_steps)
        await retry.signal("packed")
        assert await retry.result(timeout="60s") == "goods"
    assert sorted(shop.paid) == ([] if forget else ["goods", "note 0", "note 1", "release"])


@pytest.mark.parametrize("failed_steps", [False, True])
@pytest.mark.parametrize("fails_by", ["call", "gather", "group", "handled call", "own error"])
async def test_a_cleanup_that_fails_is_continued(
    shop: Shop, fails_by: str, failed_steps: bool
) -> None:
    """A2. The retry has the cancel: what was released because of it is not released again."""
    begun = asyncio.Event()

    async def code(ctx: Context, pay: Pay) -> str:
        await pay("lock")
        begun.set()
        try:
            await ctx.wait_for_signal("packed")
            return await pay("goods")
        finally:
            await pay("release")
            match fails_by:
                case "call":
                    await pay("note")
                case "gather":
                    await asyncio.gather(pay("note"), pay("tell"))
                case "group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(pay("note"))
                        group.create_task(pay("tell"))
                case "handled call":
                    found = await asyncio.gather(pay("note"), return_exceptions=True)
                    if shop.bug and not isinstance(found[0], str):
                        raise ValueError("cleanup")
                case _:
                    if shop.bug:
                        raise ValueError("cleanup")

    shop.broken.add("note")
    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(begun.is_set)
        await eventually(lambda: waits(handle))
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "failed"
        shop.broken.clear()
        shop.bug = False
        shop.paid.clear()
        plan = await client.runs.retry_plan(handle.run_id, failed_steps=failed_steps)
        assert plan.cancel
        assert "a retry has the cancel" in str((await client.why(handle.run_id)).details)
        retry = await client.runs.retry(handle.run_id, failed_steps=failed_steps)
        assert (await client.runs.wait(retry.run_id, timeout="60s")).state == "cancelled"
    is_repeated = fails_by != "own error" and (failed_steps or fails_by != "handled call")
    assert sorted(set(shop.paid) - {"tell"}) == (["note"] if is_repeated else [])


async def retried_after_cancel(
    shop: Shop, code: Callable[[Context, Pay], Awaitable[object]]
) -> object:
    """Return what the retry returns, after a run that failed when it was cancelled in a wait."""
    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(lambda: waits(handle))
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "failed"
        shop.bug = False
        retry = await client.runs.retry(handle.run_id)
        return await retry.result(timeout="60s")


@pytest.mark.parametrize("fails_by", ["timeout", "group", "body", "task", "wait", "own error"])
async def test_what_a_run_called_after_it_took_a_cancel_is_kept(shop: Shop, fails_by: str) -> None:
    """A2. Later cancels, of timeouts and groups, are not the cancel of the run."""

    async def fail() -> None:
        match fails_by:
            case "timeout":
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(3600)
            case "group" | "body":
                async with asyncio.TaskGroup() as group:
                    waits = group.create_task(asyncio.sleep(3600))
                    if fails_by == "body":
                        raise ValueError("bug")
                    group.create_task(asyncio.wait_for(waits, 0.01))
            case "task":
                task = asyncio.create_task(asyncio.sleep(3600))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    raise ValueError("bug") from None
            case "wait":
                await asyncio.wait_for(asyncio.sleep(3600), 0.01)
            case _:
                raise ValueError("bug")

    async def code(ctx: Context, pay: Pay) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.wait_for_signal("packed")
        await pay("goods")
        if shop.bug:
            await fail()
        return await pay("note")

    assert await retried_after_cancel(shop, code) == "note"
    assert shop.paid == ["goods", "note"]


@pytest.mark.parametrize("cancelled_by", ["group", "body of group", "gather", "wait", "wait_for"])
async def test_a_cleanup_of_a_task_that_fails_is_continued(shop: Shop, cancelled_by: str) -> None:
    """A2. What cancels tasks because the run is cancelled hands the run's cancel on."""

    async def work(ctx: Context, pay: Pay) -> str:
        try:
            await ctx.wait_for_signal("packed")
            return await pay("goods")
        finally:
            await pay("release")
            if shop.bug:
                raise ValueError("cleanup")

    async def code(ctx: Context, pay: Pay) -> str:
        match cancelled_by:
            case "group":
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(work(ctx, pay))
            case "body of group":
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(work(ctx, pay))
                    await asyncio.sleep(3600 if shop.bug else 0)
            case "gather":
                return (await asyncio.gather(work(ctx, pay)))[0]
            case "wait":
                task = asyncio.create_task(work(ctx, pay))
                try:
                    await asyncio.wait([task])
                finally:
                    if not task.done():
                        task.cancel()
                    await task
            case _:
                return await asyncio.wait_for(work(ctx, pay), 7200)
        return task.result()

    with pytest.raises(RunCancelled):
        await retried_after_cancel(shop, code)
    assert shop.paid == ["release"]


async def test_a_task_that_cleans_up_beside_a_cleanup_that_fails_is_kept(store: Store) -> None:
    """It was cancelled because of the run's cancel, not because its neighbour failed."""
    shop = Shop("step", store, "")
    begun, released = asyncio.Event(), asyncio.Event()

    async def hold(pay: Pay, name: str) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await pay(f"release {name}")
            if name == "b":
                await pay("note b")
                released.set()
            await pay(f"tell {name}")

    async def code(ctx: Context, pay: Pay) -> None:
        work = [asyncio.create_task(hold(pay, name)) for name in "ab"]
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            for task in work:
                task.cancel()
            found = await asyncio.gather(*work, return_exceptions=True)
            await pay("last")
            for one in found:
                if isinstance(one, CallFailed):
                    raise one from None
            raise

    shop.broken = {"release a"}
    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(begun.is_set)
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "failed"
        shop.broken.clear()
        shop.paid.clear()
        retry = await client.runs.retry(handle.run_id)
        assert (await client.runs.wait(retry.run_id, timeout="60s")).state == "cancelled"
    assert shop.paid == ["release a", "tell a", "last"]


async def test_a_retry_from_before_the_cancel_keeps_no_cleanup_of_a_task_beside(
    store: Store,
) -> None:
    """The failure came before the cancel, so the retry has none."""
    shop, begun = Shop("step", store, "", broken={"card"}), asyncio.Event()

    async def hold(pay: Pay) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await pay("release")

    async def code(ctx: Context, pay: Pay) -> str:
        holder = asyncio.create_task(hold(pay))
        await asyncio.sleep(0)
        try:
            await pay("card")
        except CallFailed:
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(holder)
            raise
        holder.cancel()
        await asyncio.wait([holder])
        return "sold"

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(begun.is_set)
        await eventually(lambda: waits(handle))  # the failure is recorded
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "failed"
        assert shop.paid == ["card", "release"]
        shop.broken.clear()
        shop.paid.clear()
        assert not (await client.runs.retry_plan(handle.run_id)).cancel
        retry = await client.runs.retry(handle.run_id)
        assert await retry.result(timeout="60s") == "sold"
    assert shop.paid == ["card", "release"]


async def test_what_failed_before_the_cancel_is_not_repeated_with_the_failed_steps(
    store: Store,
) -> None:
    """The card that was charged in its place is not charged again either."""
    shop, begun = Shop("step", store, "", broken={"visa", "note"}), asyncio.Event()

    async def code(ctx: Context, pay: Pay) -> None:
        try:
            await pay("visa")
        except CallFailed:
            await pay("amex")
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            found = await asyncio.gather(pay("note"), return_exceptions=True)
            if isinstance(found[0], CallFailed):
                raise ValueError("cleanup") from None
            raise

    shop.define(code)
    async with working(shop.app, shop.store), Client(store=shop.store) as client:
        handle = await client.start("checkout")
        await eventually(begun.is_set)
        await eventually(lambda: waits(handle))  # the failure is recorded
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "failed"
        shop.broken.clear()
        shop.paid.clear()
        retry = await client.runs.retry(handle.run_id, failed_steps=True)
        assert (await client.runs.wait(retry.run_id, timeout="60s")).state == "cancelled"
    assert shop.paid == ["note"]


@pytest.mark.parametrize("policy", ["try", "wait"])
@pytest.mark.parametrize("failed_steps", [False, True])
async def test_a_retry_makes_what_the_cancel_stopped_again(
    store: Store, policy: OnCancel, failed_steps: bool
) -> None:
    """Fault: it kept the end of an activity that was stopped, although its code had no cancel."""
    app, tries, refusals = App("desk", retry=Retry.NEVER), list[str](), list[str]()

    @app.activity(on_cancel=policy)
    async def scan() -> str:
        tries.append("scan")
        while len(tries) == 1 and not current_activity().cancelled:
            await asyncio.sleep(0.01)
        if len(tries) == 1:
            raise asyncio.CancelledError
        return "scanned"

    @app.step
    async def refuse() -> None:
        refusals.append("refused")
        if len(refusals) == 1:
            raise LookupError

    @app.workflow
    async def desk(ctx: Context) -> str:
        with contextlib.suppress(CallFailed):
            await refuse()
        return await scan()

    async with working(app, store), Client(store=store) as client:
        handle = await client.start(desk)
        await eventually(lambda: bool(tries))
        await handle.cancel()
        assert (await client.runs.wait(handle.run_id, timeout="60s")).state == "cancelled"
        plan = await client.runs.retry_plan(handle.run_id, failed_steps=failed_steps)
        assert not plan.cancel
        retry = await client.runs.retry(handle.run_id, failed_steps=failed_steps)
        assert await retry.result(timeout="60s") == "scanned"
    assert len(refusals) == 1 + failed_steps


@pytest.mark.parametrize("ended_by", ["terminate", "poison"])
@pytest.mark.parametrize("cleaned", [0, 1, 2])
async def test_a_run_that_was_ended_while_it_cleaned_up_is_cleaned_up_by_its_retry(
    store: Store, module_database_url: str, ended_by: str, cleaned: int
) -> None:
    """Fault: one rug was given back and shipped."""
    app, done, hangs = App("rugs", retry=Retry.NEVER), list[str](), asyncio.Event()

    @app.step
    async def act(name: str, number: int = 9) -> None:
        if not hangs.is_set() and (name == "pay" or number >= cleaned):
            done.append(f"{name} hangs")
            await asyncio.sleep(3600)
        done.append(name)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await act("reserve", 0 if cleaned else -1)
            await act("pay")
        except asyncio.CancelledError:
            await act("give back", 0)
            await act("refund", 1)
            await act("tell", 2)
            raise
        return "shipped"

    async with working(app, store), Client(store=store) as client:
        handle = await client.start(order)
        await eventually(lambda: "pay hangs" in done)
        await handle.cancel()
        await eventually(lambda: done[-1].endswith(" hangs") and done[-1] != "pay hangs")
        await end_it(store, module_database_url, handle, ended_by)
        told = str((await client.why(handle.run_id)).details)
        assert "a retry has the cancel of this run" in told
        hangs.set()
        done.clear()
        retry = await client.runs.retry(handle.run_id)
        assert (await client.runs.wait(retry.run_id, timeout="60s")).state == "cancelled"
        assert done == ["give back", "refund", "tell"][cleaned:]
        # The cancelled run was cleaned up: its own retry is not cancelled.
        assert not (await client.runs.retry_plan(retry.run_id)).cancel
        done.clear()
        again = await client.runs.retry(retry.run_id)
        assert await again.result(timeout="60s") == "shipped"
        assert done == ["pay"]


async def end_it(store: Store, database_url: str, handle: RunHandle[Any], ended_by: str) -> None:
    """End a run without its code."""
    if ended_by == "terminate":
        await handle.terminate()
    else:  # as the claim of a run does that has lost too many workers
        error = '{"kind":"holdfast.PoisonedRun","message":"lost"}'
        if isinstance(store, MemoryStore):
            tables = store._tables  # pyright: ignore[reportPrivateUsage]
            event = Event("WorkflowFailed", None, None, wall_clock())
            errors = {handle.run_id: error}
            end_from_outside(tables, [handle.run_id], "failed", event, errors=errors)
        else:
            connection = await asyncpg.connect(database_url)
            await connection.execute(
                "select ended from holdfast._end_each("
                "now(), array[$1::uuid], 'failed', 'WorkflowFailed', "
                "p_errors => array[$2::json])",
                handle.run_id,
                error,
            )
            await connection.close()
