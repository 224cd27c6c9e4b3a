"""The core with a store of one's own: logs in lists (T1, T2)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import pytest

from holdfast import App, Context, Retry, StepFailed
from holdfast.core import (
    Command,
    Event,
    LogConflict,
    Replay,
    Todo,
    activity_completed,
    activity_failed,
    cancel_requested,
    drive,
    signal_received,
    started,
)
from holdfast.errors import ConfigurationError, PayloadError

START = 1_700_000_000_000_000
SECOND = 1_000_000
app = App("core")
ran: list[str] = []


@app.step
async def add(a: int, b: int) -> int:
    ran.append(f"add {a} {b}")
    return a + b


@app.step
def double(number: int) -> int:
    ran.append(f"double {number}")
    return 2 * number


@app.step(retry=Retry(attempts=2, base="5s", jitter=0))
async def refuse() -> None:
    ran.append("refuse")
    raise ValueError("not today")


async def ask(error: BaseException) -> bool:
    return True


@app.step(retry=Retry(attempts=2, should_retry=ask))
async def asking() -> None:
    raise ValueError("not today")


@app.activity
async def ship(parcel: int) -> str:
    raise AssertionError("activities are carried out by others")


@app.workflow
async def total(ctx: Context, number: int) -> int:
    return await double(await add(number, 1))


@app.workflow
async def wait(ctx: Context) -> str:
    await add(1, 2)
    return await ctx.wait_for_signal("go", type=str)


@app.workflow
async def ask_first(ctx: Context) -> None:
    await asking()


@app.workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep("1h")
    return "awake"


@app.workflow
async def give_up(ctx: Context) -> str:
    try:
        await refuse()
    except StepFailed as error:
        return error.error.message
    return ""


@app.workflow
async def deliver(ctx: Context, parcel: int) -> str:
    return await ship(parcel)


class Lists:
    """Logs in lists; it may lose the process before or after an append."""

    def __init__(self) -> None:
        self.logs: dict[UUID, list[Event]] = {}
        self.now = START
        self.die_at = 0
        self.appends = 0

    def clock(self) -> int:
        return self.now

    def read(self, run_id: UUID) -> list[Event]:
        return list(self.logs.get(run_id, []))

    def append(self, run_id: UUID, expected: int, events: Sequence[Event]) -> None:
        self._pass_point()
        log = self.logs.setdefault(run_id, [])
        if len(log) != expected:
            raise LogConflict(run_id, expected, log[expected:])
        log += events
        self._pass_point()

    def _pass_point(self) -> None:
        self.appends += 1
        if self.appends == self.die_at:
            raise KeyboardInterrupt

    def types(self, run_id: UUID) -> list[str]:
        return [event.type for event in self.logs[run_id]]


@pytest.fixture
def store() -> Lists:
    ran.clear()
    return Lists()


def begin(store: Lists, workflow: object, input: object = None) -> UUID:
    run_id = uuid4()
    store.append(run_id, 0, [started(workflow, input, at=START)])  # type: ignore[arg-type]
    return run_id


async def test_a_run_is_driven_to_its_end(store: Lists) -> None:
    run_id = begin(store, total, 4)
    todo = await drive(total, run_id, store, now=store.clock)
    assert todo.ended is not None
    assert (todo.ended.status, todo.ended.output) == ("completed", "10")
    assert ran == ["add 4 1", "double 5"]
    assert store.types(run_id)[-1] == "WorkflowCompleted"


def test_a_replay_that_was_made_elsewhere_leaves_the_loop_of_its_caller() -> None:
    """It was made outside of any loop, and each of its methods is called in a loop of its own."""
    replay = Replay(total, uuid4(), [started(total, 4, at=START)], now=lambda: START)

    async def call(method: Callable[..., Todo], *values: object) -> Todo:
        loop = asyncio.get_running_loop()
        todo = method(*values)
        assert asyncio.get_running_loop() is loop
        return todo

    todo = asyncio.run(call(replay.begin))
    while not todo.waits:
        if todo.append is not None:
            todo = asyncio.run(call(replay.appended))
        for step in todo.steps:
            todo = asyncio.run(call(replay.completed, step, 5))
    assert todo.ended is not None
    assert todo.ended.output == "5"


async def test_a_signal_continues_it_from_the_log(store: Lists) -> None:
    run_id = begin(store, wait)
    todo = await drive(wait, run_id, store, now=store.clock)
    assert (todo.waits, todo.waits_for, todo.wake_at) == (True, ("go",), None)
    store.append(run_id, len(store.logs[run_id]), [signal_received("go", "on", id="1")])
    todo = await drive(wait, run_id, store, now=store.clock)
    assert todo.ended is not None
    assert todo.ended.output == '"on"'
    assert ran == ["add 1 2"]


async def test_a_timer_says_when_to_come_back(store: Lists) -> None:
    run_id = begin(store, nap)
    todo = await drive(nap, run_id, store, now=store.clock)
    assert todo.wake_at == START + 3600 * SECOND
    assert (await drive(nap, run_id, store, now=store.clock)).ended is None
    store.now = todo.wake_at
    ended = (await drive(nap, run_id, store, now=store.clock)).ended
    assert ended is not None
    assert ended.output == '"awake"'


async def test_a_failed_step_is_tried_again_as_its_policy_says(store: Lists) -> None:
    run_id = begin(store, give_up)
    todo = await drive(give_up, run_id, store, now=store.clock)
    assert todo.wake_at == START + 5 * SECOND
    assert ran == ["refuse"]
    store.now = todo.wake_at
    ended = (await drive(give_up, run_id, store, now=store.clock)).ended
    assert ended is not None
    assert ended.output == '"not today"'
    assert ran == ["refuse", "refuse"]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_activity_is_for_others(store: Lists, fails: bool) -> None:
    run_id, commands = begin(store, deliver, 7), list[Command]()
    todo = await drive(deliver, run_id, store, now=store.clock, carry_out=commands.append)
    [command] = commands
    assert (command.type, command.details["activity_name"]) == ("ActivityScheduled", "core/ship")
    assert todo.waits_for == (":end",)
    error = ValueError("no stamps")
    end = activity_failed(command, error) if fails else activity_completed(command, "sent")
    store.append(run_id, len(store.logs[run_id]), [end])
    ended = (await drive(deliver, run_id, store, now=store.clock)).ended
    assert ended is not None
    assert (ended.status, ended.output) == (("failed", None) if fails else ("completed", '"sent"'))


async def test_a_run_is_cancelled(store: Lists) -> None:
    run_id = begin(store, wait)
    await drive(wait, run_id, store, now=store.clock)
    store.append(run_id, len(store.logs[run_id]), [cancel_requested("enough")])
    ended = (await drive(wait, run_id, store, now=store.clock)).ended
    assert ended is not None
    assert ended.status == "cancelled"


@pytest.mark.parametrize("die_at", range(1, 9))
async def test_a_lost_process_loses_nothing_that_is_in_the_log(store: Lists, die_at: int) -> None:
    run_id = begin(store, total, 4)
    store.appends, store.die_at = 0, die_at
    try:
        await drive(total, run_id, store, now=store.clock)
    except KeyboardInterrupt:
        recorded = [event.key for event in store.logs[run_id] if event.type == "StepCompleted"]
        before = len(ran)
        todo = await drive(total, run_id, store, now=store.clock)
        if todo.ended is not None:  # else it had ended before
            assert todo.ended.output == "10"
            assert len(ran) - before == 2 - len(recorded)
    assert store.types(run_id).count("StepCompleted") == 2
    assert store.types(run_id).count("WorkflowCompleted") == 1


def test_a_conflict_brings_what_stands_there(store: Lists) -> None:
    """T1. The error is of a type of its own, and carries the entries."""
    run_id = begin(store, wait)
    first, second = (Replay(wait, run_id, store.read(run_id), now=store.clock) for _ in range(2))
    mine = first.completed(first.begin().steps[0], 3).append
    theirs = second.completed(second.begin().steps[0], 3).append
    assert mine is not None
    assert theirs is not None
    store.append(run_id, mine.expected, mine.events)
    first.appended()
    with pytest.raises(LogConflict) as caught:
        store.append(run_id, theirs.expected, theirs.events)
    assert (caught.value.expected, tuple(caught.value.tail)) == (1, mine.events)
    todo = second.conflict(caught.value.tail)
    assert todo.steps == ()  # the other's result counts
    assert "StepCompleted" not in [event.type for event in todo.append.events if todo.append]  # type: ignore[union-attr]
    first.close()
    second.close()


def test_changed_code_is_stuck(store: Lists) -> None:
    run_id = begin(store, total, 4)
    wrong = Event("StepCompleted", "add", '{"name":"other","args":1,"result":1,"started_at":1}', 1)
    store.append(run_id, 1, [wrong])
    replay = Replay(total, run_id, store.read(run_id), now=store.clock)
    todo = replay.begin()
    assert todo.stuck is not None
    assert todo.waits
    replay.close()


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(ValueError, match="has no log"):
        Replay(total, uuid4(), [])


@pytest.mark.filterwarnings("error")
async def test_an_async_should_retry_is_refused_and_closed() -> None:
    replay = Replay(ask_first, uuid4(), [started(ask_first, at=START)], now=lambda: START)
    todo = replay.begin()
    while not todo.steps:
        assert todo.append is not None
        todo = replay.appended()
    [step] = todo.steps
    with pytest.raises(ConfigurationError, match="should_retry of step asking is async"):
        replay.failed(step, ValueError("not today"))
    gc.collect()  # a coroutine that was never awaited would warn now
    assert step.retry_at(PayloadError("never fits"), START) is None
