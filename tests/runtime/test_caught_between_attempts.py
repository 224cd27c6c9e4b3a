"""A bug that is deployed between two attempts of a run makes nothing new before they differ.

Fault: a new attempt compensated, used itself up or completed the run, because of a bug that older
code, which had passed there, did not have.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.testing import Environment

made: list[str] = []
Code = Callable[[Context, bool], Coroutine[Any, Any, str]]


class Bad(Exception):
    pass


parts = App("parts")


@parts.step
async def pay() -> None:
    made.append("pay")


@parts.step
async def refund() -> None:
    made.append("refund")


@parts.step(retry=Retry.NEVER)
async def book() -> None:
    made.append("book")
    if made.count("book") < 3:
        raise OSError("no room")


def bug(is_new: bool) -> None:
    if is_new:
        raise NameError("undefined_name")


async def in_finally(ctx: Context, is_new: bool) -> str:
    await pay()
    is_over = False
    try:
        bug(is_new)
        await book()
        is_over = True
    finally:
        if not is_over:
            await refund()
    return "booked"


async def with_a_result(ctx: Context, is_new: bool) -> str:
    await pay()
    try:
        bug(is_new)
        await book()
    except NameError:
        await refund()
        return "not booked"
    return "booked"


async def before_a_wait_that_is_over(ctx: Context, is_new: bool) -> str:
    await pay()
    try:
        raise Bad
    except Bad:
        await ctx.wait_for_signal("a")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(refund)
        bug(is_new)
        await ctx.wait_for_signal("b")
        stack.pop_all()
    await book()
    return "booked"


def app_of(code: Code, is_new: bool) -> App:
    app = App("shop")

    @app.workflow(name="sale", retry=Retry(attempts=4, base="1h", max="1h", jitter=0))
    async def sale(ctx: Context) -> str:
        return await code(ctx, is_new)

    return app


@pytest.mark.parametrize("code", [in_finally, with_a_result, before_a_wait_that_is_over])
async def test_a_bug_before_the_call_that_failed_makes_nothing_new(code: Code) -> None:
    made.clear()
    good, bad = app_of(code, False), app_of(code, True)
    async with Environment(good, replay=False) as environment:
        handle = await environment.client.start("sale")
        await handle.signal("a")
        await handle.signal("b")
        await environment.wait_until_idle()
        before = made.copy()
        environment.apps = (bad,)
        await environment.kill()
        await environment.advance(timedelta(hours=2))
        newest, *_ = (await environment.client.runs.list()).runs
        assert newest.wait is not None
        assert "NameError" in str(newest.wait.stuck)
        assert made == before
        environment.apps = (good,)
        await environment.kill()
        await handle.resume()
        await environment.advance(timedelta(hours=9))
        assert await environment.result(handle) == "booked"
        assert made.count("pay") == 1


@pytest.mark.parametrize("code", [in_finally, with_a_result, before_a_wait_that_is_over])
async def test_attempts_of_code_that_has_not_changed_continue(code: Code) -> None:
    made.clear()
    app = app_of(code, False)
    async with Environment(app) as environment:
        handle = await environment.client.start("sale")
        await handle.signal("a")
        await handle.signal("b")
        for _ in range(4):
            await environment.wait_until_idle()
            await environment.kill()
            await environment.advance(timedelta(hours=3))
        assert await environment.result(handle) == "booked"
        assert (made.count("pay"), made.count("book")) == (1, 3)


async def with_a_new_wait(ctx: Context, is_new: bool) -> str:
    await pay()
    try:
        raise Bad
    except Bad:
        await ctx.wait_for_signal("a")
    if is_new:
        await ctx.wait_for_signal("c")
    await book()
    return "booked"


async def test_an_exception_that_older_code_handled_is_not_held_against_new_code() -> None:
    made.clear()
    async with Environment(app_of(with_a_new_wait, False), replay=False) as environment:
        handle = await environment.client.start("sale")
        await handle.signal("a")
        await environment.wait_until_idle()
        environment.apps = (app_of(with_a_new_wait, True),)
        await environment.kill()
        await environment.advance(timedelta(hours=2))
        newest, *_ = (await environment.client.runs.list()).runs
        assert newest.wait is not None
        assert newest.wait.stuck is None
        await handle.signal("c")
        await environment.advance(timedelta(hours=9))
        assert await environment.result(handle) == "booked"
