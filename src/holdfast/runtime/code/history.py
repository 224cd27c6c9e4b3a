"""How much of its log a run's code has seen, and which recorded calls it has not made yet.

Also which kinds of calls there are, and how a command is read from the event that records it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from holdfast.details import OnCancel, StepRetryScheduled, Timer
from holdfast.errors import ConfigurationError, DeterminismError
from holdfast.events import (
    ACTIVITY_SCHEDULED,
    APPROVAL_REQUESTED,
    APPROVAL_RESOLVED,
    CHILD_STARTED,
    COMMAND_OF,
    EVENT_SUBSCRIBED,
    SIGNAL_SENT,
    STREAM_WRITTEN,
    TIMER_FIRED,
    WEBHOOK_OPENED,
    WEBHOOK_RECEIVED,
    read_approval_requested,
    read_event_subscribed,
    read_recorded_activity,
    read_recorded_child,
    read_signal_sent,
    read_stream_written,
    read_webhook_opened,
)
from holdfast.runtime.code.failures import Failures
from holdfast.runtime.log.virtual_log import Tells
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import WorkflowTask
from holdfast.runtime.loop.user_code import line_of_call
from holdfast.types import Event, Value

STEP: Final = "step"
TRANSACTION: Final = "transaction"  # which has begun: its record follows its commit
TIMER: Final = "timer"
ACTIVITY: Final = "activity"
CHILD: Final = "child"
APPROVAL: Final = "approval"
SIGNAL: Final = "signal"
SUBSCRIPTION: Final = "subscription"
WRITE: Final = "write"
WEBHOOK: Final = "webhook"

CALLS: Final = {
    ACTIVITY_SCHEDULED: ACTIVITY,
    CHILD_STARTED: CHILD,
    APPROVAL_REQUESTED: APPROVAL,
    SIGNAL_SENT: SIGNAL,
    EVENT_SUBSCRIBED: SUBSCRIPTION,
    STREAM_WRITTEN: WRITE,
    WEBHOOK_OPENED: WEBHOOK,
}

FAMILIES: Final = {kind: CALLS[command] for kind, command in COMMAND_OF.items()}
"""The family of a call, by the entries that end it or take it back; without steps and timers."""

DECISIONS: Final = frozenset({APPROVAL_RESOLVED, WEBHOOK_RECEIVED})
"""Ends that stand even if the code takes the call back: what others decided is final."""

ROWS: Final = frozenset({ACTIVITY, APPROVAL})
"""Each of these is a row of the table `tasks`, with its key, until it ends."""

MAX_ROW_KEY: Final = 2048  # bytes
_MINUTE: Final = 60_000_000
_CHANGED_CODE: Final = (
    "the code has changed under this run; roll it back, or take the new path in new runs only "
    "(ctx.patched); after a roll-back, correct the newer code, or fork the run from before that "
    "call"
)
_CHANGED_TYPE: Final = (
    "a type has changed under this run; give its new fields a default, let it accept what was "
    "stored before, or roll the code back"
)
_DIFFERS: Final = (
    "the code has changed under this run, or it does not do the same on each replay: does it "
    "depend on anything but its input and what was recorded?"
)
_CHANGED_FORK: Final = (
    "with what was changed in this fork, the code does not follow the log that was copied, or the "
    "code has changed; fork from an earlier index, or roll the code back"
)


class Recorded(Value, frozen=True, gc=False):
    """A call that is in the log. If the log has only its end, `name` and `args` are None.

    `args` is the fingerprint of its arguments. `run_id` is set for a child, `timer` for a timer,
    `url` for a webhook, `on_cancel` for an activity and a child, `child_key` for one with a key,
    `place` for a transaction: where its result is kept until the log has it; `told` has the failed
    calls of which the code had been told when it began.
    """

    family: str
    name: str | None = None
    args: int | None = None
    run_id: UUID | None = None
    timer: Timer | None = None
    url: str = ""
    on_cancel: OnCancel = "try"
    child_key: str | None = None
    place: str | None = None
    told: tuple[str, ...] | None = ()

    def __str__(self) -> str:
        if self.timer is not None:
            return "a timer"
        return f"a call of {self.family}" + (f" {self.name}" if self.name else "")


class Origin(NamedTuple):
    """A run that was retried: the calls that its code made `after` the failure, when it began."""

    run_id: UUID
    after: Sequence[str]
    began: int


class History(msgspec.Struct, eq=False):
    """How much of its log one instance has seen, and which recorded calls it has not made yet.

    These are numbers of entries, from the start of the log:

    - `length`: the whole log; `position`: those that the code has been fed.
    - `called_at`: those that it had been fed when it last made a durable call.
    - `replayed`: those that some worker's code has seen before, as far as the log tells; `proven`:
      those that it has certainly seen; `called`: those before the last result in the log with which
      this instance began.
    - `delivered`: the last one that it has learnt with which code may continue, since an update was
      accepted; None before the first update.
    - `live_from`: while `position` is not beyond it, the code repeats itself.

    `tells_caught` is what the log says of the exceptions of its own that the code has handled.

    `failures` are those of the run's calls, None before the first one.

    `forked` is how many entries were copied from another run's log, with the one that says so (0 if
    none were). `copied` are the keys of copied calls that may still come, since the code has called
    what a retry left out: `again` has those calls, and for each the keys that were copied.
    `left_out` are those of which the last attempt failed, until the code makes one of them.

    `origins` are the runs that this one retries, the newest first: their failures are left out.

    Three have what the code has not called yet, by key: `recorded` timers, commands and
    transactions that have begun, `ends` the ends of calls, and `retries` the last failed attempts
    of steps. `late` are the keys of calls that the code made when the log had their ends already,
    as only changed code and forks do. `unawaited` has how many entries the code had been fed when a
    command ended that it did not wait for.

    `handlers` are the tasks of updates that are carried out, by id, and True if the log has the
    answer; `overrun` are the updates whose handlers had more to do, and how
    often each was cancelled.
    """

    _loop: WorkflowLoop
    position: int = 0
    length: int = 0
    called_at: int = 0
    replayed: int = 0
    proven: int = 0
    called: int = 0
    tells_caught: Tells = "which"
    live_from: int = 0
    forked: int = 0
    copied: frozenset[str | None] = frozenset()
    again: dict[str, frozenset[str | None]] = {}
    left_out: frozenset[str] = frozenset()
    origins: tuple[Origin, ...] = ()
    failures: Failures | None = None
    recorded: dict[str, Recorded] = {}
    ends: dict[str, Event] = {}
    retries: dict[str, StepRetryScheduled] = {}
    late: dict[str, None] = {}  # an empty set would take more memory
    unawaited: dict[str, int] = {}
    passed: dict[str, None] = {}  # the scopes whose calls the code does not make again
    delivered: int | None = None
    handlers: dict[str, tuple[WorkflowTask[Any], bool]] = {}
    overrun: dict[str, int] = {}
    alarm: tuple[int, asyncio.Future[None]] | None = None

    def note_failures(self) -> Failures:
        """Return the failures of the run's calls. Made on first use: most runs have none."""
        if self.failures is None:
            self.failures = Failures(self._loop)
        return self.failures

    @property
    def replaying(self) -> bool:
        """True if the code repeats what it has done before."""
        return self.position <= self.live_from

    @property
    def is_behind(self) -> bool:
        """True if the code has yet to make calls that it has been fed, or is to be fed.

        A timer counts while it runs: older code may wait for it, and this code may come to it
        later. One that is over may have been removed: it would count for ever.
        """
        if next(self.left_keys(), None) is not None:
            return True
        timers = (each.timer for each in self.recorded.values())
        return any(each is not None and each.fire_at > self._loop.now for each in timers)

    @property
    def has_proven(self) -> bool:
        """True if other code has certainly continued from the place where the code is now."""
        return self.forked < self.replayed and self.position <= self.proven

    @property
    def was_passed(self) -> bool:
        """True if older code passed the place where the code is now.

        The log continues with what the code of some worker did, or it has calls that the code has
        yet to make: a new call has delayed it.
        """
        return self.position <= max(self.proven, self.called) or self.is_behind

    def take_end(self, key: str) -> Event | None:
        """Return the end of a call that is being made, if the log has it already."""
        event = self.ends.pop(key, None)
        if event is not None:
            self.late[key] = None
        return event

    def keep_end(self, key: str, event: Event) -> None:
        """Keep the end of a call that the code has not made yet."""
        if not self.passed or _scope(key) not in self.passed:
            self.ends[key] = event

    def pass_over(self, scope: str) -> None:
        """Forget the recorded calls of a task that has done its work, and does not do it again."""
        self.passed[scope] = None
        calls: tuple[dict[str, Any], ...] = (self.recorded, self.ends, self.retries)
        for kept in calls:
            for key in [key for key in kept if _scope(key) == scope]:
                del kept[key]

    async def reach(self, position: int) -> None:
        """Wait, in a replay, until the code has been fed so many entries."""
        while self.position < position:
            future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
            self.alarm = (position, future)
            try:
                await future
            except asyncio.CancelledError:  # the work that is not done again continued, too
                if self._loop.closing:
                    raise

    def ring(self) -> None:
        """Wake what waits to reach this position."""
        if self.alarm is not None and self.position >= self.alarm[0]:
            (_, future), self.alarm = self.alarm, None
            if not future.done():
                future.set_result(None)

    def make_again(self, key: str) -> None:
        """Record that the code makes a call that may be one of those that a retry left out."""
        self.copied |= self.again.pop(key, frozenset())
        if key in self.left_out:
            self.left_out = frozenset()

    def origins_of(self, key: str) -> tuple[tuple[UUID, int, bool], ...]:
        """Return the runs that this one retries, the newest first, which may have made this call.

        With the moments at which they began, and True for those whose result this run takes: not if
        the code made the call because it was told of the failure, there or in a run after it.
        """
        found, takes = list[tuple[UUID, int, bool]](), True
        for origin in self.origins:
            takes = takes and key not in origin.after
            found.append((origin.run_id, origin.began, takes))
        return tuple(found)

    def unused(self) -> list[str]:
        """Return the keys of calls that are in the log and that the code has not made."""
        return sorted({*self.ends, *self.recorded, *self.retries})

    def left_keys(self) -> Iterator[str]:
        """Yield the keys of `unused` calls that are not timers, which have no effect to repeat."""
        yield from (key for key, command in self.recorded.items() if command.family != TIMER)
        yield from (key for key, event in self.ends.items() if event.type != TIMER_FIRED)
        yield from self.retries

    def unmade_at(self, now: int) -> int | None:
        """Return when other code may have to do what is recorded and this code has not called.

        That is a timer or the next attempt of a step, which a roll-back brings back. What is over
        is due again after as long as it has been over, at least a minute: so the run stays quiet
        if it never comes back.
        """
        if not (self.recorded or self.retries):
            return None
        timers = (each.timer.fire_at for each in self.recorded.values() if each.timer is not None)
        retries = (each.retry_at for each in self.retries.values())
        return min((_due_again(at, now) for at in (*timers, *retries)), default=None)

    # Differences

    def check(self, key: str, recorded: str, found: str) -> None:
        """Raise DeterminismError if the code makes another call than the log has for this key.

        `recorded` and `found` describe the calls of the log and of the code.
        """
        if recorded != found:
            raise self.differ(f"{key!r} is {found} now, and {recorded} in the log", key)

    def differ(
        self, how: str, key: str | None = None, *, is_misfit: bool = False
    ) -> DeterminismError:
        """Record that the code does not fit the log, and return the error that says so.

        With the `key` of a call, the error also says which line of the user's code makes that call.
        `is_misfit` says that a value does not fit the type that the code declares.
        """
        loop = self._loop
        cause = _CHANGED_TYPE if is_misfit else _CHANGED_CODE
        if self.forked:
            cause = _CHANGED_FORK
        if loop.watch is not None:  # in tests, and in development
            cause = _DIFFERS
        line = None if key is None else line_of_call(loop, loop.tasks, key)
        at = "" if line is None else f" (at {line})"
        return self.stop_at(DeterminismError(f"{how}{at}: {cause}", line=line, key=key))

    def stop_at(self, error: DeterminismError) -> DeterminismError:
        """Record that the code cannot continue from its log; return the first error recorded so."""
        self._loop.broken = self._loop.broken or error
        return self._loop.broken


def _due_again(at: int, now: int) -> int:
    return at if at > now else now + max(_MINUTE, now - at)


def _scope(key: str) -> str:
    """Return the scope of the outermost task of a handler that a call was made in."""
    return "/".join(key.split("/", 2)[:2])


def read_command(event: Event) -> Recorded:
    """Return the call that the event of a command records."""
    text = event.details or ""
    if event.type == ACTIVITY_SCHEDULED:
        activity = read_recorded_activity(text)
        return Recorded(
            ACTIVITY, activity.activity_name, activity.args, on_cancel=activity.on_cancel
        )
    if event.type == CHILD_STARTED:
        child = read_recorded_child(text)
        return Recorded(
            CHILD,
            child.workflow_name,
            child.args,
            child.child_run_id,
            on_cancel=child.on_cancel,
            child_key=child.key,
        )
    if event.type == SIGNAL_SENT:
        sent = read_signal_sent(text)
        return Recorded(SIGNAL, sent.signal_name, sent.fingerprint)
    if event.type == EVENT_SUBSCRIBED:
        subscribed = read_event_subscribed(text)
        return Recorded(SUBSCRIPTION, subscribed.pattern, subscribed.fingerprint)
    if event.type == STREAM_WRITTEN:
        written = read_stream_written(text)
        return Recorded(WRITE, written.stream, written.fingerprint)
    if event.type == WEBHOOK_OPENED:
        opened = read_webhook_opened(text)
        return Recorded(WEBHOOK, opened.webhook_name, opened.fingerprint, url=opened.url)
    asked = read_approval_requested(text)
    return Recorded(APPROVAL, repr(asked.title), asked.fingerprint)


def row_key_error(call: object, key: str, most: int = MAX_ROW_KEY) -> ConfigurationError:
    """Return the error for a key that is too long for an index: it would fail the whole commit."""
    return ConfigurationError(
        f"{call} has a key of {len(key.encode()):,} bytes, more than {most:,}: give the call, or "
        "the tasks around it, a shorter name"
    )
