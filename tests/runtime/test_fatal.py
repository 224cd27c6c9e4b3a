"""What the end of a failed run says of the calls that it ended by."""

from __future__ import annotations

import asyncio
import json

from holdfast import Context
from holdfast.codec import describe
from holdfast.definitions.steps import Step
from holdfast.errors import ActivityFailed, CallFailed, StepFailed
from holdfast.events import ACTIVITY_FAILED, FAILED
from holdfast.types import Event
from tests.runtime.bench import Bench, Code


async def _elsewhere(item: str) -> str:
    raise AssertionError("the test gives the results")


pay, mail, ask = (Step(_elsewhere, name=name) for name in ("pay", "mail", "ask"))
CARDS = ("visa", "amex", "cash")


def refused(bench: Bench, key: str) -> Event:
    fields = {
        "activity_name": key,
        "error": {"kind": "builtins.LookupError", "message": "refused"},
        "attempt": 1,
    }
    return Event(ACTIVITY_FAILED, key, json.dumps(fields), bench.now)


def said(bench: Bench) -> tuple[list[str], int]:
    """Commit all, and return what the run's end says."""
    part = bench.settle()
    assert part is not None
    end = part.events[-1]
    assert end.type == FAILED
    found = json.loads(end.details or "null")
    return found["calls"], found["seen"]


def bench_of(code: Code) -> Bench:
    bench = Bench(code)
    bench.settle()
    return bench


def test_activities_that_failed_before_the_code_looked_are_all_named() -> None:
    """The first one ends the code, the others are in the log before its end."""

    async def code(ctx: Context) -> object:
        return await asyncio.gather(*(ctx.activity(card) for card in CARDS))

    bench = bench_of(code)
    place = len(bench.log)
    bench.resume(*(refused(bench, card) for card in CARDS))
    assert said(bench) == (sorted(CARDS), place + 1)


def test_activities_that_failed_while_the_end_was_written_are_named() -> None:
    async def code(ctx: Context) -> object:
        return await asyncio.gather(*(ctx.activity(card) for card in CARDS))

    bench = bench_of(code)
    bench.resume(refused(bench, "visa"))
    bench.refuse(refused(bench, "cash"))
    assert said(bench)[0] == ["cash", "visa"]


def test_failures_that_a_gather_returned_are_named_if_one_of_them_is_raised() -> None:
    async def code(ctx: Context) -> object:
        found = await asyncio.gather(
            *(ctx.activity(card) for card in CARDS), return_exceptions=True
        )
        raise next(one for one in found if isinstance(one, ActivityFailed))

    bench = bench_of(code)
    bench.resume(*(refused(bench, card) for card in CARDS))
    assert said(bench)[0] == sorted(CARDS)


def test_a_failure_that_the_code_acted_on_is_not_one_of_them() -> None:
    """It asked for something else before it ended."""

    async def code(ctx: Context) -> object:
        first, second = await asyncio.gather(
            ctx.activity("ship"), ctx.activity("visa"), return_exceptions=True
        )
        if isinstance(second, ActivityFailed):
            await mail("amex, then")
        assert isinstance(first, ActivityFailed)
        raise first

    bench = bench_of(code)
    bench.resume(refused(bench, "ship"), refused(bench, "visa"))
    bench.complete("mail", "sent")
    assert said(bench)[0] == ["ship"]


def test_a_failure_that_a_branch_passed_over_is_not_one_of_them() -> None:
    async def visa(ctx: Context) -> object:
        try:
            return await ctx.activity("visa")
        except CallFailed:
            return None

    async def clean(ctx: Context) -> None:
        try:
            await ctx.activity("ship")
        finally:
            await mail("cleaned up")

    async def code(ctx: Context) -> object:
        return await asyncio.gather(clean(ctx), visa(ctx))

    bench = bench_of(code)
    visa_key, ship_key = "visa/visa", "clean/ship"
    bench.resume(refused(bench, ship_key), refused(bench, visa_key))
    assert bench.starts == ["clean/mail"]
    bench.complete("clean/mail", "sent")
    assert said(bench)[0] == [ship_key]


def test_the_end_by_a_bug_names_no_call() -> None:
    async def code(ctx: Context) -> object:
        try:
            await pay("visa")
        except StepFailed:
            await mail("refused")
        raise ValueError("a bug")

    bench = Bench(code)
    bench.fail("pay", LookupError("refused"))
    bench.settle()
    bench.complete("mail", "sent")
    assert said(bench) == ([], 0)


def test_an_error_that_the_code_made_itself_names_no_call() -> None:
    async def code(ctx: Context) -> object:
        raise StepFailed("pay", describe(LookupError("refused")))

    assert said(Bench(code)) == ([], 0)


def test_calls_of_tasks_that_a_handler_began_are_made_while_it_handled() -> None:
    """Also those of tasks that these began. Tasks that began before or after it are not."""

    async def undo(card: str) -> None:
        await asyncio.gather(mail(card))

    async def code(ctx: Context) -> object:
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()
            await mail("before")

        before = asyncio.create_task(wait())
        try:
            await pay("visa")
        except StepFailed:
            await asyncio.gather(undo("amex"), undo("cash"))
        go.set()
        await before
        await asyncio.gather(mail("after"))
        raise ValueError("a bug")

    bench = bench_of(code)
    bench.fail("pay", LookupError("refused"))
    undone = ["undo/mail", "undo#2/mail"]
    for key in (*undone, "wait/mail", "mail"):
        bench.settle()
        bench.complete(key, "sent")
    assert made_in_handlers(bench) == (undone, [])


def test_tasks_that_the_cleanup_of_a_cancelled_branch_began_are_made_because_of_the_failure() -> (
    None
):
    async def hold() -> None:
        try:
            await ask("a person")
        finally:
            await asyncio.gather(mail("nobody is asked any more"))

    async def code(ctx: Context) -> object:
        async with asyncio.TaskGroup() as group:
            group.create_task(hold())
            await pay("visa")

    bench = bench_of(code)
    bench.settle()
    bench.fail("pay", LookupError("refused"))
    bench.settle()
    bench.complete("hold/mail", "sent")
    assert made_in_handlers(bench) == (["hold/mail"], ["hold/mail"])


def made_in_handlers(bench: Bench) -> tuple[list[str], list[str]]:
    """Commit all, and return which calls were made in handlers, and because of what ended it."""
    part = bench.settle()
    assert part is not None
    end = json.loads(part.events[-1].details or "null")
    return end["handling"], end["after"]
