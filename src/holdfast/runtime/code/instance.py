"""Instance: a workflow's coroutine, its loop, and what it waits for.

An instance is a pure function of the events that it was fed. Events of others and the ends of
calls are *delivered*, in log order: one event, then run until blocked, never two events in one
drain. *Facts* (deadlines, failed attempts, orders) are learnt before and looked up by key.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from holdfast.definitions.steps import Step
from holdfast.errors import DeterminismError, InvalidInput
from holdfast.events import (
    CALL_COMMANDS,
    CANCEL_REQUESTED,
    COMMAND_ENDS,
    FORKED,
    PAUSED,
    RESUMED,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    STEPS,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    UPDATE_REPLIES,
    VALUE_RECORDED,
    VALUE_SET,
    WORKFLOW_STARTED,
    StepRetryScheduled,
    read_forked,
    read_step_retry,
    read_timer,
)
from holdfast.runtime.code.activity_calls import call_activity
from holdfast.runtime.code.calls import Call, RunInfo
from holdfast.runtime.code.children import call_workflow
from holdfast.runtime.code.context import Context
from holdfast.runtime.code.dealings import Dealings
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.messages import Message
from holdfast.runtime.code.orders import Orders, Recorded, end_family
from holdfast.runtime.code.step_ends import check_call, settle
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.runtime.log.virtual_log import count_replayed
from holdfast.runtime.loop.asyncio_forms import install
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import WorkflowTask
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.definitions.activities import Activity
    from holdfast.definitions.workflows import Workflow

_SALT_BITS = (1 << 48) - 1

install()


class Instance:
    """A run's code in execution.

    `pending` are the steps that it waits for, `issued` those that may start once their mark is
    durable, `cancelled` those that it gave up, with the mark from which that is certain; `orders`
    are what it asks of others. `held` are the events that came while the run was paused, None
    where it is not. `cancel_unheard` says that the code had ended when a cancel came. `note` is
    told of what the code writes. Of the log, some worker's code has seen the first `history`
    events before; up to `live_from` the code repeats itself.
    """

    __slots__ = (
        "cancel_requested",
        "cancel_unheard",
        "cancelled",
        "dealings",
        "dropped",
        "held",
        "history",
        "info",
        "issued",
        "live_from",
        "loop",
        "mailbox",
        "note",
        "pending",
        "recorded_steps",
        "retries",
        "run",
        "seed",
        "workflow",
    )

    def __init__(
        self,
        workflow: Workflow[Any, object],
        info: RunInfo,
        note: Callable[[str, str, str | None], None],
    ) -> None:
        """Begin with an empty log: `foresee` takes in what it has, `feed` each event of it."""
        self.workflow, self.info, self.note = workflow, info, note
        self.run, self.seed = str(info.run_id), info.run_id
        loop = self.loop = WorkflowLoop(info.run_id.int & _SALT_BITS)  # type: ignore[abstract]
        loop.now = info.started_at
        loop.limit_seconds = workflow.registry.blocking_seconds
        loop.caller = self
        self.mailbox = Mailbox(loop)
        self.dealings: Dealings | None = None
        self.live_from = self.history = 0
        self.held: list[Event] | None = None
        self.pending: dict[str, Call] = {}
        self.issued: list[Call] = []
        self.cancelled: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.cancel_requested = self.cancel_unheard = False
        self.retries: dict[str, StepRetryScheduled] = {}
        self.recorded_steps: set[str] = set()  # only where steps have aliases

    @property
    def root(self) -> WorkflowTask[object] | None:
        """The task of the run's own code, None before the run has started."""
        return self.loop.root

    @property
    def replaying(self) -> bool:
        """Whether the code repeats what it has done before."""
        return self.loop.position <= self.live_from

    @property
    def awaiting(self) -> tuple[str, ...]:
        """What others may do to wake the code: send signals and updates, end its orders."""
        signals, dealings = self.mailbox.awaited, self.dealings
        return signals if dealings is None else signals + dealings.awaited

    @property
    def orders(self) -> Orders:
        """What the code has asked of others."""
        return (self.dealings or self._deal()).orders

    @property
    def updates(self) -> Updates:
        """The updates that came in, and what answers them."""
        return (self.dealings or self._deal()).updates

    @property
    def values(self) -> Values:
        """What the code has recorded of itself."""
        return (self.dealings or self._deal()).values

    def _deal(self) -> Dealings:
        self.dealings = Dealings(self.loop, self.note)
        return self.dealings

    # What the log says

    def foresee(self, events: Sequence[Event]) -> None:
        """Take in the facts of events that are fed next. They hold wherever they stand.

        Raises DeterminismError for an event that cannot be read.
        """
        replayed = count_replayed(events)
        if replayed:
            self.history = self.loop.position + replayed
        if Step.any_aliases:
            self.recorded_steps.update(
                event.key for event in events if event.key and event.type in STEPS
            )
        for event in events:
            learn = self._FACTS.get(event.type)
            if learn is not None:
                try:
                    learn(self, event)
                except UNREADABLE as error:
                    raise unreadable(event, error) from None

    def learn_retry(self, event: Event) -> None:
        """Take in that an attempt of a step has failed and another follows."""
        key, fact = event.key or "", read_step_retry(event.details or "")
        call = self.pending.get(key)
        if call is None:
            self.retries[key] = fact
        else:
            call.attempt, call.retry_at = fact.attempt + 1, fact.retry_at

    def _learn_timer(self, event: Event) -> None:
        key = event.key or ""
        if key not in self.loop.timers:
            self.loop.recorded_timers[key] = read_timer(event.details or "")

    def _learn_value(self, event: Event) -> None:
        self.values.learn(event)

    def _learn_order(self, event: Event) -> None:
        self.orders.learn(event)

    def _learn_answer(self, event: Event) -> None:
        self.updates.learn(event)

    def _learn_fork(self, event: Event) -> None:
        self.seed = read_forked(event.details or "").seed
        self.loop.salt(self.seed.int & _SALT_BITS)
        self.loop.forked = True

    def feed(self, event: Event) -> None:
        """Deliver one event, then run until blocked; hold it while the run is paused.

        Raises DeterminismError where the code does what cannot be repeated, or differs from
        the log, or where the event cannot be read.
        """
        self.loop.position += 1
        if self.held is None:
            self._deliver(event)
        elif event.type != RESUMED:
            self.held.append(event)
        else:
            held, self.held = self.held, None
            for one in held:
                self._deliver(one)
            self._move_to(event.at)

    def _deliver(self, event: Event) -> None:
        deliver = self._DELIVERED.get(event.type)
        if deliver is None:
            return  # a fact takes a place in the log, but neither wakes anyone nor moves time
        try:
            deliver(self, event)
        except UNREADABLE as error:
            raise unreadable(event, error) from None
        loop = self.loop
        if event.at > loop.now:
            loop.now = event.at
        root = loop.root
        if root is None or not root.done():  # what is left behind its end stands still
            loop.drain()
        if loop.broken is not None:
            raise loop.broken

    def complete(self, call: Call, result: str, at: int) -> None:
        """Deliver a result that this instance's turn has just recorded."""
        loop = self.loop
        loop.position += 1
        del self.pending[call.key]
        if call.future is not None:
            call.future.set_result(result)
        if at > loop.now:
            loop.now = at
        loop.drain()
        if loop.broken is not None:
            raise loop.broken

    def _move_to(self, moment: int) -> None:
        if moment > self.loop.now:
            self.loop.now = moment

    def _start(self, event: Event) -> None:
        loop = self.loop
        task = loop.root = WorkflowTask(
            self._main(event.details or "null"),
            loop,
            loop.root_scope,
            name=self.workflow.name,
            context=contextvars.Context(),
        )
        loop.keep(task)

    async def _main(self, text: str) -> object:
        try:
            code = self.workflow.invoke(Context(self), text)
        except InvalidInput as error:
            if self.history:  # it fitted before: no reason to lose what was done since
                raise self.loop.differ(f"the input does not fit the code ({error})") from None
            raise
        try:
            return await code
        except BaseException:
            self.loop.failures.raised_at = self.loop.position
            raise

    def _end_call(self, event: Event) -> None:
        key, loop = event.key or "", self.loop
        call = self.pending.get(key)
        if call is not None:
            settle(loop, call, event)
            del self.pending[key]
        elif key not in self.dropped:
            self._park(key, event, "a step")

    def _end_order(self, event: Event) -> None:
        key = event.key or ""
        if (call := self.pending.get(key)) is not None:
            self.loop.check(key, str(Recorded(end_family(event))), f"a call of {call.name}")
        self.orders.settle(event)

    def _fire(self, event: Event) -> None:
        key = event.key or ""
        if not self.loop.fire(key, event):
            self._park(key, event, "a timer")

    def _park(self, key: str, event: Event, recorded: str) -> None:
        loop = self.loop
        if key in loop.timers or key in self.pending:
            loop.check(key, recorded, "a timer" if key in loop.timers else "a step")
        if self.dealings is not None and (order := self.dealings.orders.open.get(key)):
            loop.check(key, recorded, str(order))
        loop.parked[key] = event

    def _receive(self, event: Event) -> None:
        message = Message.read(event)
        if message.update:
            self.updates.put(message)
        else:
            self.mailbox.put(message)

    def _request_cancel(self, event: Event) -> None:
        root = self.loop.root
        if not self.cancel_requested and root is not None:
            self.cancel_requested = True
            self.cancel_unheard = not root.cancel()

    def _pause(self, event: Event) -> None:
        self.held = []

    # How each type of event is taken in: facts beforehand, the others in their turn.
    _FACTS: ClassVar[dict[str, Callable[[Instance, Event], None]]] = {
        TIMER_SCHEDULED: _learn_timer,
        STEP_RETRY: learn_retry,
        VALUE_SET: _learn_value,
        VALUE_RECORDED: _learn_value,
        FORKED: _learn_fork,
        **dict.fromkeys(COMMAND_ENDS | CALL_COMMANDS, _learn_order),
        **dict.fromkeys(UPDATE_REPLIES, _learn_answer),
    }
    _DELIVERED: ClassVar[dict[str, Callable[[Instance, Event], None]]] = {
        WORKFLOW_STARTED: _start,
        STEP_COMPLETED: _end_call,
        STEP_FAILED: _end_call,
        TIMER_FIRED: _fire,
        SIGNAL_RECEIVED: _receive,
        CANCEL_REQUESTED: _request_cancel,
        PAUSED: _pause,
        **dict.fromkeys(COMMAND_ENDS, _end_order),
    }

    # What the code does

    def call_activity(
        self,
        activity: Activity[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call an activity: it is scheduled here, awaited or not."""
        return call_activity(self, activity, activity.name, args, kwargs)

    def call_workflow(
        self,
        workflow: Workflow[Any, object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a workflow: a child run is started here."""
        return call_workflow(self, workflow, args, kwargs)

    def call_step(
        self,
        step: Step[..., object],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a step under a name: its key is taken here, and it starts where it is awaited."""
        loop = self.loop
        arguments = step.encode_arguments(args, kwargs)
        call = Call(loop.scope().key(leaf), step, arguments, self.run)
        if step.aliases and leaf == step.name:
            self._take_alias(call)
        coro = self._perform(call)
        coro.__name__ = leaf  # type: ignore[attr-defined]  # names the task that it may be wrapped in
        return coro

    def _take_alias(self, call: Call) -> None:
        """Give a call the key and the name that its step had before, where the log has those."""
        scope, known = self.loop.scope(), self.recorded_steps
        if call.key in known:
            return
        for alias in call.step.aliases:
            if scope.next_key(alias) in known:
                call.key, call.name = scope.key(alias), alias
                return

    async def _perform(self, call: Call) -> object:
        loop, key, pending = self.loop, call.key, self.pending
        if loop.closing:
            await loop.create_future()  # which blocks for ever
        call.mark = loop.called_at = loop.position
        # Not a WorkflowFuture: the exact class is asyncio's fast path, and no code sees it.
        future = call.future = asyncio.Future[msgspec.Raw | str](loop=loop)
        if self.retries or loop.parked or loop.recorded_timers or loop.recorded_orders:
            self._compare(call)
        if not future.done():
            pending[key] = call
            self.issued.append(call)
        try:
            result = await future
        except BaseException:
            if pending.get(key) is call and not loop.closing:  # given up
                del pending[key]
                self.dropped.add(key)
                self.cancelled[key] = self.loop.position
            raise
        try:
            return call.step.decode_result(result)
        except InvalidInput as error:
            raise self.misfit(error, key) from None

    def misfit(
        self, error: InvalidInput, call: str | None = None, name: str = ""
    ) -> InvalidInput | DeterminismError:
        """Return what to raise for a value that does not fit the type that the code declares.

        `call` is the key of the call that brought it, `name` what it is where there is none. A
        value that fitted before can only be misfit by changed code, which must not fail the run.
        """
        if self.values.misfit(call, name, self.history):
            return error
        return self.loop.differ(f"what the log has for {call or name!r} does not fit ({error})")

    def _compare(self, call: Call) -> None:
        """Apply what the log already has for this call."""
        key, loop = call.key, self.loop
        if key in loop.recorded_timers:
            loop.check(key, "a timer", f"a call of {call.name}")
        if (order := loop.recorded_orders.get(key)) is not None:
            loop.check(key, str(order), f"a call of {call.name}")
        retry = self.retries.pop(key, None)
        if retry is not None:
            check_call(loop, call, retry.name, retry.args)
            call.attempt, call.retry_at = retry.attempt + 1, retry.retry_at
        event = loop.parked.pop(key, None)
        if event is not None:
            if event.type == TIMER_FIRED:
                loop.check(key, "a timer", f"a call of {call.name}")
            settle(loop, call, event)

    # Ending

    def close(self) -> None:
        """Drop the code and everything it waits for. Idempotent."""
        self.loop.drop()
        for call in self.pending.values():
            call.future = None  # a driver that still has the call must not keep the code alive
        self.pending.clear()
        self.issued.clear()
