"""Commands: what a run asks other processes to do, as events of its own log, and how each ended.

A command is recorded at the call if the log does not have it yet, and the store carries it out in
the transaction that appends it. So a command does not wait, as a step does, until what led to it is
durable, and this worker does nothing for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Final
from uuid import UUID

import msgspec

from holdfast.codec import fingerprint
from holdfast.details import ChildCancelRequested, OnCancel
from holdfast.events import (
    ACTIVITY_FAILED,
    CALL_COMMANDS,
    CHILD_FAILED,
    CHILD_STARTED,
    COMMAND_ENDS,
    TIMER_FIRED,
    encode_details,
    read_activity_failed,
    with_role,
    write_details,
)
from holdfast.runtime.code.answered import check_new, refuses
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.history import (
    ACTIVITY,
    CALLS,
    CHILD,
    DECISIONS,
    FAMILIES,
    MAX_ROW_KEY,
    ROWS,
    SIGNAL,
    STEP,
    SUBSCRIPTION,
    TIMER,
    WRITE,
    Recorded,
    read_command,
    row_key_error,
)
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.loop.causes import RUN_CANCEL
from holdfast.runtime.loop.tasks import DeferredCall, note_wait
from holdfast.types import ANY_END, UPDATE_REPLY, Event
from holdfast.values.names import is_same_name

_COMMANDS: Final = {family: kind for kind, family in CALLS.items()}
_WITHDRAWALS: Final = {FAMILIES[kind]: kind for kind in with_role("withdrawal")}
_ENDLESS: Final = frozenset({SIGNAL, SUBSCRIPTION, WRITE})  # they are carried out at once


class Command(msgspec.Struct, eq=False):
    """One command. `end` is the event that ended it, None before; `waiters` await the end.

    `args` is the fingerprint of its arguments. `earlier` yields the texts that the arguments may
    have had before fields with defaults were added to their types. `on_cancel` says what becomes of
    it when the code that awaits it is cancelled; in the log, it keeps the policy that it has there.
    `child_key` is the key that the caller gave to a child.
    """

    family: str
    key: str
    name: str
    args: int | None = None
    run_id: UUID | None = None
    earlier: Callable[[], Iterator[str]] = lambda: iter(())
    on_cancel: OnCancel = "try"
    child_key: str | None = None
    end: Event | None = None
    waiters: list[asyncio.Future[None]] = []

    def __str__(self) -> str:
        return f"a call of {self.family} {self.name}"

    def has_arguments(self, recorded: int) -> bool:
        """Return True if the log's arguments are these, apart from added fields with defaults."""
        return recorded == self.args or recorded in map(fingerprint, self.earlier())


class Commands(Ledger):
    """The commands of one instance.

    `open` has those without an end, `unseen` the failures of activities that the code has not
    awaited. `taken_back` are the keys of those that the log has as taken back, and that this code
    has not taken back.
    """

    facts: ClassVar = CALL_COMMANDS | COMMAND_ENDS
    delivers: ClassVar = COMMAND_ENDS

    __slots__ = (
        "_dropped",
        "_loop",
        "_over",
        "_run",
        "_waiters",
        "_withdrawn",
        "children",
        "has_children",
        "open",
        "open_activities",
        "taken_back",
        "unseen",
    )

    def __init__(self, run: Run) -> None:
        self._run, self._loop = run, run.loop
        self.open: dict[str, Command] = {}
        self.open_activities = self._waiters = 0
        self.unseen: dict[str, Event] = {}
        self.children: dict[UUID, Command] = {}  # those for which the caller gave a key
        self.has_children = self._over = False
        self._dropped, self.taken_back = set[str](), set[str]()
        self._withdrawn = set[str]()  # or decided, so that no withdrawal is recorded any more

    @property
    def awaited(self) -> tuple[str, ...]:
        """The ends of commands that wake the code."""
        return (ANY_END,) if self._waiters else ()

    # What the log says

    def learn(self, event: Event) -> None:
        """Learn a command from the log. An end tells of its command, which forks may lack."""
        kind, key, recorded = event.type, event.key, self._run.history.recorded
        if kind not in self.facts or key is None:
            return
        if kind in DECISIONS:
            self._withdrawn.add(key)
        if kind in CALLS:
            self.has_children = self.has_children or kind == CHILD_STARTED
            recorded[key] = read_command(event)
        elif kind not in COMMAND_ENDS:
            self._withdrawn.add(key)
            self.taken_back.add(key)
        elif key not in self.open and key not in self._dropped:
            recorded.setdefault(key, Recorded(FAMILIES[kind]))

    def deliver(self, event: Event) -> None:
        """Give a command its end; keep the end of a command that the code has not given yet."""
        key = event.key or ""
        if (command := self.open.pop(key, None)) is not None:
            self._end(command, event)
        elif key not in self._dropped:
            self._run.check_unclaimed(key, str(Recorded(FAMILIES.get(event.type, STEP))))
            self._run.history.keep_end(key, event)

    def _end(self, command: Command, event: Event) -> None:
        history = self._run.history
        if (family := FAMILIES.get(event.type, STEP)) != command.family:
            found = "a timer" if event.type == TIMER_FIRED else str(Recorded(family))
            history.check(command.key, found, str(command))
        command.end = event
        if event.type in (ACTIVITY_FAILED, CHILD_FAILED):
            history.note_failures().arrive(command.key, history.position)
        self._waiters -= len(command.waiters)
        if not command.waiters:
            history.unawaited[command.key] = history.position
        self.open_activities -= command.family == ACTIVITY
        if (
            event.type == ACTIVITY_FAILED
            and not command.waiters
            and command.key not in self._dropped  # abandoned: its end is not wanted
        ):
            self.unseen[command.key] = event
        for waiter in command.waiters:
            if not waiter.done():
                waiter.set_result(None)
        command.waiters.clear()

    def called(self, key: str) -> str | None:
        """Describe the open call that the code has made with this key; None if there is none."""
        return str(self.open[key]) if key in self.open else None

    # What the code does

    def give(self, command: Command, details: Callable[[], msgspec.Struct]) -> None:
        """Give a command; `details` returns its details, and is called if the log lacks it."""
        loop, history, key = self._loop, self._run.history, command.key
        if loop.closing:
            return
        history.called_at = history.position
        if history.failures is not None:
            history.failures.note_call(key)
        if history.again:
            history.make_again(key)
        recorded = history.recorded.get(key)
        if recorded is not None:
            if recorded.family == TIMER:
                history.check(key, str(recorded), str(command))
            del history.recorded[key]
            self._compare(command, recorded)
        end = history.take_end(key) if history.ends else None
        if sys.exception() is not None and command.name != UPDATE_REPLY:
            is_open = None if recorded or end else lambda: True
            self._run.ledger(Caught).note_call(key, is_open)
        if recorded is None and end is None:
            if history.handlers:
                check_new(history, loop)
            if command.family in ROWS and len(key.encode()) > MAX_ROW_KEY:
                raise row_key_error(command, key)
            self._run.record(_COMMANDS[command.family], key, encode_details(details()).decode())
        if command.family in _ENDLESS:
            return
        self.has_children = self.has_children or command.family == CHILD
        self.open_activities += command.family == ACTIVITY
        if end is None:
            self.open[key] = command
        else:
            self._end(command, end)

    def _compare(self, command: Command, recorded: Recorded) -> None:
        name = recorded.name or command.name
        if is_same_name(name, command.name):
            name = command.name
        found = f"a call of {recorded.family} {name}"
        self._run.history.check(command.key, found, str(command))
        if recorded.args is not None:
            if not command.has_arguments(recorded.args):
                self._run.history.check(command.key, f"{found} with other arguments", found)
            command.on_cancel = recorded.on_cancel
        if recorded.run_id is not None:
            if recorded.child_key is not None or not self._run.history.forked:
                keys = recorded.child_key, command.child_key
                self._run.history.check(command.key, *(f"{found} with key {key!r}" for key in keys))
            command.run_id = recorded.run_id

    def call(self, command: Command, read: Callable[[Event], object]) -> DeferredCall:
        """Return what the code gets for a command whose end it may await; `read` reads the end."""

        async def result(cancelled: asyncio.CancelledError | None) -> object:
            return read(await self.end_of(command, withdraw=True, cancelled=cancelled))

        return DeferredCall(self._loop, command, result, partial(self.withdraw, command))

    async def end_of(
        self, command: Command, *, withdraw: bool, cancelled: asyncio.CancelledError | None = None
    ) -> Event:
        """Wait for the end of a command, and return it.

        With `withdraw`, the command is taken back when its last waiter is cancelled; if it is one
        that is waited for then, its end comes before the error. `cancelled` is the error if the
        waiter was cancelled before it began.
        """
        if cancelled is not None:
            self.withdraw(command)
            if not self._is_stopping(command):
                raise cancelled
        self.unseen.pop(command.key, None)
        while command.end is None:
            # Not a WorkflowFuture: asyncio is faster with its own class, and no user code sees it.
            waiter: asyncio.Future[None] = asyncio.Future(loop=self._loop)
            command.waiters.append(waiter)
            self._waiters += 1
            note_wait(self._loop)
            try:
                await waiter
            except BaseException as error:
                self._given_up(command, waiter, withdraw)
                if not (
                    withdraw
                    and isinstance(error, asyncio.CancelledError)
                    and self._is_stopping(command)
                ):
                    raise
                if cancelled is None or RUN_CANCEL in error.args:
                    cancelled = error
        if cancelled is not None:
            raise cancelled
        return command.end

    def _is_stopping(self, command: Command) -> bool:
        """Return True if a cancelled waiter still waits: for the end of a command told to stop."""
        return (
            command.on_cancel == "wait"
            and command.key in self._withdrawn
            and command.end is None
            and not (command.waiters or self._loop.closing)
        )

    def _given_up(self, command: Command, waiter: asyncio.Future[None], withdraw: bool) -> None:
        if command.end is None and not self._loop.closing:
            command.waiters.remove(waiter)
            self._waiters -= 1
            if withdraw:
                self.withdraw(command)

    def withdraw(self, command: Command, reason: str | None = None) -> None:
        """Take a command back, unless it has ended or the code waits for it.

        One that is abandoned is not told: the code no longer waits for it, and it continues.
        """
        key = command.key
        if self._loop.closing or command.end is not None or command.waiters:
            return
        if command.on_cancel == "abandon":
            self._dropped.add(key)
            return
        # A cancelled child still reports its end, and so does an activity that is waited for.
        if command.family != CHILD and command.on_cancel != "wait":
            if self.open.pop(key, None) is None:
                return
            self._dropped.add(key)
            self.open_activities -= command.family == ACTIVITY
        self.cancel(command, reason)

    def is_withdrawn(self, command: Command) -> bool:
        """Return True if the code has taken a command back, so it has no end."""
        return command.key in self._dropped

    def cancel(self, command: Command, reason: str | None = None) -> None:
        """Record once that a command is to be cancelled, even if the code waits for it."""
        key, run_id = command.key, command.run_id  # of a child
        if self._loop.closing or command.end is not None:
            return
        self.taken_back.discard(key)
        if key in self._withdrawn or refuses(self._run.history, self._loop):
            return
        self._withdrawn.add(key)
        text = None if run_id is None else write_details(ChildCancelRequested(run_id, reason))
        self._run.record(_WITHDRAWALS[command.family], key, text)

    def awaited_in_vain(self) -> Command | None:
        """Return a call that the code waits for although older code has taken it back, or None."""
        calls = (self.open.get(key) for key in self.taken_back)
        return next((call for call in calls if call is not None and call.waiters), None)

    # Ending

    def outlast_cancel(self) -> bool:
        """Return True if a cancelled run must stay open for activities.

        A cancel does not stop them, or they have been told to stop and are waited for.
        """
        activities = [command for command in self.open.values() if command.family == ACTIVITY]
        if all(command.on_cancel == "try" for command in activities):
            return False  # they stop with the run
        for command in activities:
            self._leave(command)
        return True

    def must_stay_open(self) -> bool:
        """Return True if activities still run that the code, which has ended, never awaited.

        Activities that a left-over task still awaits do not count: they are cancelled, as steps
        are.
        """
        if not self._over:
            self._over = True
            for command in list(self.open.values()):
                if command.family == ACTIVITY and command.waiters:
                    self._leave(command)
        return self.open_activities > 0

    def _leave(self, command: Command) -> None:
        self._waiters -= len(command.waiters)
        command.waiters.clear()
        self.withdraw(command)

    def stop_waiting(self) -> None:
        """Cancel the activities that the ended code never awaited."""
        for command in list(self.open.values()):
            if command.family == ACTIVITY:
                self.withdraw(command)

    def failures(self) -> list[str]:
        """Describe the failures of activities that the code has not awaited."""
        return [
            f"activity {key} failed, and the code never awaited it: "
            f"{read_activity_failed(event.details or '').error}"
            for key, event in self.unseen.items()
        ]
