"""Instance: a workflow's coroutine, its loop, and the ledgers of what it waits for.

An instance is a pure function of the events that it was fed. Events of others and the ends of calls
are *delivered* in the order of the log: one event, then the code runs until it is blocked; never
two events in one drain. *Facts* (deadlines, failed attempts, commands) are learnt before that and
looked up by key.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.codec import SHALLOW, check_depth
from holdfast.definitions.activities import Activity
from holdfast.definitions.startable import Startable
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.details import FailedAttempt
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.events import (
    CANCEL_REQUESTED,
    FORKED,
    PAUSED,
    RESUMED,
    SIGNAL_RECEIVED,
    UPDATE_COMPLETED,
    WORKFLOW_STARTED,
    is_update,
    read_forked,
)
from holdfast.runtime.code.activity_calls import call_activity
from holdfast.runtime.code.answered import stop
from holdfast.runtime.code.attributes import Attributes
from holdfast.runtime.code.begun import call_begun, forget_begun
from holdfast.runtime.code.caught import Caught, Observer
from holdfast.runtime.code.children import call_startable
from holdfast.runtime.code.closed_caller import CLOSED
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.context import Context
from holdfast.runtime.code.history import History, Origin
from holdfast.runtime.code.lost_answers import LostAnswers
from holdfast.runtime.code.mailbox import Mailbox, Message
from holdfast.runtime.code.run import L, Ledger, Record, RunInfo
from holdfast.runtime.code.steps import Call, Restored, Steps
from holdfast.runtime.code.timers import Timers
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import Values
from holdfast.runtime.log import virtual_log
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.runtime.loop.asyncio_forms import foreign, install, is_foreign
from holdfast.runtime.loop.causes import RUN_CANCEL
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import WorkflowTask
from holdfast.types import Event

_SALT_BITS = (1 << 48) - 1

# The ledgers of all capabilities. A new capability adds its ledger here and changes nothing below.
LEDGERS: Final[tuple[type[Ledger], ...]] = (
    *(Steps, Timers, Mailbox, Updates, Commands, Values),
    Attributes,
)
FACTS: Final = {kind: ledger for ledger in LEDGERS for kind in ledger.facts}
DELIVERED: Final = {kind: ledger for ledger in LEDGERS for kind in ledger.delivers}
# Those with something that others can do to wake the code.
AWAITING: Final = tuple(ledger for ledger in LEDGERS if ledger.awaited is not Ledger.awaited)

install()


class Instance:
    """A run's code in execution: the `Run` that its ledgers and its context see.

    `ledgers` are those in use; a closed run has the mailbox alone. `paused_events` are those that
    came during a pause; None if the run is not paused. `cancel_unheard` says that a cancel came
    after the code had ended.
    """

    __slots__ = (
        "attempt",
        "cancel_requested",
        "cancel_unheard",
        "history",
        "info",
        "ledgers",
        "loop",
        "paused_events",
        "record",
        "seed",
        "steps",
        "timers",
        "workflow",
    )

    def __init__(self, workflow: Workflow[Any, object], info: RunInfo, record: Record) -> None:
        """Begin with an empty log. Then call `foresee` with its events, and `feed` with each."""
        loop = self.loop = WorkflowLoop(info.run_id.int & _SALT_BITS)  # type: ignore[abstract]
        loop.now = info.started_at
        loop.limit_seconds = workflow.registry.blocking_seconds
        loop.caller = self
        loop.observer = Observer(self)
        self.workflow, self.info, self.record = workflow, info, record
        self.seed = info.run_id
        self.history = History(loop)
        self.history.tells_caught = info.tells
        self.steps = Steps(self)
        self.timers = loop.keeper = Timers(self)
        self.ledgers: dict[type[Ledger], Any] = {Steps: self.steps, Timers: self.timers}
        self.paused_events: list[Event] | None = None
        self.cancel_requested = self.cancel_unheard = False
        self.attempt: FailedAttempt | None = None  # of this run, the last one that failed

    @property
    def known_as(self) -> UUID:
        """The id of the run, or of the run that was its first attempt."""
        return self.info.run_id if self.attempt is None else self.attempt.run_id

    @property
    def root(self) -> WorkflowTask[object] | None:
        """The task of the run's own code, None before the run has started."""
        return self.loop.root

    @property
    def mailbox(self) -> Mailbox:
        """The run's signals. Made on first use."""
        return self.ledger(Mailbox)

    @property
    def awaiting(self) -> tuple[str, ...]:
        """The names of the signals, updates and ends of commands that would wake the code."""
        ledgers = self.ledgers
        return tuple(t for kind in AWAITING if kind in ledgers for t in ledgers[kind].awaited)

    # What its ledgers and its context see (Run)

    def ledger(self, kind: type[L]) -> L:
        """Return the run's ledger of a kind. Made on first use: most runs only call steps."""
        found: L | None = self.ledgers.get(kind)
        if found is None:
            found = self.ledgers[kind] = kind(self)
        return found

    def find(self, kind: type[L]) -> L | None:
        """Return the run's ledger of a kind, None if it has not been used."""
        found: L | None = self.ledgers.get(kind)
        return found

    def check_unclaimed(self, key: str, recorded: str) -> None:
        """Raise DeterminismError if the code waits for another call under this key."""
        for ledger in self.ledgers.values():
            if (found := ledger.called(key)) is not None:
                self.history.check(key, recorded, found)

    # What the log says

    def foresee(self, events: Sequence[Event]) -> None:
        """Learn the facts in events that are fed next: they hold from the start of the log.

        Raises DeterminismError for an event that cannot be read.
        """
        if replayed := virtual_log.count_replayed(events):
            self.history.replayed = self.history.position + replayed
            if proven := virtual_log.count_proven(events, replayed):
                self.history.proven = self.history.position + proven
        if not self.history.position:
            self.history.called = virtual_log.count_called(events)
            if replayed:
                self.history.tells_caught = virtual_log.tells_caught(events)
        if Step.any_aliases:
            for event in events:
                self.steps.learn_keys(event)
        keys: set[str | None] = set()
        history, read = self.history, 0
        for place, event in enumerate(events):
            try:
                details = event.details
                if details is not None and len(details) > SHALLOW:
                    check_depth(details)
                if history.delivered is not None and _continues(event):
                    history.delivered = history.position + place + 1
                if (ledger := FACTS.get(event.type)) is not None:
                    self.ledger(ledger).learn(event)
                elif event.type == FORKED:
                    keys.update(call_begun(each) or each.key for each in events[read:place])
                    read = place  # the log has an entry for each retry: there may be many
                    self._learn_fork(event, events[:place], keys)
            except (InvalidInput, *UNREADABLE) as error:
                raise unreadable(event, error) from None

    def _learn_fork(self, event: Event, copied: Sequence[Event], keys: set[str | None]) -> None:
        fork, history = read_forked(event.details or ""), self.history
        self.seed, self.attempt = fork.seed, fork.attempt
        self.loop.salt(self.seed.int & _SALT_BITS)
        began, key = self.info.began, fork.run_key or self.info.key
        self.info = replace(self.info, key=key, forked_at=event.at)
        history.forked = history.position + len(copied) + 1
        origin = Origin(fork.run_id, fork.after or (), began)
        history.origins = () if fork.after is None else (origin, *history.origins)
        if fork.attempt is None:
            self.ledger(LostAnswers).copy(copied, history.forked)
        # Their handlers and their cancels may come after a call that is made again.
        if (updates := self.find(Updates)) is not None:
            updates.begin_again()
        if (commands := self.find(Commands)) is not None:
            commands.taken_back.clear()
        copies = frozenset(keys - forget_begun(history, fork))
        history.left_out = frozenset(() if fork.attempt is None else fork.again or ()) - copies
        if fork.again is None:  # a cancel was left out: any call may come later, or not at all
            history.copied = copies
        else:
            history.again.update(dict.fromkeys(fork.again, copies))

    def feed(self, event: Event) -> None:
        """Deliver one event, then run the code until it is blocked. In a pause, keep the event.

        Raises DeterminismError if the code does something that a replay could not repeat, if it
        differs from the log, or if the event cannot be read.
        """
        self.history.position += 1
        if self.paused_events is None:
            self._deliver(event)
        elif event.type != RESUMED:
            self.paused_events.append(event)
        else:
            paused_events, self.paused_events = self.paused_events, None
            for one in paused_events:
                self._deliver(one)
            self.loop.now = max(self.loop.now, event.at)

    def _deliver(self, event: Event) -> None:
        kind = event.type
        try:
            if (ledger := DELIVERED.get(kind)) is not None:
                (self.ledgers.get(ledger) or self.ledger(ledger)).deliver(event)
            elif (own := self._OWN.get(kind)) is not None:
                own(self, event)
            else:
                if kind == UPDATE_COMPLETED:
                    self._end_handler(event.key or "")
                return  # a fact: it was learnt before, wakes nothing and does not advance the time
        except UNREADABLE as error:
            raise unreadable(event, error) from None
        loop = self.loop
        if event.at > loop.now:
            loop.now = event.at
        if self.history.alarm is not None:
            self.history.ring()
        root = loop.root
        # After the end of the run's own code, its other tasks stand still.
        if root is None or not root.done():
            self._drain()
        if loop.broken is not None:
            raise loop.broken

    def _drain(self) -> None:
        loop = self.loop
        if (handled := sys.exception()) is None:
            loop.drain()
        else:
            loop.ambient = handled
            loop.drain()
            loop.ambient = None
        if Caught in self.ledgers:
            self.ledger(Caught).flush()

    def complete(self, call: Call, result: str | Restored, at: int) -> None:
        """Deliver the result of a step that the turn has just recorded, and counted in history."""
        loop = self.loop
        del self.steps.pending[call.key]
        if call.future is not None:
            call.future.set_result(result)
        if at > loop.now:
            loop.now = at
        self._drain()
        if loop.broken is not None:
            raise loop.broken

    def _end_handler(self, update_id: str) -> None:
        """Let the handler of an update do nothing after its answer, which the log has here."""
        while not self.loop.ended and stop(self.history, self.steps.pending, update_id):
            self._drain()

    def _start(self, event: Event) -> None:
        loop = self.loop
        task = loop.root = WorkflowTask(
            self._main(event.details or "null", continues=event.key is not None),
            loop,
            loop.root_scope,
            name=self.workflow.name,
            context=contextvars.Context(),
        )
        loop.keep(task)

    async def _main(self, text: str, *, continues: bool) -> object:
        loop, history = self.loop, self.history
        try:
            try:
                code = self.workflow.invoke(Context(self), text)
            except (InvalidInput, ConfigurationError) as error:
                # It fitted before, or the code of the run before has given it: the run must not
                # fail, which would lose what was done since.
                if not (history.replayed or (continues and not history.forked)):
                    raise
                what = f"the input does not fit the code ({error})"
                raise history.differ(what, is_misfit=True) from None
            result = await code
        except BaseException as error:
            if not loop.closing:
                loop.ended = True
                history.note_failures().raised_at = history.position
                if (caught := self.find(Caught)) is not None:
                    caught.note_cancelled(error)
                if is_foreign(error):
                    raise foreign(error, "a future") from None
            raise
        if not loop.closing:
            loop.ended = True
        return result

    def _receive(self, event: Event) -> None:
        message = Message.read(event)
        if message.update:
            self.ledger(Updates).put(message)
        else:
            self.mailbox.put(message)

    def _request_cancel(self, event: Event) -> None:
        root = self.loop.root
        if not self.cancel_requested and root is not None:
            self.cancel_requested = True
            self.history.note_failures().tell_cancel(self.history.position)
            self.cancel_unheard = not root.cancel(RUN_CANCEL)

    def _pause(self, event: Event) -> None:
        self.paused_events = []

    # Events that are delivered to the run itself; all others go to a ledger.
    _OWN: ClassVar[dict[str, Callable[[Instance, Event], None]]] = {
        WORKFLOW_STARTED: _start,
        SIGNAL_RECEIVED: _receive,
        CANCEL_REQUESTED: _request_cancel,
        PAUSED: _pause,
    }

    # What the code calls (Caller)

    def call_step(
        self,
        step: Step[..., object],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a step: its key is taken now, and it starts when it is awaited."""
        return self.steps.call(step, leaf, args, kwargs)

    def call_activity(
        self,
        activity: Activity[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call an activity: it is scheduled now, whether or not it is awaited."""
        return call_activity(self, activity, activity.name, args, kwargs)

    def call_startable(
        self,
        startable: Startable[Any, object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a workflow or a flow: a child run is started now."""
        return call_startable(self, startable, args, kwargs)

    # Ending

    def close(self) -> None:
        """Drop the code and everything that it waits for. Idempotent."""
        if self.loop.closing:
            return
        self.loop.drop()
        self.loop.caller = CLOSED  # so that a closed run is freed without the garbage collector
        for ledger in self.ledgers.values():
            ledger.close()
        # The other ledgers hold the run. What was sent and not read is still asked for.
        mailbox = self.ledgers.get(Mailbox)
        self.ledgers = {} if mailbox is None else {Mailbox: mailbox}


def _continues(event: Event) -> bool:
    """Return True if code may continue with an entry: the end of a call, a signal, a cancel."""
    if event.type == SIGNAL_RECEIVED:
        return not is_update(event.details or "")
    return event.type == CANCEL_REQUESTED or event.type in DELIVERED
