"""Notification: who is told what."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from holdfast.store.port import Store
from holdfast.types import Notice

from .actors import ManualWorker, get, start, told


async def test_a_listener_is_called_back_on_its_loop(store: Store) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()
    stop = await store.listen("work", received.put_nowait)
    await store.notify([Notice("worker/ann", "x"), Notice("work", "a"), Notice("work", "b")])
    async with asyncio.timeout(60):
        assert [await received.get(), await received.get()] == ["a", "b"]
    assert received.empty()
    await stop()


async def test_every_listener_of_a_topic_hears_it_until_it_stops(store: Store) -> None:
    first: asyncio.Queue[str] = asyncio.Queue()
    second: asyncio.Queue[str] = asyncio.Queue()
    stop_first = await store.listen("work", first.put_nowait)
    stop_second = await store.listen("work", second.put_nowait)
    async with asyncio.timeout(60):
        await store.notify([Notice("work", "a")])
        assert (await first.get(), await second.get()) == ("a", "a")
        await stop_first()
        await store.notify([Notice("work", "b")])
        assert await second.get() == "b"
    assert first.empty()
    await stop_second()


async def test_a_notice_without_a_listener_is_nothing(store: Store) -> None:
    await store.notify([Notice("client/nobody", str(uuid4()))])
    await store.notify([])


async def test_who_waits_for_an_end_is_told_once_it_comes(store: Store, ann: ManualWorker) -> None:
    """A run that has ended already is answered at once: no end falls between."""
    ended = await start(store)
    await ann.finish(await ann.take(), output="1")
    running, missing = await start(store), uuid4()
    answer = await store.wait_for_end("client/1", [ended, running, missing])
    assert answer == {ended: await get(store, ended)}
    assert await store.wait_for_end("client/1", [running]) == {}
    finished = await ann.finish(await ann.take())
    assert finished.notices == [told("client/1", running)]


async def test_an_output_too_large_to_tell_is_left_to_be_read(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store, waiter="client/1")
    finished = await ann.finish(await ann.take(), output=f'"{"x" * 7000}"')
    assert finished.notices == [told("client/1", run_id, None)]
    await store.notify(finished.notices)


async def test_no_end_falls_between_looking_and_waiting(store: Store, ann: ManualWorker) -> None:
    """A client that registers while the run ends sees the end or is told of it."""
    for _ in range(20):
        run_id = await start(store)
        task = await ann.take()
        known, finished = await asyncio.gather(
            store.wait_for_end("client/1", [run_id]), ann.finish(task)
        )
        assert known or finished.notices == [told("client/1", run_id)]


async def test_a_topic_that_is_forgotten_is_not_told(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, waiter="client/1")
    await store.wait_for_end("client/2", [run_id])
    await store.forget_waits("client/1")
    assert (await ann.finish(await ann.take())).notices == [told("client/2", run_id)]


async def test_opening_and_closing_twice_is_harmless(store: Store) -> None:
    await store.open()
    assert await store.now() > 0
    await store.close()
    await store.close()
