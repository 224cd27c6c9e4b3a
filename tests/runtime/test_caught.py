"""Code that cleans up after an exception that older code did not raise: the run is stuck.

Fault: a deploy with a bug compensated what runs had done, and ended them for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from holdfast import Context
from holdfast.definitions.workflows import Workflow
from holdfast.errors import StepFailed
from holdfast.events import UPDATE_COMPLETED, VALUE_RECORDED
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.runtime.turn.turn import RunInfo
from tests.runtime.bench import RUN_ID, SECOND, START, Bench, Code
from tests.runtime.test_raised import pay, recorded, render, ship

refund, notify = recorded("refund"), recorded("notify")
Version = Callable[[bool], Code]


def bug(is_new: bool) -> None:
    if is_new:
        raise NameError("undefined_name")


def in_finally(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await refund(1)

    return code


def in_except(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        except BaseException:
            await refund(1)
            raise

    return code


def in_an_exit_stack(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await pay(1)
            stack.push_async_callback(refund, 1)
            bug(is_new)
            await ctx.wait_for_signal("go")

    return code


def by_an_activity(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await render(1)

    return code


def by_a_child_that_is_not_awaited(is_new: bool) -> Code:
    async def code(ctx: Context) -> str:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        except NameError:
            await ctx.start_child("undo", 1)
        return "done"

    return code


def by_a_sleep(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await asyncio.sleep(2)

    return code


def by_a_wait(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await ctx.wait_for_signal("go")

    return code


def by_a_generator(is_new: bool) -> Code:
    async def booked() -> AsyncGenerator[int, None]:
        try:
            yield await pay(1)
        finally:
            await refund(1)

    async def code(ctx: Context) -> None:
        async with contextlib.aclosing(booked()) as numbers:
            async for _ in numbers:
                bug(is_new)
                await ctx.wait_for_signal("go")

    return code


def by_a_context_manager(is_new: bool) -> Code:
    @contextlib.asynccontextmanager
    async def booked() -> AsyncGenerator[int, None]:
        number = await pay(1)
        try:
            yield number
        except BaseException:
            await refund(1)
            raise

    async def code(ctx: Context) -> None:
        async with booked():
            bug(is_new)
            await ctx.wait_for_signal("go")

    return code


def by_tasks(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            await asyncio.gather(refund(1), notify(1))

    return code


def under_a_timeout(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")
        finally:
            async with asyncio.timeout(60):
                await refund(1)

    return code


def raised_from(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        try:
            await pay(1)
            try:
                bug(is_new)
            except NameError as error:
                raise ValueError("order") from error
            await ctx.wait_for_signal("go")
        except ValueError:
            await refund(1)

    return code


def beside_a_branch(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        async def failing() -> None:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")

        async def cleaning() -> None:
            try:
                await ctx.wait_for_signal("never")
            finally:
                await refund(1)

        async with asyncio.TaskGroup() as group:
            group.create_task(failing())
            group.create_task(cleaning())

    return code


def after_a_group(is_new: bool) -> Code:
    async def code(ctx: Context) -> None:
        async def failing() -> None:
            await pay(1)
            bug(is_new)
            await ctx.wait_for_signal("go")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
                group.create_task(ctx.wait_for_signal("never"))
        finally:
            await refund(1)

    return code


VERSIONS: list[Version] = [
    *(in_finally, in_except, in_an_exit_stack, by_an_activity, by_a_child_that_is_not_awaited),
    *(by_a_sleep, by_a_wait, by_tasks, under_a_timeout, raised_from, beside_a_branch),
    *(after_a_group, by_a_generator, by_a_context_manager),
]


def paid(code: Code) -> Bench:
    """Return a bench whose run has paid, and waits."""
    bench = Bench(code)
    bench.complete(next(iter(bench.starts)), 1)
    bench.settle()
    assert bench.suspended
    return bench


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_new_is_done_because_of_a_bug_and_a_roll_back_heals_it(
    version: Version, signalled: bool
) -> None:
    bench = paid(version(False))
    if signalled:
        bench.log.append(bench.signal("other"))
    length = len(bench.log)
    info = RunInfo(RUN_ID, "flow", 1, 1, START)
    found = rehearse(Workflow(version(True), name="flow"), info, bench.log)
    assert found is not None
    assert found.kind == "stuck"
    bench.crash(version(True))
    bench.settle()
    stuck = str(bench.stuck)
    assert "at a place that older code has passed, and makes the new call" in stuck
    assert "NameError: undefined_name" in stuck or version is by_a_generator
    assert "Traceback (most recent call last)" in stuck
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    assert not bench.starts
    bench.crash(version(False))
    assert bench.stuck is None
    assert bench.suspended or bench.settle()


@pytest.mark.parametrize("version", VERSIONS)
def test_code_that_has_not_changed_cleans_up_and_ends_however_often_it_is_replayed(
    version: Version,
) -> None:
    ends = list[Any]()
    for crash in (False, True):
        bench = Bench(version(True))
        bench.complete(next(iter(bench.starts)), 1)
        for _ in range(20):
            bench.settle()
            if bench.ended:
                break
            if crash:
                bench.crash()
                bench.settle()
                assert bench.stuck is None
            for key in list(bench.starts):
                bench.complete(key, 1)
                bench.settle()
            if bench.ended is None and bench.suspended:
                bench.now += 5 * SECOND
                tail = [bench.signal("go")] if version is by_a_wait else []
                if version is by_an_activity:
                    tail = [bench.activity_completed("render", 1)]
                bench.resume(*tail)
        ends.append(bench.ended)
    assert ends[0] == ends[1] is not None
    assert len(bench.of_type(VALUE_RECORDED)) <= 3


def test_an_app_may_let_the_code_clean_up() -> None:
    bench = paid(in_finally(False))
    bench.careful = False
    bench.crash(in_finally(True))
    bench.settle()
    assert bench.starts == ["refund"]


def test_a_bug_in_a_task_that_is_awaited_later() -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            async def failing() -> None:
                await pay(1)
                bug(is_new)
                await ctx.wait_for_signal("never")

            task = asyncio.create_task(failing())
            await ctx.wait_for_signal("go")
            await task

        return code

    bench = paid(version(False))
    bench.log.append(bench.signal("go"))
    bench.crash(version(True))
    bench.settle()
    assert "because of what it raised at a place that older code has passed" in str(bench.stuck)
    bench = paid(version(True))
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] == ["caught:2"]
    bench.crash()
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.error["kind"] == "builtins.NameError"


def test_the_handler_of_an_update() -> None:
    def version(is_new: bool) -> Code:
        async def code(ctx: Context) -> None:
            async def move() -> str:
                try:
                    await pay(1)
                    bug(is_new)
                    await ctx.wait_for_signal("go")
                finally:
                    await refund(1)
                return "moved"

            ctx.handle_update("move", move)
            await ctx.wait_for_signal("end")

        return code

    bench = Bench(version(False))
    bench.settle()
    bench.resume(bench.update("move", None))
    bench.complete("~/update-move/pay", 1)
    bench.settle()
    length = len(bench.log)
    bench.crash(version(True))
    bench.settle()
    assert "NameError" in str(bench.stuck)
    assert [event.type for event in bench.log[length:]] == ["WorkerLost"]
    bench.crash(version(False))
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.complete("~/update-move/refund", 1)
    bench.settle()
    assert bench.details_of(UPDATE_COMPLETED)[0]["result"] == "moved"


@pytest.mark.parametrize("way", ["key", "next", "group", "timeout", "results", "failed step"])
def test_changed_code_may_handle_its_own_exceptions_where_it_does_nothing_new(way: str) -> None:
    async def old(ctx: Context) -> str:
        with contextlib.suppress(StepFailed):
            await pay(1)
        await ctx.wait_for_signal("go")
        return "done"

    async def refusing() -> None:
        raise ValueError("no")

    async def new(ctx: Context) -> str:
        try:
            await pay(1)
        except StepFailed:
            if way == "failed step":  # the log explains it
                await refund(1)
        if way == "key":
            with contextlib.suppress(KeyError):
                dict[str, str]()["rate"]
        elif way == "next":
            with contextlib.suppress(StopIteration):
                next(iter(()))
        elif way == "group":
            with contextlib.suppress(BaseExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(refusing())
                    group.create_task(asyncio.sleep(0))
        elif way == "timeout":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await ctx.wait_for_signal("never")
        elif way == "results":
            await asyncio.gather(refusing(), return_exceptions=True)
        await ship(1)
        await ctx.wait_for_signal("go")
        return "done"

    bench = Bench(old)
    if way == "failed step":
        bench.fail("pay", OSError("no"))
    else:
        bench.complete("pay", 1)
    bench.settle()
    bench.log.append(bench.signal("go"))
    bench.crash(new)
    for _ in range(5):
        bench.settle()
        assert bench.stuck is None
        for key in list(bench.starts):
            bench.complete(key, 1)
    assert bench.output == "done"
    assert [event.key for event in bench.of_type(VALUE_RECORDED)] in ([], ["caught:2"])


def test_an_exception_that_the_worker_handles_is_not_that_of_the_code() -> None:
    bench = paid(in_finally(False))
    try:
        raise OSError("the worker's")
    except OSError:
        bench.log.append(bench.signal("go"))
        bench.crash(in_finally(False))
        bench.settle()
    bench.complete("refund", 1)
    bench.settle()
    assert bench.ended == "completed"
    assert not bench.of_type(VALUE_RECORDED)
