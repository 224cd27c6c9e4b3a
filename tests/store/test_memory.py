"""What only the in-memory store has: virtual time, and use from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import NoReturn
from uuid import UUID, uuid4

import pytest
from contract.actors import SECOND, ManualWorker, details, log, new_run, start
from contract.commands import FAILURE, RESIZE, activity, child, command, ordered

from holdfast import events
from holdfast.store.memory import MemoryStore, VirtualClock, wall_clock
from holdfast.store.memory.commits import CARRIED_OUT
from holdfast.store.memory.tables import Tasks
from holdfast.types import (
    Event,
    Finish,
    FlowShape,
    NewRun,
    NewSignal,
    StepShape,
    StepTaskEnd,
    TurnCommit,
)


def test_every_command_is_carried_out() -> None:
    assert sorted(CARRIED_OUT) == sorted(events.COMMANDS)


async def test_virtual_time_stands_still_until_it_is_moved() -> None:
    """S14."""
    store = MemoryStore()
    began_at = await store.now()
    await start(store)
    assert await store.now() == store.time() == began_at
    store.advance(1.5)
    store.advance_to(began_at)  # a moment that has passed: time never goes back
    assert store.time() == began_at + 1_500_000


async def test_months_of_waiting_pass_at_once() -> None:
    """S8, S14. The next due moment is that of a task or of a deadline, leases aside."""
    store = MemoryStore(VirtualClock(0))
    ann = ManualWorker(store, "ann")
    assert store.next_due_at() is None
    await start(store)
    task = await ann.take()
    assert store.next_due_at() is None
    await ann.suspend(task, until=90 * 86_400 * SECOND)
    await start(store, queue="slow", delay_seconds=1.0, timeout_seconds=60.0)
    moments = []
    while (next_at := store.next_due_at()) is not None:
        store.advance_to(next_at)
        moments.append(store.time() // SECOND)
    assert moments == [1, 61, 90 * 86_400]
    assert await ann.claims() == [task.run_id]


async def test_the_deadlines_of_activities_are_due_moments() -> None:
    """S7, S8. Leased or not; what is paused comes due for nobody."""
    store = MemoryStore(VirtualClock(0))
    ann = ManualWorker(store, "ann")
    run_id = await ordered(store, ann, activity(schedule_to_close=30.0), activity("failing"))
    tasks = {task.key: task for task in (await ann.claim(handlers=RESIZE)).tasks}
    await ann.end(tasks["failing"], error=FAILURE)
    assert store.next_due_at() == SECOND
    await store.pause_runs([run_id])
    assert store.next_due_at() == 30 * SECOND
    await store.resume_runs([run_id])
    await store.set_pause("queue", "default", paused=True)
    assert store.next_due_at() == 30 * SECOND
    store.advance(30)
    await store.time_out_activities()
    assert store.next_due_at() is None


async def test_delays_and_retries_of_steps_of_flows_are_due_moments() -> None:
    """The turn of a flow's run never comes due."""
    store = MemoryStore(VirtualClock(0))
    later = StepShape(slug="later", start_delay=7)
    steps = (StepShape(slug="first", base_delay=5), later)
    await store.ensure_flow(FlowShape(name="shop/trip", steps=steps), "h")
    await store.start_flows([NewRun(run_id=uuid4(), name="shop/trip")])
    ann = ManualWorker(store, "ann")
    task = await ann.take(handlers=("shop/trip@1",))
    failed = StepTaskEnd(run_id=task.run_id, key="first", lease_no=1, error=FAILURE)
    await store.end_step_tasks("ann", [failed])
    moments = []
    while (next_at := store.next_due_at()) is not None:
        store.advance_to(next_at)
        moments.append(store.time() // SECOND)
    assert moments == [7, 10]


@pytest.mark.parametrize("missing", ["has_commands", "touches", "parent", "has_children"])
async def test_a_part_that_does_not_say_what_it_does_to_others_is_refused(missing: str) -> None:
    """S14. A database does only what is announced: nothing that works here may fail there."""
    store = MemoryStore()
    ann = ManualWorker(store, "ann")
    other, child_id = await start(store, queue="slow"), uuid4()
    await start(store)
    turn = await ann.take()
    await ann.command(turn, child(child_id))
    kid = await ann.take()
    sent = command("SignalSent", "s", run_id=str(other), signal_name="x", input=1, signal_id="s-1")
    ended = Event("WorkflowCompleted", None, None, 0)
    parts = {
        "has_commands": TurnCommit(turn.run_id, 1, 2, [activity()]),
        "touches": TurnCommit(turn.run_id, 1, 2, [sent], has_commands=True),
        "parent": TurnCommit(kid.run_id, 1, 1, [ended], Finish("completed")),
        "has_children": TurnCommit(turn.run_id, 1, 2, [ended], Finish("completed")),
    }
    with pytest.raises(ValueError, match=r"does not (say|name|have)"):
        await store.commit("ann", uuid4(), [parts[missing]])


async def test_workers_that_listen_hear_that_time_has_moved() -> None:
    store = MemoryStore()
    await start(store, queue="slow", delay_seconds=60.0)
    woken: asyncio.Queue[str] = asyncio.Queue()
    await store.listen("work", woken.put_nowait)
    store.advance(60)
    async with asyncio.timeout(60):
        assert await woken.get() == "slow"


async def test_the_machines_clock_can_be_used_and_is_not_moved() -> None:
    store = MemoryStore(wall_clock)
    before = time.time_ns() // 1_000
    assert before <= await store.now() <= time.time_ns() // 1_000
    with pytest.raises(TypeError):
        store.advance(1)


def test_threads_may_share_a_store() -> None:
    """Trap 24. A heartbeat's thread calls it beside the worker's loop; nothing is lost."""
    store, run_id = MemoryStore(), uuid4()
    threads_count, each = 4, 50
    asyncio.run(store.start_runs([NewRun(run_id=run_id, name="order")]))

    async def send(thread: int) -> None:
        for n in range(each):
            await store.signal_runs([NewSignal(run_id, "packed", str(thread * each + n))])

    threads = [
        threading.Thread(target=lambda n=n: asyncio.run(send(n))) for n in range(threads_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = asyncio.run(log(store, run_id, 1))
    assert sorted(details(event)["input"] for event in events) == list(range(threads_count * each))


def test_a_listener_is_called_on_its_own_loop_from_any_thread() -> None:
    store = MemoryStore()
    started: list[UUID] = []

    def start_elsewhere() -> None:
        async def run() -> None:
            new = new_run()
            _, notices = await store.start_runs([new])
            started.append(new.run_id)
            await store.notify(notices)

        asyncio.run(run())

    async def listen() -> tuple[str, int]:
        heard: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        await store.listen("work", lambda queue: heard.set_result((queue, threading.get_ident())))
        thread = threading.Thread(target=start_elsewhere)
        thread.start()
        async with asyncio.timeout(60):
            answer = await heard
        thread.join()
        return answer

    assert asyncio.run(listen()) == ("default", threading.get_ident())
    assert len(started) == 1


async def test_a_listener_whose_loop_is_gone_is_passed_over() -> None:
    store = MemoryStore()

    def listen_briefly() -> None:
        async def run() -> None:
            await store.listen("work", lambda _: None)

        asyncio.run(run())

    thread = threading.Thread(target=listen_briefly)
    thread.start()
    thread.join()
    heard: asyncio.Queue[str] = asyncio.Queue()
    await store.listen("work", heard.put_nowait)
    _, notices = await store.start_runs([new_run()])
    await store.notify(notices)
    async with asyncio.timeout(60):
        assert await heard.get() == "default"


async def test_the_end_of_a_run_looks_at_no_task_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the ends of all runs take a time that grows with the square of their number."""
    store = MemoryStore()
    shape = FlowShape(name="trip", steps=(StepShape(slug="a"), StepShape(slug="b")))
    await store.ensure_flow(shape, "hash")
    runs = [NewRun(run_id=UUID(int=number), name="trip") for number in range(3)]
    await store.start_flows(runs)

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("all tasks are looked at")

    for look in ("__iter__", "keys", "values", "items"):
        monkeypatch.setattr(Tasks, look, refuse)
    await store.terminate_runs([runs[0].run_id])
    assert set(store._tables.tasks.keys_of_run) == {UUID(int=1), UUID(int=2)}
