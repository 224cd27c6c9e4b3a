"""What a workflow may not do, and how its code is closed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import re
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from anyio._backends._asyncio import WorkerThread

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.errors import DeterminismError
from tests.runtime.bench import Bench, work


async def _elsewhere(item: int) -> int:
    raise AssertionError("another worker runs it")


elsewhere = Activity(_elsewhere, name="elsewhere")


def running() -> Any:
    return asyncio.get_running_loop()


def done_in_a_thread() -> Future[int]:
    done = Future[int]()
    done.set_result(1)
    return done


FORBIDDEN: dict[str, Callable[[], Awaitable[object] | object]] = {
    "to_thread": lambda: asyncio.to_thread(print),
    "executor": lambda: running().run_in_executor(None, print),
    "connection": lambda: asyncio.open_connection("localhost", 1),
    "server": lambda: asyncio.start_server(print, "localhost", 0),
    "subprocess": lambda: asyncio.create_subprocess_exec("true"),
    "shell": lambda: asyncio.create_subprocess_shell("true"),
    "wrap_future": lambda: asyncio.wrap_future(done_in_a_thread()),
    "lookup": lambda: running().getaddrinfo("localhost", 1),
    "signals": lambda: running().add_signal_handler(2, print),
    "by hand": lambda: running().run_until_complete(None),
    "stop": lambda: running().stop(),
    "close": lambda: running().close(),
    "task factory": lambda: running().set_task_factory(None),
    "exception handler": lambda: running().set_exception_handler(None),
}


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("swallowed", [True, False])
def test_what_a_replay_could_not_repeat_is_refused(what: str, swallowed: bool) -> None:
    """The refusal is remembered: code that swallows it is stuck all the same."""

    async def flow(ctx: Context) -> str:
        try:
            found = FORBIDDEN[what]()
            if isinstance(found, Awaitable):
                await found
        except BaseException:
            if not swallowed:
                raise
        return "done"

    bench = Bench(flow)
    assert "do it in a step" in str(bench.stuck)
    assert bench.types() == ["WorkflowStarted"]


def test_a_socket_on_the_loop_is_refused() -> None:
    async def flow(ctx: Context) -> None:
        with socket.socket() as connection:
            await running().sock_connect(connection, ("localhost", 1))

    assert "sock_connect" in str(Bench(flow).stuck)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_task_of_a_library_has_the_line_of_its_creator(depth: int) -> None:
    """A client of HTTP connects in tasks of anyio; beside it, other tasks of the run wait."""

    async def in_groups(depth: int) -> None:
        async with anyio.create_task_group() as group:
            if depth:
                group.start_soon(in_groups, depth - 1)
            else:
                group.start_soon(asyncio.open_connection, "127.0.0.1", 1)

    async def fetch() -> None:
        await in_groups(depth)

    async def flow(ctx: Context) -> None:
        await asyncio.gather(work(1), fetch())

    assert re.match(r"\S*test_guard\.py:\d+ in in_groups: loop\.\w+\(\) ", str(Bench(flow).stuck))


def test_a_connection_of_anyio_has_the_line_of_the_code() -> None:
    async def flow(ctx: Context) -> None:
        await anyio.connect_tcp("127.0.0.1", 1)

    stuck = str(Bench(flow).stuck)
    assert re.match(r"\S*test_guard\.py:\d+ in flow: loop\.create_connection\(\) ", stuck)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_anyio_leaves_the_run_stuck() -> None:
    done = threading.Event()

    async def flow(ctx: Context) -> None:
        await anyio.to_thread.run_sync(done.set)

    bench = Bench(flow)
    assert bench.stuck is not None
    for thread in threading.enumerate():
        if isinstance(thread, WorkerThread):  # it ends with the run's task, which never ends
            thread.stop()
            thread.join(60)  # its error belongs to this test


def test_a_future_of_a_thread_leaves_the_run_stuck() -> None:
    result: Future[int] = Future()

    async def flow(ctx: Context) -> int:
        return await asyncio.wrap_future(result)

    bench = Bench(flow)
    assert bench.stuck is not None
    result.set_result(1)


def test_code_calls_its_own_loop_as_a_thread_would() -> None:
    """As libraries do that cannot know who calls them. It is `call_soon`, in order with others."""

    async def flow(ctx: Context) -> list[int]:
        found: list[int] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(found.append, 1)
        loop.call_soon_threadsafe(found.append, 2)
        loop.call_soon(found.append, 3)
        await work(1)
        return found

    bench = Bench(flow)
    bench.complete("work", 1)
    bench.settle()
    assert bench.output == [1, 2, 3]


def test_calls_from_other_threads_are_refused_and_remembered() -> None:
    async def flow(ctx: Context) -> int:
        return await work(1)

    bench = Bench(flow)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(bench.turn.instance.loop.call_soon_threadsafe, print)
        assert isinstance(call.exception(), RuntimeError)
    bench.complete("work", 1)
    bench.settle()
    assert "thread" in str(bench.stuck)


def test_anyio_works_on_the_loop() -> None:
    async def flow(ctx: Context) -> list[object]:
        found: list[object] = []

        async def one(item: int) -> None:
            found.append(await work(item))

        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as group:
                for item in range(3):
                    group.start_soon(one, item)
        with anyio.move_on_after(5):
            await anyio.sleep(60)
            found.append("slept")
        return [*found, scope.cancelled_caught]

    bench = Bench(flow)
    for place, key in enumerate(list(bench.starts)):
        bench.complete(key, place)
        bench.settle()
    bench.pass_time(5)
    bench.resume()
    bench.settle()
    assert bench.output == [0, 1, 2, False]


def test_an_abandoned_async_generator_is_dropped_and_reported() -> None:
    cleaned: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append("late")

    async def flow(ctx: Context) -> None:
        async for _ in numbers():
            break
        await work(1)

    bench = Bench(flow)
    gc.collect()
    bench.complete("work")
    bench.settle()
    assert any("aclosing" in problem for problem in bench.problems)
    assert cleaned == []


def test_a_task_that_the_loop_did_not_make_takes_no_durable_call() -> None:
    """Trap 17. A closed run does not know it: its cleanup would call plainly, when collected."""

    async def branch() -> None:
        try:
            await work(1)
        finally:
            await work(2)

    async def flow(ctx: Context) -> None:
        await asyncio.Task(branch())

    bench = Bench(flow)
    assert bench.starts == []
    assert "create_task" in str(bench.stuck)


_has_factory = pytest.mark.skipif(sys.version_info < (3, 12), reason="no task is eager")


@pytest.mark.parametrize("by_factory", [False, pytest.param(True, marks=_has_factory)])
def test_an_eager_task_is_one_of_the_loop_and_begins_later(by_factory: bool) -> None:
    begun: list[object] = []

    async def branch(number: int) -> int:
        begun.append(number)
        return await work(number)

    async def flow(ctx: Context) -> list[int]:
        forms, loop = cast("Any", asyncio), cast("Any", asyncio.get_running_loop())
        if by_factory:
            tasks = [forms.eager_task_factory(loop, branch(number)) for number in range(2)]
        else:  # as `asyncio.create_task(…, eager_start=True)` from Python 3.14 on
            tasks = [loop.create_task(branch(number), eager_start=True) for number in range(2)]
        begun.append("made")
        return await asyncio.gather(*tasks)

    bench = Bench(flow)
    assert begun == ["made", 0, 1]
    for place, key in enumerate(list(bench.starts)):
        bench.complete(key, place)
    bench.settle()
    assert bench.output == [0, 1]


@_has_factory
def test_eager_tasks_of_other_loops_begin_at_once() -> None:
    async def main() -> list[str]:
        begun: list[str] = []

        async def note(text: str) -> None:
            begun.append(text)

        asyncio.get_running_loop().set_task_factory(cast("Any", asyncio).eager_task_factory)
        task = asyncio.create_task(note("a task"))
        async with anyio.create_task_group() as group:
            group.start_soon(note, "one of anyio")
            begun.append("made")
        await task
        return begun

    assert asyncio.run(main()) == ["a task", "made", "one of anyio"]  # anyio is never eager


def test_an_ended_run_is_freed_without_the_collector() -> None:
    """A worker ends thousands of runs a second: none may be left to the collector."""

    async def flow(ctx: Context) -> None:
        ctx.handle_update("add", lambda item: None)
        ctx.set_value("progress", await work(1))

    gc.collect()
    gc.disable()
    try:
        bench = Bench(flow)
        code = weakref.ref(bench.turn.instance.loop)
        bench.complete("work", 1)
        bench.settle()
        assert bench.ended == "completed"
        bench.made.remove(bench.turn)
        bench.started.clear()
        del bench.turn
        assert code() is None
    finally:
        gc.enable()


def test_a_drain_leaves_the_interpreters_hooks_and_loop_as_they_were() -> None:
    async def flow(ctx: Context) -> None:
        await work(1)

    async def main() -> None:
        loop, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        entered = loop.create_future()
        loop.call_soon(lambda: entered.set_result(Bench(flow)))
        bench = await entered
        assert asyncio.get_running_loop() is loop
        assert sys.get_asyncgen_hooks() == hooks
        bench.turn.abandon()

    asyncio.run(main())


def test_a_closed_run_takes_no_durable_call_and_leaks_no_task() -> None:
    """Trap 17."""
    cleanup: list[str] = []

    async def flow(ctx: Context) -> str:
        async def branch(name: str) -> None:
            try:
                await work(1)
            finally:
                cleanup.append(name)
                for call in (
                    lambda: work(2),
                    lambda: ctx.sleep(1),
                    lambda: ctx.wait_for_signal("x"),
                    lambda: asyncio.sleep(1),
                ):
                    with contextlib.suppress(Exception):
                        await call()  # Evicted is not an Exception: it ends the cleanup
                    cleanup.append("never")

        await asyncio.gather(branch("a"), branch("b"))
        return "done"

    bench = Bench(flow)
    bench.turn.abandon()
    bench.turn.abandon()
    assert cleanup == ["a", "b"]
    bench.take(bench.turn.wake())
    assert bench.commit_due is None
    assert bench.effects.start == ()
    loop = bench.turn.instance.loop
    assert loop.is_closed()
    gc.collect()
    assert asyncio.all_tasks(loop) == set()
    assert cleanup == ["a", "b"]
    bench.crash()
    assert bench.starts == ["branch/work", "branch#2/work"]


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: asyncio.get_running_loop().create_future(),
        lambda ctx: asyncio.create_task(asyncio.sleep(0)),
        lambda ctx: asyncio.get_running_loop().call_later(1, print),
        lambda ctx: ctx.set_value("x", 1),
        lambda ctx: ctx.patched("x"),
        lambda ctx: elsewhere(1),
        lambda ctx: ctx.handle_update("x", lambda item: None),
    ],
)
def test_a_closed_run_carries_out_no_call(call: Callable[[Context], object]) -> None:
    """Trap 17. It raises no error either: code that catches all would try again for ever."""
    went_on: list[str] = []

    async def flow(ctx: Context) -> None:
        try:
            await work(1)
        except BaseException:
            call(ctx)
            went_on.append("once")
            await asyncio.sleep(1)
            went_on.append("never")

    bench = Bench(flow)
    bench.settle()
    log, tasks = list(bench.log), len(bench.turn.instance.loop.tasks)
    bench.turn.abandon()
    assert went_on == ["once"]
    assert tasks == 1
    assert bench.stuck is None
    assert bench.commit_due is None
    loop, timers = bench.turn.instance.loop, bench.turn.instance.timers
    assert (loop.tasks, timers.live, loop.problems) == ([], {}, [])
    gc.collect()
    assert asyncio.all_tasks(loop) == set()
    bench.crash()
    bench.settle()
    assert [event for event in bench.log if event.type != "WorkerLost"] == log


SWALLOWED: dict[str, Callable[[Context], Awaitable[object]]] = {
    "step": lambda ctx: work(1),
    "ctx.step": lambda ctx: ctx.step("named", print),
    "activity": lambda ctx: elsewhere(1),
    "child": lambda ctx: child_of(ctx),
    "approval": lambda ctx: ctx.request_approval("continue?"),
    "ctx.sleep": lambda ctx: ctx.sleep(5),
    "sleep": lambda ctx: asyncio.sleep(5),
    "signal": lambda ctx: ctx.wait_for_signal("go", timeout=5),
    "timeout": lambda ctx: asyncio.wait_for(work(1), 5),
    "gather": lambda ctx: asyncio.gather(work(1), work(2)),
    "wait": lambda ctx: asyncio.wait([asyncio.ensure_future(work(1))]),
    "task": lambda ctx: asyncio.create_task(asyncio.sleep(5)),
    "event": lambda ctx: asyncio.Event().wait(),
    "anyio": lambda ctx: anyio.sleep(5),
    "generator": lambda ctx: first_of(tokens()),
    "value": lambda ctx: set_and_sleep(ctx),
}


async def tokens() -> AsyncGenerator[int, None]:
    while True:
        try:
            yield await work(1)
        except BaseException:
            await work(2)


async def first_of(items: AsyncGenerator[int, None]) -> int | None:
    async for item in items:
        return item
    return None


async def child_of(ctx: Context) -> object:
    return await (await ctx.start_child("other")).result()


async def set_and_sleep(ctx: Context) -> None:
    ctx.set_value("x", 1)
    async with asyncio.timeout(5):
        await work(1)


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("way", SWALLOWED)
def test_code_that_catches_everything_in_a_loop_is_abandoned(way: str) -> None:
    """Trap 17. Its number of tries is limited, whatever it awaits."""
    tries = 0

    async def flow(ctx: Context) -> None:
        nonlocal tries
        while True:
            with contextlib.suppress(BaseException):
                tries += 1
                if tries > 100_000:
                    os._exit(1)  # nothing else would end it
                await SWALLOWED[way](ctx)

    bench = Bench(flow)
    bench.turn.abandon()
    assert 1 < tries < 10_000
    bench.turn.abandon()
    gc.collect()
    assert bench.turn.instance.loop.is_closed()


def test_code_that_will_not_die_does_not_hang_the_worker() -> None:
    """Trap 17. Neither when it is closed nor when the interpreter ends."""
    code = """
import asyncio
from tests.runtime.bench import Bench

async def stubborn():
    future = asyncio.get_running_loop().create_future()
    while True:
        try:
            await future
        except BaseException:
            pass

async def flow(ctx):
    asyncio.get_running_loop().call_later(60, print)
    await stubborn()

Bench(flow).turn.abandon()
print("alive")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=90, text=True)
    assert found.stdout == "alive\n", found.stderr
    assert found.returncode == 0


def test_cleanup_leaves_no_context_variable_behind() -> None:
    """Trap 17. Each run starts in an empty context, and closes in one of its own."""
    variable = contextvars.ContextVar("variable", default="worker")
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        seen.append(variable.get())
        variable.set("run")
        try:
            await work(1)
        finally:
            variable.set("cleanup")

    variable.set("driver")
    bench = Bench(flow)
    bench.turn.abandon()
    assert seen == ["worker"]
    assert variable.get() == "driver"


def test_hashes_of_tasks_are_the_same_in_each_execution_and_differ_within_one() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(work(1), work(2))

    first, again = Bench(flow), Bench(flow)
    hashes = [[hash(task) for task in bench.turn.instance.loop.tasks] for bench in (first, again)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 3


def test_a_determinism_error_is_not_an_exception() -> None:
    """S6. `except Exception` in workflow code cannot swallow it."""
    assert not issubclass(DeterminismError, Exception)
