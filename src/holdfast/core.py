"""The core of the engine for programs with a store of their own, without workers.

A run is a log. `Replay` is given the log and the workflow, replays the code, and says what the code
asks for next, as plain values: entries to append, steps to run, when to wake, what it waits for,
how it has ended. The caller does that, and tells it. It is the core that workers drive; it does no
I/O.

```python
replay = Replay(checkout, run_id, store.read(run_id))
todo = replay.begin()
while not todo.waits:
    if todo.append is not None:
        todo = await append(store, replay, todo.append)
    for step in todo.steps:
        todo = await run(step, replay)
```

`drive` is that loop, for stores with two methods.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import msgspec

from holdfast.codec import describe, encode
from holdfast.definitions.workflows import Workflow
from holdfast.errors import ConfigurationError, HoldfastError, PayloadError
from holdfast.events import (
    ACTIVITY_COMPLETED,
    ACTIVITY_FAILED,
    CANCEL_REQUESTED,
    COMMANDS,
    SIGNAL_RECEIVED,
    WORKFLOW_STARTED,
)
from holdfast.runtime.turn.turn import Call, Effects, RunInfo, State, Turn
from holdfast.types import ErrorInfo, Event, Finish, Suspend, Value
from holdfast.values.moments import to_datetime

__all__ = [
    "Append",
    "Command",
    "Event",
    "LogConflict",
    "LogStore",
    "Replay",
    "RunStep",
    "Todo",
    "activity_completed",
    "activity_failed",
    "cancel_requested",
    "drive",
    "signal_received",
    "started",
]

_OPEN: Final = (State.RUNNING, State.SUSPENDING, State.ENDING)


def _wall_clock() -> int:
    return time.time_ns() // 1_000


class LogConflict(HoldfastError):
    """Others have written to a log where an append was to be: `tail` stands from `expected` on."""

    def __init__(self, run_id: UUID, expected: int, tail: Sequence[Event]) -> None:
        super().__init__(
            f"run {run_id} has {len(tail)} entries from index {expected} on that were not expected"
        )
        self.run_id, self.expected, self.tail = run_id, expected, list(tail)


class LogStore(Protocol):
    """What `drive` needs of a store."""

    def read(self, run_id: UUID) -> Sequence[Event]:
        """Return a run's whole log."""
        ...

    def append(self, run_id: UUID, expected: int, events: Sequence[Event]) -> None:
        """Append entries at the index `expected`, all or none, durably.

        Raises LogConflict if the log has another length, with what stands from `expected` on.
        """
        ...


class Append(Value, frozen=True):
    """Entries to append at the index `expected`; then call `appended`, or `conflict`."""

    expected: int
    events: tuple[Event, ...]


class Command(Value, frozen=True):
    """Something for other programs to do: the entry that asks for it is durable.

    `type` is that of the entry: ActivityScheduled, ChildStarted, ApprovalRequested, WebhookOpened,
    SignalSent, one that takes such a command back, or WorkflowContinuedAsNew. Its end is an entry
    with the same `key`. `details` are those of the entry: the reference of events has their fields.
    """

    type: str
    key: str | None
    details: dict[str, Any]


class RunStep:
    """A step to run. Tell `completed` or `failed` how it ended.

    `id` is the same at each attempt: an idempotency key. `arguments` is JSON text.
    """

    def __init__(self, call: Call, started_at: int) -> None:
        self.key, self.name, self.id = call.key, call.name, call.id
        self.attempt, self.arguments = call.attempt, call.arguments
        self.started_at = started_at
        self._step = call.step

    def __repr__(self) -> str:
        return f"<RunStep {self.key}, attempt {self.attempt}>"

    async def run(self) -> object:
        """Call the step's function with the arguments, and return its result."""
        args, kwargs = self._step.decode_arguments(self.arguments)
        return await self._step.call_plain(*args, **kwargs)

    def encode(self, result: object) -> str:
        """Return a result as JSON text. Raises PayloadError if it cannot be stored."""
        return self._step.encode_result(result)

    def retry_at(self, error: BaseException, now: int) -> int | None:
        """Return when the step's policy tries again after an error, None for never.

        Raises ConfigurationError for an async `should_retry`, which only workers can ask.
        """
        retry = self._step.retry
        verdict = not isinstance(error, PayloadError) and retry.accepts(error)
        if isinstance(verdict, Awaitable):
            if isinstance(verdict, Coroutine):
                verdict.close()  # otherwise Python warns that it was never awaited
            raise ConfigurationError(f"should_retry of step {self._step.name} is async")
        if not verdict or not retry.lasts(self.attempt):
            return None
        asked = retry.asked_seconds(error)
        seconds = retry.delay_seconds(self.attempt, random.random) if asked is None else asked
        return now + int(seconds * 1e6)


class Todo(Value, frozen=True):
    """What the code asks for, in this order.

    - `problems`: warnings to log.
    - `commands`: for other programs; the entries that ask for them are durable now.
    - `cancel`: keys of steps whose results are not wanted any more.
    - `append`: entries to make durable before anything else is told.
    - `steps`: to run.
    - `wake_at`: call `wake` then (µs since 1970), if nothing else happens before.
    - `waits_for`: signals, updates (`update:NAME`) and `:end` (the end of a command) that the run
      waits for. Append such an entry, and give it to `arrived`.

    `waits` is True if there is nothing to do until then. `ended` says how the run ended: `status`,
    and `output` (JSON text) or `error`. `stuck` is why the code cannot continue: it does not fit
    the log.
    """

    append: Append | None = None
    steps: tuple[RunStep, ...] = ()
    commands: tuple[Command, ...] = ()
    cancel: tuple[str, ...] = ()
    wake_at: int | None = None
    waits_for: tuple[str, ...] = ()
    waits: bool = False
    ended: Finish | None = None
    stuck: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def wakes(self) -> datetime | None:
        """`wake_at` as a moment in UTC."""
        return None if self.wake_at is None else to_datetime(self.wake_at)


class Replay:
    """One run's code, between its log and what it asks for. Each method returns what to do next.

    `log` is the whole log, which begins with `started`. `now` returns the time in µs since 1970.
    `close` it when it is not needed any more; the next `Replay` continues from the log.
    """

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        run_id: UUID,
        log: Sequence[Event],
        *,
        now: Callable[[], int] = _wall_clock,
        key: str | None = None,
    ) -> None:
        """Replay the log.

        Raises ValueError for an empty one, ConfigurationError for a workflow whose runs are
        retried by a policy.
        """
        if not log:
            raise ValueError(f"run {run_id} has no log: append `started(…)` first")
        if workflow.retry is not None:
            raise ConfigurationError(
                f"workflow {workflow.name} has a retry: only a store of holdfast starts attempts"
            )
        info = RunInfo(run_id, workflow.name, workflow.version, 1, log[0].at, None, key)
        self.run_id, self._now = run_id, now
        self._lease = 0  # a run has one driver at a time: the index at an append tells who is
        self._turn = Turn(workflow, info, self._lease, log, now)
        self._sent: tuple[Event, ...] = ()
        self._waits_for: tuple[str, ...] = ()

    def begin(self) -> Todo:
        """Continue from the end of the log."""
        return self._todo(self._turn.begin())

    def appended(self) -> Todo:
        """Say that the entries to append are durable."""
        commands = tuple(map(_command, (each for each in self._sent if each.type in COMMANDS)))
        self._sent = ()
        return self._todo(self._turn.committed(), commands)

    def conflict(self, tail: Sequence[Event]) -> Todo:
        """Say that the entries were not appended, because these stand there."""
        self._sent = ()
        return self._todo(self._turn.conflict(list(tail)))

    def completed(self, step: RunStep, result: object) -> Todo:
        """Say what a step has returned; a result that cannot be stored is a failure of the step."""
        try:
            text = step.encode(result)
        except PayloadError as error:
            failure = error
        else:
            return self._todo(self._turn.step_completed(step.key, text, step.started_at))
        return self.failed(step, failure)

    def failed(self, step: RunStep, error: BaseException) -> Todo:
        """Say what a step has raised. Its policy decides if it is tried again."""
        info, retry_at = describe(error), step.retry_at(error, self._now())
        timed_out = isinstance(error, TimeoutError)
        return self._todo(
            self._turn.step_failed(step.key, info, step.started_at, retry_at, timed_out)
        )

    def arrived(self, events: Sequence[Event]) -> Todo:
        """Say what others have appended to the log since."""
        turn = self._turn
        if turn.state is State.SUSPENDED:
            return self._todo(turn.resume(self._lease, list(events)))
        return self._todo(turn.take_unread(list(events), turn.durable_length))

    def wake(self) -> Todo:
        """Say that `wake_at` has come."""
        if self._turn.state is State.SUSPENDED:
            return self._todo(self._turn.resume(self._lease, ()))
        return self._todo(self._turn.wake())

    def close(self) -> None:
        """Close the run's code. Idempotent."""
        self._turn.abandon()

    def _todo(self, effects: Effects, commands: tuple[Command, ...] = ()) -> Todo:
        commit, state, append = effects.commit, effects.state, None
        if state is State.NEEDS_LOG:
            raise LogConflict(self.run_id, self._turn.durable_length, ())
        if commit is not None:
            append = Append(commit.expected, tuple(commit.events))
            self._sent = append.events
            if isinstance(commit.then, Suspend):
                self._waits_for = commit.then.awaiting
        suspended = state is State.SUSPENDED
        return Todo(
            append=append,
            steps=tuple(RunStep(call, self._now()) for call in effects.start),
            commands=commands,
            cancel=effects.cancel,
            wake_at=effects.visible_at if suspended else effects.next_due,
            waits_for=self._waits_for if suspended else (),
            waits=suspended or state not in _OPEN,
            ended=effects.end if state is State.ENDED else None,
            stuck=str(effects.error) if state is State.STUCK else None,
            problems=effects.problems,
        )


async def drive(
    workflow: Workflow[Any, Any],
    run_id: UUID,
    store: LogStore,
    *,
    now: Callable[[], int] = _wall_clock,
    carry_out: Callable[[Command], None] = lambda _: None,
) -> Todo:
    """Drive a run until it waits or has ended, and return the last `Todo`.

    Steps run one after another in this process. `carry_out` is called with each command once it is
    durable; after a crash it may not have been: look for commands without ends in the log. If
    another process drives the same run, one of the two conflicts and continues with the other's
    entries: steps may run twice, and are recorded once.
    """
    replay = Replay(workflow, run_id, store.read(run_id), now=now)
    todo, steps = replay.begin(), list[RunStep]()
    try:
        while True:
            for command in todo.commands:
                carry_out(command)
            steps = [each for each in (*steps, *todo.steps) if each.key not in todo.cancel]
            if todo.append is not None:
                todo = _append(store, replay, run_id, todo.append)
            elif steps:
                step, failure, result = steps.pop(0), None, None
                try:
                    result = await step.run()
                except Exception as error:
                    failure = error
                # Not where it is handled: it would be the context of what the run's code raises.
                if failure is not None:
                    todo = replay.failed(step, failure)
                else:
                    todo = replay.completed(step, result)
            elif todo.waits or todo.wake_at is None or todo.wake_at > now():
                return todo
            else:
                todo = replay.wake()
    finally:
        replay.close()


def _append(store: LogStore, replay: Replay, run_id: UUID, append: Append) -> Todo:
    tail = None
    try:
        store.append(run_id, append.expected, append.events)
    except LogConflict as conflict:
        tail = conflict.tail
    return replay.appended() if tail is None else replay.conflict(tail)


# Entries that the caller appends


def started(workflow: Workflow[Any, Any], input: object = None, *, at: int | None = None) -> Event:
    """Return the first entry of a log. Raises PayloadError for an input that does not fit."""
    return _event(WORKFLOW_STARTED, None, workflow.encode_input(input), at)


def signal_received(
    name: str, payload: object = None, *, id: str | None = None, at: int | None = None
) -> Event:
    """Return the entry of a signal; one with an `id` is taken once, however often it is there."""
    details = {"signal_name": name, "input": msgspec.Raw(encode(payload).encode())}
    return _event(SIGNAL_RECEIVED, id or str(uuid4()), encode(details), at)


def activity_completed(command: Command, result: object = None, *, at: int | None = None) -> Event:
    """Return the end of an activity that a command has asked for."""
    details = {"activity_name": command.details["activity_name"], "result": result}
    return _event(ACTIVITY_COMPLETED, command.key, encode(details), at)


def activity_failed(command: Command, error: BaseException, *, at: int | None = None) -> Event:
    """Return the end of an activity that failed for good."""
    info: ErrorInfo = describe(error)
    details = {"activity_name": command.details["activity_name"], "error": info}
    return _event(ACTIVITY_FAILED, command.key, encode(details), at)


def cancel_requested(reason: str | None = None, *, at: int | None = None) -> Event:
    """Return the entry that asks a run to cancel itself."""
    return _event(CANCEL_REQUESTED, None, encode({"reason": reason}), at)


def _event(kind: str, key: str | None, details: str | None, at: int | None) -> Event:
    return Event(kind, key, details, _wall_clock() if at is None else at)


def _command(event: Event) -> Command:
    details: dict[str, Any] = msgspec.json.decode(event.details or "{}") or {}
    return Command(event.type, event.key, details)
