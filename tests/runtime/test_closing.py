"""Closing a run that stands inside async generators: their clean-up has no effect, anywhere.

Each test also looks at what the run leaves behind: what is not closed with the run is closed by
the garbage collector, inside another run or outside of every run, where a step is an ordinary
function.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator

import pytest

from holdfast import Context
from holdfast.definitions.steps import Step
from tests.runtime.bench import Bench, Code

refunds: list[int] = []


@Step
async def refund(item: int) -> int:
    refunds.append(item)
    return item


@Step
async def work(item: int) -> int:
    raise AssertionError("the test gives the results")


class Nested:
    """An awaitable of the user's own around a coroutine."""

    def __init__(self, inner: Awaitable[object]) -> None:
        self.inner = inner

    def __await__(self) -> Generator[object, None, object]:
        return self.inner.__await__()


async def guarded() -> object:
    """What the clean-up of a run looks like: a refund after whatever went wrong."""
    try:
        return await work(1)
    except BaseException:
        await refund(1)
        raise


async def waits_inside() -> AsyncGenerator[object, None]:
    try:
        yield await guarded()
    except BaseException:
        await refund(2)
        raise


async def waits_at_yield() -> AsyncGenerator[object, None]:
    try:
        yield 1
        yield 2
    except BaseException:
        await refund(3)
        raise


async def nests(inner: AsyncGenerator[object, None]) -> AsyncGenerator[object, None]:
    try:
        async for item in inner:
            yield item
    finally:
        await refund(4)


@contextlib.asynccontextmanager
async def manages() -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await refund(5)
        raise


async def iterates(generator: AsyncGenerator[object, None]) -> None:
    async for _ in generator:
        await guarded()


async def iterates_closing(generator: AsyncGenerator[object, None]) -> None:
    async with contextlib.aclosing(generator):
        await iterates(generator)


async def in_manager() -> None:
    async with manages():
        await guarded()


async def in_a_cycle(generator: AsyncGenerator[object, None]) -> None:
    own = [generator]
    own.append(own)  # type: ignore[arg-type]
    try:
        await iterates(generator)
    finally:
        await guarded()


async def closes(generator: AsyncGenerator[object, None]) -> None:
    await anext(generator)
    await generator.aclose()


async def throws(generator: AsyncGenerator[object, None]) -> None:
    await anext(generator)
    await generator.athrow(ValueError("bad"))


async def leaves(generator: AsyncGenerator[object, None]) -> None:
    async for _ in generator:
        break
    await guarded()


async def ignores() -> AsyncGenerator[object, None]:
    while True:
        try:
            yield await work(1)
        except BaseException:
            await refund(6)


SHAPES: dict[str, Callable[[], Awaitable[object]]] = {
    "awaits inside": lambda: iterates(waits_inside()),
    "awaits inside, aclosing": lambda: iterates_closing(waits_inside()),
    "body": lambda: iterates(waits_at_yield()),
    "body, aclosing": lambda: iterates_closing(waits_at_yield()),
    "nested": lambda: iterates(nests(waits_inside())),
    "nested, aclosing": lambda: iterates_closing(nests(waits_inside())),
    "nested, body": lambda: iterates_closing(nests(waits_at_yield())),
    "manager": in_manager,
    "cycle": lambda: in_a_cycle(waits_inside()),
    "cycle, body": lambda: in_a_cycle(waits_at_yield()),
    "anext with a default": lambda: anext(waits_inside(), None),
    "in aclose()": lambda: closes(waits_at_yield()),
    "in athrow()": lambda: throws(waits_at_yield()),
    "left": lambda: leaves(waits_at_yield()),
    "own awaitable": lambda: Nested(guarded()),
    "own awaitable around a generator": lambda: Nested(iterates(waits_inside())),
    "stubborn": lambda: iterates(ignores()),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", [False, True])
def test_the_clean_up_of_a_run_that_is_let_go_has_no_effect(shape: str, tasks: bool) -> None:
    """Trap 17. Neither when it is closed, nor when the collector frees what it leaves."""

    async def flow(ctx: Context) -> None:
        if tasks:
            async with asyncio.TaskGroup() as group:
                group.create_task(guarded())
                group.create_task(_coroutine(SHAPES[shape]))
        else:
            await SHAPES[shape]()

    other: Bench | None = None

    async def collects(ctx: Context) -> None:
        gc.collect()
        await work(2)

    gc.collect()
    gc.disable()  # until the drain of another run
    refunds.clear()
    try:
        bench = Bench(flow)
        assert bench.starts
        due = bench.commit_due
        bench.turn.abandon()
        assert bench.commit_due is due
        bench.made.remove(bench.turn)
        del bench.turn, bench.started[:]
        other = Bench(collects)
    finally:
        gc.enable()
    assert other.starts == ["work"]
    assert other.stuck is None
    other.complete("work")
    other.settle()
    assert other.ended == "completed"
    assert other.problems == []
    gc.collect()
    assert refunds == []


async def _coroutine(make: Callable[[], Awaitable[object]]) -> object:
    return await make()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_clean_up_of_a_run_that_continues_is_durable(shape: str) -> None:
    """The same code, cancelled: its refunds are steps of the run."""

    async def flow(ctx: Context) -> object:
        return await SHAPES[shape]()

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.cancel_request())
    assert any("refund" in key for key in bench.starts) or shape == "left"
    bench.turn.abandon()
    assert bench.stuck is None


async def waits_for_a_signal(ctx: Context) -> None:
    await ctx.wait_for_signal("go", timeout="1h")


async def waits_for_a_step(ctx: Context) -> None:
    await work(1)


async def waits_for_time(ctx: Context) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("code", [waits_for_a_signal, waits_for_a_step, waits_for_time])
def test_a_closed_run_is_freed_without_the_garbage_collector(code: Code) -> None:
    bench = Bench(code)
    loop = weakref.ref(bench.turn.instance.loop)
    gc.disable()
    try:
        bench.turn.abandon()
        del bench.turn
        bench.made.clear()
        assert loop() is None
    finally:
        gc.enable()


def test_generators_of_the_main_program_keep_their_clean_up() -> None:
    """A drain hooks the generators that workflow code begins, and no others."""

    async def main() -> list[str]:
        cleaned: list[str] = []

        async def numbers() -> AsyncGenerator[int, None]:
            try:
                yield 1
                yield 2
            finally:
                cleaned.append("closed")

        generator = numbers()
        await anext(generator)

        async def flow(ctx: Context) -> None:
            await work(1)

        entered = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: entered.set_result(Bench(flow)))
        (await entered).turn.abandon()
        assert cleaned == []
        await generator.aclose()
        return cleaned

    assert asyncio.run(main()) == ["closed"]
