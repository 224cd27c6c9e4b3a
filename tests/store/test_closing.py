"""Closing continues although its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.store.closing import to_the_end
from holdfast.store.postgres import PostgresStore


async def test_work_is_done_to_its_end_before_the_cancellation_is_raised() -> None:
    done, told, may_end = list[str](), list[str](), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.append("all of it")

    task = asyncio.create_task(to_the_end(work(), lambda: told.append("end of grace")))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (done, told) == (["all of it"], ["end of grace"] * 3)


async def test_the_error_of_work_whose_caller_was_cancelled_is_the_cause() -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("no")

    task = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert isinstance(raised.value.__cause__, ValueError)


async def test_the_error_of_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await to_the_end(work())


def test_the_end_of_the_loop_cuts_work_off() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut off")

    async def main() -> None:
        asyncio.create_task(to_the_end(work())).add_done_callback(lambda _: None)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert ends == ["cut off"]


async def test_a_store_is_closed_although_its_closing_is_cancelled(database_url: str) -> None:
    """As in a scope of anyio: connections would stay open as long as the program lives."""
    store = PostgresStore(database_url)
    await store.open()
    await store.listen("shop", lambda _: None)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert store._database._pool is None
