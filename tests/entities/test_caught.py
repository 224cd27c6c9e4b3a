"""Exceptions that the methods of an entity handle, and what a retry has of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import App, Client, Context, Retry
from holdfast.errors import StepFailed
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.types import Event
from holdfast.worker import Worker

app = App("caught")
tries: list[str] = []


@app.step(retry=Retry.NEVER)
async def broken(text: str) -> None:
    raise OSError(text)


@app.step(retry=Retry.NEVER)
async def once(text: str) -> str:
    tries.append(text)
    if len(tries) == 1:
        raise OSError(text)
    return text


@app.step
async def note(text: str) -> str:
    return text


@app.entity
@dataclass
class Book:
    notes: int = 0

    async def write(self) -> int:
        self.notes += 1
        try:
            raise ValueError(self.notes)
        except ValueError:
            await note(str(self.notes))
        return self.notes


@app.workflow
async def beside(ctx: Context) -> None:
    await ctx.wait_for_signal("0")
    await asyncio.gather(broken("a"), return_exceptions=True)
    try:
        raise ValueError
    except ValueError:
        for number in range(1, 4):
            await ctx.wait_for_signal(str(number))


@app.workflow
async def again(ctx: Context) -> None:
    try:
        await once("a")
    except StepFailed as error:
        try:
            raise ValueError from error
        except ValueError:
            await note("b")
        raise


def caught(log: list[Event]) -> list[str]:
    return [each.key or "" for each in log if (each.key or "").startswith("caught:")]


async def test_an_error_of_a_step_is_no_context_of_what_the_code_raises_later() -> None:
    """Fault: the run's code ran where the worker handled it, and a replay found one less."""
    async with Environment(app, replay=False) as environment:
        handle = await environment.client.start(beside)
        for number in range(4):
            await environment.wait_until_idle()
            await handle.signal(str(number))
        await environment.result(handle)
        assert len(caught([each.event for each in await handle.log()])) == 1


async def test_each_call_of_an_entity_says_what_it_has_handled() -> None:
    """Fault: after a replay, as many calls as had handled one before said nothing."""
    store: Store = MemoryStore(wall_clock)
    await store.open()
    async with Client(store=store) as client:
        for _ in range(3):
            worker = Worker(app, store)
            await worker.start()
            await client.entity(Book, "a", timeout=8).write()
            await worker.stop(0)
        [listed] = (await client.runs.list(names="caught/Book")).runs
        log = [each.event for each in await client.handle(listed.run_id).log()]
        assert len(caught(log)) == 3
    await store.close()


async def test_a_retry_says_itself_what_its_code_has_handled() -> None:
    """Fault: entries of what had failed were copied, and hid as many bugs in the retry."""
    tries.clear()
    async with Environment(app) as environment:
        handle = await environment.client.start(again)
        with pytest.raises(Exception, match="once"):
            await environment.result(handle)
        assert len(caught([each.event for each in await handle.log()])) == 1
        retry = await environment.client.runs.retry(handle.run_id)
        retried = environment.client.handle(retry.run_id)
        await environment.result(retried)
        assert caught([each.event for each in await retried.log()]) == []
