"""The watchdog of a worker that is part of a program: it gives back, and ends no process."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.store.memory import MemoryStore
from holdfast.types import Committed, Notice, Release, TurnCommit
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.giving_back import GivenUp, MessageEnds
from holdfast.worker.watchdog import Process, ThreadClock, Watchdog

app = App("watched", blocking_limit="300ms")
given_back = threading.Event()


@app.step
def double(number: int) -> int:
    return 2 * number


@app.workflow
async def holds(ctx: Context) -> bool:
    return given_back.wait(60)


@app.workflow
async def neighbour(ctx: Context) -> int:
    return await double(21)


charges: list[int] = []
second_steps: list[int] = []


@app.step
async def charge(number: int) -> int:
    charges.append(number)
    return number


@app.workflow
async def charges_and_holds(ctx: Context) -> int:
    receipt = await charge(7)
    given_back.wait(60)
    return receipt


@app.step
async def first(number: int) -> int:
    return number


@app.step
async def second(number: int) -> int:
    second_steps.append(number)
    return number


@app.workflow
async def between_steps(ctx: Context) -> int:
    return await second(await first(7))


class Watched(MemoryStore):
    """Tells what the watchdog gives back; its threads open and close the store again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: list[Release] = []

    async def close(self) -> None:
        """Stay open."""

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        notices = await super().release_tasks(worker_id, releases)
        self.stuck += [release for release in releases if release.stuck]
        if self.stuck:
            given_back.set()
        return notices


async def test_a_run_that_holds_the_loop_is_given_back_and_the_worker_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given_back.clear()
    store = Watched()
    worker = Worker(
        app,
        store,
        WorkerOptions(poll_seconds=0.02, grace_seconds=1e6),
        heartbeat_store=lambda: store,
    )
    await worker.start()
    try:
        async with Client(store=store) as client:
            run = await client.start(holds)
            while not store.stuck:
                await asyncio.sleep(0.01)
            assert await (await client.start(neighbour)).result(timeout=60) == 42
            [release] = store.stuck
            assert release.run_id == run.run_id
            assert "in holds" in (release.stuck or "")
            assert (await run.get()).state == "stuck"
            while "free again" not in caplog.text:
                await asyncio.sleep(0.01)
    finally:
        await worker.stop(0)
    warnings = [record for record in caplog.records if "held the event loop" in record.message]
    assert len(warnings) == 1


async def test_the_frames_of_a_thread_are_left_alone_while_its_event_loop_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To walk them costs time, and an interpreter may not survive it every time."""
    walks: list[threading.Thread] = []
    others = threading.enumerate()  # an earlier test may have left a watchdog
    real = sys._current_frames

    def current_frames() -> dict[int, FrameType]:
        if (thread := threading.current_thread()) not in others:
            walks.append(thread)
        return real()

    monkeypatch.setattr(sys, "_current_frames", current_frames)
    given_back.clear()
    store = Watched()
    worker = Worker(app, store, WorkerOptions(grace_seconds=1e6), heartbeat_store=lambda: store)
    await worker.start()
    try:
        async with Client(store=store) as client:
            assert await (await client.start(neighbour)).result(timeout=60) == 42
            await asyncio.sleep(1.5)
            walked = len(walks)  # a busy machine may delay an answer once
            await client.start(holds)
            while not store.stuck:
                await asyncio.sleep(0.01)
    finally:
        await worker.stop(0)
    assert walked <= 2, "of six looks"
    assert len(walks) > walked


class LateAnswers(Watched):
    """Answers the commit of the first step when the watchdog has given back what rests."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = asyncio.Event()

    async def commit(self, worker_id: str, token: UUID, parts: Sequence[TurnCommit]) -> Committed:
        answer = await super().commit(worker_id, token, parts)
        is_first = any(event.key == "first" for part in parts for event in part.events)
        if is_first and not self.recorded.is_set():
            self.recorded.set()
            while not given_back.is_set():
                await asyncio.sleep(0.001)
        return answer


async def test_a_run_that_was_given_back_between_two_steps_starts_none_here_any_more() -> None:
    """Its lease is another's by then: the step would run here and there."""
    given_back.clear()
    second_steps.clear()
    store = LateAnswers()
    worker = Worker(
        app,
        store,
        WorkerOptions(poll_seconds=0.02, grace_seconds=1e6),
        heartbeat_store=lambda: store,
    )
    await worker.start()
    try:
        async with Client(store=store) as client:
            run = await client.start(between_steps)
            await store.recorded.wait()
            await client.start(holds)
            assert await run.result(timeout=60) == 7
    finally:
        await worker.stop(0)
    assert second_steps == [7]


async def test_the_result_of_a_step_is_recorded_before_its_run_is_given_back() -> None:
    """The code that holds the loop has it; no try after that must make the call again."""
    given_back.clear()
    charges.clear()
    store = Watched()
    worker = Worker(
        app,
        store,
        WorkerOptions(poll_seconds=0.02, grace_seconds=60),
        heartbeat_store=lambda: store,
    )
    await worker.start()
    try:
        async with Client(store=store) as client:
            run = await client.start(charges_and_holds)
            await asyncio.to_thread(given_back.wait, 60)
            log = [entry.event.type for entry in await run.log()]
            assert log == ["WorkflowStarted", "StepCompleted"]
            store.advance(3600)  # it is tried again
            assert await run.result(timeout=60) == 7
    finally:
        await worker.stop(0)
    assert charges == [7]


class HoldsNothing:
    """A holder without leases."""

    def give_up(self) -> list[GivenUp]:
        return []

    give_up_idle = give_up

    def give_up_messages(self) -> MessageEnds:
        return MessageEnds()

    def give_up_stuck(self, run_id: UUID, reason: str, pause_seconds: float) -> None:
        return None

    def forget_given_up(self) -> None:
        pass


def test_only_time_in_which_a_thread_works_or_sleeps_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = cpu = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: wall)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: cpu)
    clock = ThreadClock(threading.get_ident())
    for passed, worked, spent in (
        (0.25, 0.25, 0.25),  # it computes
        (0.25, 0.0, 0.25),  # it sleeps, or waits for the network
        (0.25, 0.05, 0.05),  # others have the processor
        (3600.0, 0.0, 0.5),  # the machine was suspended, or the process stopped
    ):
        wall, cpu = wall + passed, cpu + worked
        assert clock.spent() == pytest.approx(spent)
        assert clock.passed == pytest.approx(min(passed, 0.5))


def test_a_busy_machine_does_not_lengthen_the_grace_period_of_a_stop() -> None:
    """The held thread gets a tenth of a processor; who asked does not wait ten times as long."""
    ended: list[bool] = []

    class Ends(Process):
        def end(self) -> None:
            ended.append(True)

    loop = asyncio.new_event_loop()  # nobody runs it: it is held
    dog = Watchdog(
        "held",
        MemoryStore,
        HoldsNothing(),
        Ends(),
        end_heartbeat=lambda: None,
        executing=lambda: False,
        is_left=lambda: False,
        grace_seconds=60,
    )
    dog._loop, dog._watched = loop, threading.get_ident()
    dog.expect_end(30)
    looks = 0
    while not ended:
        dog._look(spent=0.25, passed=2.5, answers=False)
        looks += 1
    loop.close()
    assert looks <= 30, "12 for the grace period, 20 to be sure that the loop is held"


def test_no_heartbeat_signs_a_worker_on_again_that_was_signed_off() -> None:
    """One that is under way when the worker is given up is waited for."""
    happened: list[str] = []

    class Ends(Process):
        def end(self) -> None:
            happened.append("end of the process")

    class Recording(MemoryStore):
        async def remove_worker(self, worker_id: str, *, with_messages: bool = False) -> None:
            happened.append("signed off")

    def end_heartbeat() -> None:
        happened.append("end of heartbeats")

    loop = asyncio.new_event_loop()
    dog = Watchdog(
        "held",
        Recording,
        HoldsNothing(),
        Ends(),
        end_heartbeat=end_heartbeat,
        executing=lambda: False,
        is_left=lambda: False,
        grace_seconds=60,
    )
    dog._loop, dog._watched = loop, threading.get_ident()
    dog.expect_end(0)
    while "end of the process" not in happened:
        dog._look(spent=0.25, passed=0.25, answers=False)
    loop.close()
    assert happened == ["end of heartbeats", "signed off", "end of the process"]


def test_a_process_ends_whose_worker_was_not_stopped_when_its_loop_was_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stop has failed, say: the thread of a step would hold the process."""
    monkeypatch.setattr("holdfast.worker.watchdog._OTHER_SILENT_SECONDS", 0.0)
    ended: list[bool] = []

    class Ends(Process):
        can_end = True

        def end(self) -> None:
            ended.append(loop.is_closed())

    loop = asyncio.new_event_loop()

    class Holds(HoldsNothing):
        def give_up(self) -> list[GivenUp]:
            threading.Timer(0.3, loop.close).start()  # a moment later
            return []

    dog = Watchdog(
        "failed",
        MemoryStore,
        Holds(),
        Ends(),
        end_heartbeat=lambda: None,
        executing=lambda: False,
        is_left=lambda: True,
        grace_seconds=60,
    )
    dog._loop, dog._watched = loop, threading.get_ident()
    dog._main()
    assert ended == [True]
