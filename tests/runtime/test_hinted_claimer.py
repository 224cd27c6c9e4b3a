"""A claimer with hints: what it reads in vain it passes on, and it polls seldom while they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.store.memory import MemoryStore
from holdfast.types import Claims, Notice
from holdfast.worker import WorkerOptions, hinted_claimer
from holdfast.worker.clock import EngineClock
from holdfast.worker.hinted_claimer import HintedClaimer
from tests.runtime.desk import info

HINT = Notice("starts", "default")


class Hints:
    """A reader that is given its hints."""

    def __init__(self) -> None:
        self.suffices = True
        self.coming: asyncio.Queue[list[Notice]] = asyncio.Queue()
        self.done_with = 0
        self.passed_on: list[Notice] = []
        self.closed = False
        self.left: Sequence[Notice] = ()

    async def read(self) -> Sequence[Notice]:
        return await self.coming.get()

    async def done(self) -> None:
        self.done_with += 1

    async def pass_on(self, hints: Sequence[Notice]) -> bool:
        self.passed_on += hints
        return self.suffices

    async def close(self) -> Sequence[Notice]:
        self.closed = True
        return self.left


class HeldClaims(MemoryStore):
    """A store whose claims wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Semaphore(0), asyncio.Event()

    async def claim_tasks(self, *arguments: object, **options: object) -> Claims:
        self.asked.release()
        await self.answer.wait()
        return await super().claim_tasks(*arguments, **options)  # type: ignore[arg-type]


def claiming(store: MemoryStore, hints: Hints, told: list[Notice]) -> HintedClaimer:
    return HintedClaimer(
        hints,
        store,
        replace(info(), handlers=("a/b@1",), concurrency=10),
        WorkerOptions(lease_seconds=30, poll_seconds=3600),
        EngineClock(),
        told.extend,
        lambda deadline: None,
    )


async def test_a_hint_that_was_on_its_way_is_passed_on_at_the_stop() -> None:
    store, hints, told = MemoryStore(), Hints(), list[Notice]()
    claimer = claiming(store, hints, told)
    await claimer.start({})
    hints.left = [HINT]
    await claimer.stop()
    assert told == [HINT]


async def test_a_hint_that_was_read_in_vain_is_passed_on_at_the_stop() -> None:
    """Another worker looks at once, and not when it polls."""
    store, hints, told = HeldClaims(), Hints(), list[Notice]()
    await store.open()
    claimer = claiming(store, hints, told)
    await claimer.start({})
    async with asyncio.timeout(30):
        await store.asked.acquire()
        hints.coming.put_nowait([HINT])
        while not hints.coming.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        stopping = asyncio.create_task(claimer.stop())
        while not hints.closed:
            await asyncio.sleep(0)
        assert told == [HINT]
        store.answer.set()
        await stopping
    assert told == [HINT]


async def test_a_hint_that_was_looked_at_is_not_passed_on() -> None:
    store, hints, told = HeldClaims(), Hints(), list[Notice]()
    await store.open()
    store.answer.set()
    claimer = claiming(store, hints, told)
    await claimer.start({})
    async with asyncio.timeout(30):
        for _ in range(3):
            hints.coming.put_nowait([HINT])
        while hints.done_with < 3:
            await asyncio.sleep(0)
    await claimer.stop()
    assert (told, hints.passed_on) == ([], [])


async def test_a_hint_of_more_work_than_fits_is_passed_on() -> None:
    """Through PostgreSQL if Redis takes no hint."""
    store, hints, told = HeldClaims(), Hints(), list[Notice]()
    await store.open()
    claimer = claiming(store, hints, told)
    held = [0] * 9
    claimer.room.count(held)
    await claimer.start({})
    async with asyncio.timeout(30):
        await store.asked.acquire()
        held.append(0)  # while it claims, its last place is taken
        store.answer.set()
        hints.coming.put_nowait([HINT])
        while not hints.passed_on:
            await asyncio.sleep(0)
        assert told == []
        hints.passed_on.clear()
        hints.suffices = False
        held.pop()
        claimer.room.freed()
        await store.asked.acquire()
        hints.coming.put_nowait([HINT])
        held.append(0)
        while not told:
            await asyncio.sleep(0)
    await claimer.stop()
    assert (told, hints.passed_on) == ([HINT], [HINT])


async def test_a_busy_worker_passes_hints_on_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """While all are busy, each hint that is passed on costs a claim and leads to the next."""
    monkeypatch.setattr(hinted_claimer, "_BETWEEN_SECONDS", 3600.0)
    store, hints, told = HeldClaims(), Hints(), list[Notice]()
    await store.open()
    store.answer.set()
    claimer = claiming(store, hints, told)
    held = [0] * 10
    claimer.room.count(held)
    await claimer.start({})
    async with asyncio.timeout(30):
        for _ in range(2):
            held.pop()
            claimer.room.freed()
            await store.asked.acquire()
            hints.coming.put_nowait([HINT])
            while not hints.coming.empty():
                await asyncio.sleep(0)
            held.append(0)
            for _ in range(20):
                await asyncio.sleep(0)
    assert (hints.passed_on, told) == ([HINT], [])
    await claimer.stop()
    assert (hints.passed_on, told) == ([HINT], [HINT])


async def test_it_polls_seldom_only_while_hints_and_notifications_come() -> None:
    store, hints, told = HeldClaims(), Hints(), list[Notice]()
    await store.open()
    store.answer.set()
    claimer = claiming(store, hints, told)
    for _ in range(20):  # the pauses grow
        await claimer.run_once({})
    assert claimer._pause == 2.5 * 3600
    hints.suffices = False
    await claimer.run_once({})
    assert claimer._pause == 3600
