"""The interpreter inside the workflow that runs a random program."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any

from holdfast import Context
from holdfast.definitions.activities import Activity
from holdfast.definitions.steps import Step
from holdfast.retry import Retry

Program = list[Any]


def _recorded(name: str) -> Step[[Any], int]:
    def fn(at: object) -> int:
        raise AssertionError("the world gives the results")

    return Step(fn, name=name, retry=Retry())


def _remote(name: str) -> Activity[[Any], int]:
    def fn(at: object) -> int:
        raise AssertionError("the world gives the results")

    return Activity(fn, name=name)


ACTIVITIES = {name: _remote(name) for name in "abc"}
STEPS = {name: _recorded(name) for name in ("a", "b", "c", "time", "close", "callback")}


class Interpreter:
    """Runs a program's nodes; its tasks share a queue, a semaphore and the last value seen."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.trace: list[Any] = []
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.semaphores = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(1))
        self.last = 0
        self.background: list[asyncio.Task[Any]] = []

    async def block(self, program: Program, at: str) -> str:
        for place, (op, *rest) in enumerate(program):
            here = f"{at}.{place}"
            self.trace.append([here, op, "begin"])
            await getattr(self, f"do_{op}")(here, *rest)
            self.trace.append([here, op, "end"])
        return at

    def log(self, at: str, *seen: object) -> None:
        self.trace.append([at, *seen])

    def each(self, blocks: list[Program], at: str) -> list[Coroutine[Any, Any, str]]:
        return [self.block(block, f"{at}/{place}") for place, block in enumerate(blocks)]

    def tasks(self, blocks: list[Program], at: str) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(coroutine) for coroutine in self.each(blocks, at)]

    # Leaves

    async def do_step(self, at: str, name: str) -> None:
        self.last = await STEPS[name](at)
        self.log(at, self.last)

    async def do_adhoc(self, at: str, name: str) -> None:
        self.last = await self.ctx.step("adhoc", STEPS[name], at, id=f"own-{name}")
        self.log(at, self.last)

    async def do_sleep(self, at: str, delay: int) -> None:
        await asyncio.sleep(delay)

    async def do_sleep_until(self, at: str, delay: int) -> None:
        moment = self.ctx.now().replace(microsecond=0)
        await self.ctx.sleep_until(moment.replace(second=(moment.second + delay) % 60))

    async def do_signal(self, at: str, name: str, match: Any, timeout: int | None) -> None:
        try:
            self.log(at, await self.ctx.wait_for_signal(name, match=match, timeout=timeout))
        except TimeoutError:
            self.log(at, "timeout")

    async def do_event(self, at: str, pattern: str, timeout: int | None) -> None:
        try:
            event = await self.ctx.wait_for_event(pattern, timeout=timeout)
            self.log(at, event.id, event.payload)
        except TimeoutError:
            self.log(at, "timeout")

    async def do_subscribe(self, at: str, pattern: str) -> None:
        self.ctx.subscribe(pattern)

    async def do_time(self, at: str) -> None:
        self.log(at, await STEPS["time"](asyncio.get_running_loop().time()))

    async def do_chance(self, at: str) -> None:
        self.last = self.ctx.random.randrange(10)
        self.log(at, self.last, str(self.ctx.uuid()))

    async def do_set(self, at: str, name: str) -> None:
        self.ctx.set_value(name, at)

    async def do_yield(self, at: str) -> None:
        await asyncio.sleep(0)

    async def do_put(self, at: str) -> None:
        self.queue.put_nowait(at)

    async def do_get(self, at: str, delay: int) -> None:
        try:
            async with asyncio.timeout(delay + 1):
                self.log(at, await self.queue.get())
        except TimeoutError:
            self.log(at, "empty")

    async def do_fail(self, at: str) -> None:
        if self.last % 2:
            raise ValueError(at)

    # Work of others

    async def do_activity(self, at: str, name: str) -> None:
        self.last = await ACTIVITIES[name](at)
        self.log(at, self.last)

    async def do_by_name(self, at: str, name: str) -> None:
        self.last = await self.ctx.activity("far", at, type=int, id=f"far-{name}")
        self.log(at, self.last)

    async def do_let_go(self, at: str, name: str) -> None:
        ACTIVITIES[name](at)

    async def do_call_first(self, at: str, name: str, delay: int) -> None:
        call = ACTIVITIES[name](at)
        await asyncio.sleep(delay)
        self.log(at, await call)

    async def do_child(self, at: str, key: str | None) -> None:
        self.last = await self.ctx.child("child", at if key is None else "", type=int, key=key)
        self.log(at, self.last)

    async def do_handle(self, at: str, key: str | None, delay: int) -> None:
        handle = await self.ctx.start_child("child", at if key is None else "", type=int, key=key)
        try:
            self.log(at, await asyncio.wait_for(handle.result(), delay))
        except TimeoutError:
            handle.cancel()
            self.log(at, "too slow", str(handle.run_id))

    async def do_approve(self, at: str, timeout: int | None) -> None:
        try:
            decision = await self.ctx.request_approval(at, timeout=timeout)
            self.log(at, decision.approved, decision.by)
        except TimeoutError:
            self.log(at, "timeout")

    async def do_hook(self, at: str, timeout: int | None) -> None:
        """The same URL on each replay: a step has it as an argument."""
        hook = self.ctx.webhook("hook")
        await self.ctx.step("give", str, hook.url)
        try:
            self.log(at, await hook.received(timeout=timeout))
        except TimeoutError:
            self.log(at, "timeout")
            hook.close()

    async def do_patch(self, at: str, name: str) -> None:
        self.log(at, self.ctx.patched(name))

    async def do_send(self, at: str, name: str) -> None:
        self.ctx.signal_run(self.ctx.run_id, name, at)

    async def do_answer_u(self, at: str, block: Program) -> None:
        self._answer("u", at, block)

    async def do_answer_v(self, at: str, block: Program) -> None:
        self._answer("v", at, block)

    def _answer(self, name: str, at: str, block: Program) -> None:
        def check(payload: int) -> None:
            if payload % 5 == 0:
                raise ValueError(payload)

        async def answer(payload: int) -> str:
            self.log(at, payload)
            return await self.block(block, f"{at}u{payload}")

        self.ctx.handle_update(name, answer, validate=check)

    # Branches

    async def do_gather(self, at: str, blocks: list[Program]) -> None:
        self.log(at, await asyncio.gather(*self.each(blocks, at)))

    async def do_gather_all(self, at: str, blocks: list[Program]) -> None:
        found = await asyncio.gather(*self.each(blocks, at), return_exceptions=True)
        self.log(at, [repr(one) for one in found])

    async def do_group(self, at: str, blocks: list[Program]) -> None:
        async with asyncio.TaskGroup() as group:
            for coroutine in self.each(blocks, at):
                group.create_task(coroutine)

    async def do_first(self, at: str, blocks: list[Program]) -> None:
        _, pending = await self._wait(at, blocks, asyncio.FIRST_COMPLETED)
        self.background += pending

    async def do_all_or_error(self, at: str, blocks: list[Program]) -> None:
        _, pending = await self._wait(at, blocks, asyncio.FIRST_EXCEPTION)
        self.background += pending

    async def do_first_cancel(self, at: str, blocks: list[Program]) -> None:
        _, pending = await self._wait(at, blocks, asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
            self.log(at, ends(pending))

    async def do_wait(self, at: str, delay: int, blocks: list[Program]) -> None:
        _, pending = await self._wait(at, blocks, asyncio.ALL_COMPLETED, delay)
        for task in pending:
            task.cancel()

    async def _wait(
        self, at: str, blocks: list[Program], when: str, timeout: int | None = None
    ) -> tuple[set[asyncio.Task[str]], set[asyncio.Task[str]]]:
        done, pending = await asyncio.wait(
            self.tasks(blocks, at), return_when=when, timeout=timeout
        )
        self.log(at, ends(done), len(pending))
        return done, pending

    async def do_gatherings(self, at: str, blocks: list[Program]) -> None:
        """Wait for futures that are not tasks: those of gather(), and one made by hand."""
        made = [asyncio.gather(one) for one in self.each(blocks, at)]
        by_hand: asyncio.Future[list[str]] = asyncio.Future()
        by_hand.set_result([])
        futures = [by_hand, *made]
        done, pending = await asyncio.wait(futures, return_when=asyncio.ALL_COMPLETED, timeout=2)
        ended = [(futures.index(one), repr(one.exception())) for one in done if not one.cancelled()]
        self.log(at, ended, [futures.index(one) for one in pending])
        for one in pending:
            one.cancel()

    async def do_as_completed(self, at: str, blocks: list[Program]) -> None:
        await self._in_order(at, self.tasks(blocks, at))

    async def do_coroutines(self, at: str, blocks: list[Program]) -> None:
        await self._in_order(at, self.each(blocks, at))

    async def _in_order(self, at: str, awaitables: Iterable[Any]) -> None:
        for one in asyncio.as_completed(awaitables):
            try:
                self.log(at, await one)
            except Exception as error:
                self.log(at, repr(error))

    async def do_semaphore(self, at: str, blocks: list[Program]) -> None:
        at = f"{at}m"  # one inside another needs another semaphore, or it waits for itself
        semaphore = self.semaphores[at.count("m")]

        async def guarded(coroutine: Coroutine[Any, Any, str]) -> str:
            async with semaphore:
                self.log(at, "in")
                return await coroutine

        found = await asyncio.gather(
            *(guarded(one) for one in self.each(blocks, at)), return_exceptions=True
        )
        self.log(at, [repr(one) for one in found])

    # Limits

    async def do_timeout(self, at: str, delay: int, block: Program) -> None:
        try:
            async with asyncio.timeout(delay):
                await self.block(block, at)
        except TimeoutError:
            self.log(at, "timeout")

    async def do_wait_for(self, at: str, delay: int, block: Program) -> None:
        try:
            self.log(at, await asyncio.wait_for(self.block(block, at), delay))
        except TimeoutError:
            self.log(at, "timeout")

    async def do_cancel_later(self, at: str, delay: int, block: Program) -> None:
        task = asyncio.create_task(self.block(block, at))
        asyncio.get_running_loop().call_later(delay + 1, task.cancel)
        found = await asyncio.gather(task, return_exceptions=True)
        self.log(at, repr(found[0]))

    async def do_shield(self, at: str, block: Program) -> None:
        task = asyncio.create_task(self.block(block, at))
        self.background.append(task)
        await asyncio.shield(task)

    async def do_spawn(self, at: str, block: Program) -> None:
        self.background.append(asyncio.create_task(self.block(block, at)))

    # Flow

    async def do_finally(self, at: str, block: Program, cleanup: Program) -> None:
        try:
            await self.block(block, at + "t")
        finally:
            self.log(at, "cleanup")
            await self.block(cleanup, at + "f")

    async def do_except(self, at: str, block: Program, handler: Program) -> None:
        try:
            await self.block(block, at + "t")
        except Exception as error:
            self.log(at, repr(error))
            await self.block(handler, at + "e")

    async def do_except_base(self, at: str, block: Program, handler: Program) -> None:
        try:
            await self.block(block, at + "t")
        except BaseException as error:
            self.log(at, type(error).__name__)
            await self.block(handler, at + "e")
            raise

    async def do_swallow(self, at: str, block: Program, rest: Program) -> None:
        try:
            await self.block(block, at + "t")
        except asyncio.CancelledError:
            self.log(at, "swallowed")
        await self.block(rest, at + "s")

    async def do_if(self, at: str, even: Program, odd: Program) -> None:
        await self.block(odd if self.last % 2 else even, f"{at}{self.last % 2}")

    async def do_generator(self, at: str, block: Program) -> None:
        async def produce() -> AsyncGenerator[tuple[int, str], None]:
            try:
                for place in range(2):
                    yield place, await self.block(block, f"{at}g{place}")
            finally:
                self.log(at, "closed")
                await STEPS["close"](at)

        async with contextlib.aclosing(produce()) as products:
            async for place, product in products:
                self.log(at, place, product)
                if self.last % 3 == 1:
                    break

    async def do_callback(self, at: str, block: Program) -> None:
        def spawn(_: object) -> None:
            loop = asyncio.get_running_loop()
            self.background.append(loop.create_task(self.block(block, at)))

        task = asyncio.create_task(STEPS["callback"](at))
        task.add_done_callback(spawn)
        await asyncio.wait([task])


def ends(tasks: Iterable[asyncio.Task[Any]]) -> list[tuple[str, str]]:
    """Describe what became of tasks, in the order in which a set gives them."""
    return [
        (
            task.get_name(),
            "cancelled" if task.cancelled() else repr(task.exception() or task.result()),
        )
        for task in tasks
        if task.done()
    ]
