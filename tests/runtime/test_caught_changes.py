"""Handlers of exceptions that older code raised, too: changed code continues, bugs are found."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from holdfast import Context
from holdfast.definitions.steps import Step
from holdfast.events import CONTINUED, VALUE_RECORDED
from tests.runtime.bench import SECOND, Bench, Code
from tests.runtime.test_caught import bug, paid
from tests.runtime.test_raised import pay, recorded, render, ship

refund, notify = recorded("refund"), recorded("notify")
renamed = Step(refund.fn, name="give_back", aliases=["refund"])
Handler = Callable[[Context], Coroutine[Any, Any, None]]


class Bad(Exception):
    pass


def raising(handle: Handler, *, through: bool = False) -> Code:
    """Return code that raises an exception of its own and handles it so."""

    async def code(ctx: Context) -> str:
        await pay(1)
        try:
            try:
                raise Bad("no stock")
            except Bad as error:
                if not through:
                    raise
                raise ValueError("no order") from error
        except (Bad, ValueError):
            await handle(ctx)
        return "done"

    return code


async def as_it_was(ctx: Context) -> None:
    await ctx.wait_for_signal("go")
    await refund(1)


async def with_a_step_before(ctx: Context) -> None:
    await notify(1)
    await as_it_was(ctx)


async def with_a_sleep_before(ctx: Context) -> None:
    await asyncio.sleep(1)
    await as_it_was(ctx)


async def without_the_wait(ctx: Context) -> None:
    await refund(1)


async def with_a_timeout(ctx: Context) -> None:
    await asyncio.wait_for(ctx.wait_for_signal("go"), 60)
    await refund(1)


async def in_a_task(ctx: Context) -> None:
    await asyncio.create_task(ctx.wait_for_signal("go"))
    await refund(1)


async def in_a_function(ctx: Context) -> None:
    await asyncio.gather(as_it_was(ctx))


async def with_a_second_exception(ctx: Context) -> None:
    try:
        await ctx.wait_for_signal("go")
        raise KeyError("rate")
    except KeyError:
        await refund(1)


async def by_another_name(ctx: Context) -> None:
    await ctx.wait_for_signal("go")
    await renamed(1)


HANDLERS = [
    *(with_a_step_before, with_a_sleep_before, without_the_wait, with_a_timeout, in_a_task),
    *(in_a_function, with_a_second_exception, by_another_name),
]


def finish(bench: Bench) -> None:
    """Let a run go to its end."""
    for _ in range(20):
        bench.settle()
        assert bench.stuck is None
        if bench.ended:
            return
        if bench.suspended:
            bench.now += 5 * SECOND
            bench.resume(bench.signal("go"))
        for key in list(bench.starts):
            bench.complete(key, 1)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_handler_may_change_if_older_code_raised_there_too(
    handler: Handler, through: bool
) -> None:
    bench = paid(raising(as_it_was))
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == ["caught:2"]
    bench.crash(raising(handler, through=through))
    finish(bench)
    assert bench.output == "done"


def test_a_second_exception_with_recorded_calls_may_be_added_before_it() -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> str:
            rates = dict[str, int]()
            if is_new:
                try:
                    await pay(rates["a"])
                except KeyError:
                    await pay(1)
            else:
                await pay(1)
            return str(await raising(as_it_was)(ctx))

        return code

    bench = Bench(version(False))
    bench.complete("pay", 1)
    bench.complete("pay#2", 1)
    bench.settle()
    bench.crash(version(True))
    finish(bench)
    assert bench.output == "done"


def test_older_code_may_have_raised_later() -> None:
    async def old(ctx: Context) -> str:
        await pay(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ctx.wait_for_signal("never")
        return str(await raising(as_it_was)(ctx))

    async def new(ctx: Context) -> str:
        await pay(1)
        return str(await raising(as_it_was)(ctx))

    bench = paid(old)
    bench.now += 5 * SECOND
    bench.resume()
    bench.settle()
    bench.complete("pay#2", 1)
    bench.settle()
    bench.crash(new)
    finish(bench)
    assert bench.output == "done"


def test_a_log_that_an_earlier_release_began_is_not_judged() -> None:
    bench = paid(raising(as_it_was))
    bench.log[:] = [
        type(event)(event.type, event.key, re.sub(',"caught":2', "", event.details or ""), event.at)
        for event in bench.log
        if event.type != VALUE_RECORDED
    ]
    bench.crash()
    finish(bench)
    assert bench.output == "done"


@pytest.mark.parametrize("way", ["continue as new", "break"])
def test_what_ends_code_or_a_generator_is_not_raised_by_the_code(way: str) -> None:
    def version(is_new: bool) -> Code:
        async def numbers(ctx: Context) -> AsyncGenerator[int, None]:
            try:
                yield await pay(1)
            finally:
                await cleanup(ctx)

        async def cleanup(ctx: Context) -> None:
            if is_new:
                await notify(1)
            await ctx.wait_for_signal("go")
            await refund(1)

        async def code(ctx: Context) -> str:
            if way == "break":
                async with contextlib.aclosing(numbers(ctx)) as found:
                    async for _ in found:
                        break
                return "done"
            try:
                await pay(1)
                ctx.continue_as_new()
            finally:
                await cleanup(ctx)

        return code

    bench = paid(version(False))
    assert not bench.of_type(VALUE_RECORDED)
    bench.crash(version(True))
    finish(bench)
    assert bench.log[-1].type == CONTINUED or bench.output == "done"


def test_a_bug_does_not_continue_the_run_as_a_new_one() -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            try:
                await pay(1)
                bug(is_new)
                await ctx.wait_for_signal("go")
            except Exception:
                ctx.continue_as_new()

        return code

    bench = paid(version(False))
    bench.crash(version(True))
    bench.settle()
    assert "makes the new call 'continue_as_new' because of it" in str(bench.stuck)
    bench.crash(version(False))
    bench.settle()
    assert bench.suspended


@pytest.mark.parametrize("way", ["task", "gather", "event", "wait", "activity", "lock"])
def test_a_handler_that_first_waits_for_what_is_under_way(way: str) -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            lock, event = asyncio.Lock(), asyncio.Event()
            rendered = render(1)

            async def beside() -> None:
                async with lock:
                    if way != "activity":
                        await rendered
                event.set()

            task = asyncio.create_task(beside())
            try:
                await pay(1)
                bug(is_new)
                await ctx.wait_for_signal("go")
                await ship(1)
            finally:
                if way == "task":
                    await task
                elif way == "gather":
                    await asyncio.gather(task, return_exceptions=True)
                elif way == "event":
                    await event.wait()
                elif way == "wait":
                    await asyncio.wait([task])
                elif way == "activity":
                    await rendered
                else:
                    async with lock:
                        pass
                await refund(1)

        return code

    bench = paid(version(False))
    bench.crash(version(True))
    bench.settle()
    bench.resume(bench.activity_completed("render", 1))
    bench.settle()
    assert "NameError: undefined_name at a place that older code has passed" in str(bench.stuck)
    assert not bench.starts
    bench.crash(version(False))
    finish(bench)
    assert bench.ended == "completed"
