"""Instance: a workflow's coroutine, its loop, and what it waits for.

An instance is a pure function of the events that it was fed. Events of others and the ends of
calls are *delivered*, in log order: one event, then run until blocked, never two events in one
drain. *Facts* (deadlines, failed attempts) are learnt before and looked up by key.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import StepFailed, StepTimedOut
from holdfast.runtime import details
from holdfast.runtime.asyncio_forms import install
from holdfast.runtime.calls import Call, RunInfo
from holdfast.runtime.context import Context
from holdfast.runtime.details import (
    CANCEL_REQUESTED,
    SIGNAL_RECEIVED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    VALUE_SET,
    WORKFLOW_STARTED,
)
from holdfast.runtime.loop import WorkflowLoop
from holdfast.runtime.mailbox import Mailbox
from holdfast.runtime.tasks import Evicted, WorkflowTask
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.definitions.steps import Step
    from holdfast.definitions.workflows import Workflow

_SALT_BITS = (1 << 48) - 1

install()


class Instance:
    """A run's code in execution.

    `pending` are the calls that it
    waits for, `issued` those that may start once their mark is durable, `cancelled` those that
    it gave up, with the mark from which that is certain. `note` is told of what it writes.
    """

    __slots__ = (
        "_values_known",
        "_values_set",
        "cancel_requested",
        "cancelled",
        "dropped",
        "info",
        "issued",
        "live_from",
        "loop",
        "mailbox",
        "note",
        "pending",
        "retries",
        "root",
        "run",
        "workflow",
    )

    def __init__(
        self,
        workflow: Workflow[Any, object],
        info: RunInfo,
        facts: Iterable[Event],
        note: Callable[[str, str, str], None],
    ) -> None:
        self.workflow, self.info, self.note = workflow, info, note
        self.run = str(info.run_id)
        loop = self.loop = WorkflowLoop(info.run_id.int & _SALT_BITS)  # type: ignore[abstract]
        loop.now = info.started_at
        loop.call_step = self.call_step
        self.mailbox = Mailbox(loop)
        self.root: WorkflowTask[object] | None = None
        self.live_from = 0
        self.pending: dict[str, Call] = {}
        self.issued: collections.deque[Call] = collections.deque()
        self.cancelled: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.cancel_requested = False
        self.retries: dict[str, details.StepRetryScheduled] = {}
        self._values_known: dict[str, int] = {}
        self._values_set: dict[str, int] = {}
        for event in facts:
            self.learn(event)

    @property
    def finished(self) -> bool:
        """Whether the run's own code has ended."""
        root = self.root
        return (root is not None and root.done()) or self.loop.fatal is not None

    @property
    def replaying(self) -> bool:
        """Whether the code repeats what it has done before."""
        return self.loop.position <= self.live_from

    # What the log says

    def learn(self, event: Event) -> None:
        """Take in a fact. Facts hold wherever they stand in the log."""
        kind, key, text = event.type, event.key, event.details
        if key is None or text is None:
            return
        if kind == TIMER_SCHEDULED:
            if key not in self.loop.timers:
                self.loop.recorded_timers[key] = details.read_timer(text)
        elif kind == STEP_RETRY:
            self._learn_retry(key, details.read_step_retry(text))
        elif kind == VALUE_SET:
            self._values_known[key] = self._values_known.get(key, 0) + 1

    def _learn_retry(self, key: str, fact: details.StepRetryScheduled) -> None:
        call = self.pending.get(key)
        if call is None:
            self.retries[key] = fact
        else:
            call.attempt, call.retry_at = fact.attempt + 1, fact.retry_at

    def feed(self, event: Event) -> None:
        """Deliver one event, then run until blocked.

        Raises DeterminismError where the code does what cannot be repeated, or differs from
        the log.
        """
        self.loop.position += 1
        kind, loop = event.type, self.loop
        if kind in (STEP_COMPLETED, STEP_FAILED):
            self._end_call(event)
        elif kind == TIMER_FIRED:
            self._fire(event)
        elif kind == SIGNAL_RECEIVED:
            signal = details.read_signal(event.details or "")
            self.mailbox.put(signal.signal_name, signal.input)
        elif kind == CANCEL_REQUESTED:
            if not self.cancel_requested and self.root is not None:
                self.cancel_requested = True
                self.root.cancel()
        elif kind == WORKFLOW_STARTED:
            self._start(event.details or "null")
        else:
            return  # a fact takes a place in the log, but neither wakes anyone nor moves time
        if event.at > loop.now:
            loop.now = event.at
        loop.drain()
        if loop.broken is not None:
            raise loop.broken

    def complete(self, call: Call, result: str, at: int) -> None:
        """Deliver a result that this instance's turn has just recorded."""
        self.loop.position += 1
        loop = self.loop
        del self.pending[call.key]
        if call.future is not None:
            call.future.set_result(result)
        if at > loop.now:
            loop.now = at
        loop.drain()
        if loop.broken is not None:
            raise loop.broken

    def _start(self, text: str) -> None:
        loop = self.loop
        task = self.root = WorkflowTask(
            self._main(text),
            loop,
            loop.root_scope,
            name=self.workflow.name,
            context=contextvars.Context(),
        )
        loop.keep(task)

    async def _main(self, text: str) -> object:
        return await self.workflow.invoke(Context(self), text)

    def _end_call(self, event: Event) -> None:
        key = event.key or ""
        call = self.pending.get(key)
        if call is not None:
            settle(self.loop, call, event)
            del self.pending[key]
        elif key not in self.dropped:
            if key in self.loop.timers:
                self.loop.check(key, "a step", "a timer")
            self.loop.parked[key] = event

    def _fire(self, event: Event) -> None:
        key = event.key or ""
        if not self.loop.fire(key):
            if key in self.pending:
                self.loop.check(key, "a timer", "a step")
            self.loop.parked[key] = event

    # What the code does

    def call_step(
        self, step: Step[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[object, None, Any]:
        """Call a step: its key is taken here, and it starts where it is awaited."""
        return self.call(step, step.name, args, kwargs)

    def call(
        self,
        step: Step[..., object],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a step under a name of the caller's choice."""
        loop = self.loop
        if loop.closing:
            raise Evicted
        arguments = step.encode_arguments(args, kwargs)
        coro = self._perform(Call(loop.scope().key(leaf), step, arguments, self.run))
        coro.__name__ = leaf  # type: ignore[attr-defined]  # names the task that it may be wrapped in
        return coro

    async def _perform(self, call: Call) -> object:
        loop, key, pending = self.loop, call.key, self.pending
        if loop.closing:
            raise Evicted
        # Not a WorkflowFuture: the exact class is asyncio's fast path, and no code sees it.
        future = call.future = asyncio.Future[msgspec.Raw | str](loop=loop)
        if self.retries or loop.parked or loop.recorded_timers:
            self._compare(call)
        if not future.done():
            call.mark = self.loop.position
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
        return call.step.decode_result(result)

    def _compare(self, call: Call) -> None:
        """Apply what the log already has for this call."""
        key, loop = call.key, self.loop
        if key in loop.recorded_timers:
            loop.check(key, "a timer", f"a call of {call.name}")
        retry = self.retries.pop(key, None)
        if retry is not None:
            check_call(loop, call, retry.name, retry.args)
            call.attempt, call.retry_at = retry.attempt + 1, retry.retry_at
        event = loop.parked.pop(key, None)
        if event is not None:
            if event.type == TIMER_FIRED:
                loop.check(key, "a timer", f"a call of {call.name}")
            settle(loop, call, event)

    def set_value(self, name: str, value: str) -> None:
        """Write a value that observers can read; `value` is JSON text."""
        if self.loop.closing:
            raise Evicted
        count = self._values_set[name] = self._values_set.get(name, 0) + 1
        if count > self._values_known.get(name, 0):
            self._values_known[name] = count
            self.note(VALUE_SET, name, details.value_set(value))

    # Ending

    def close(self) -> None:
        """Drop the code and everything it waits for. Idempotent."""
        self.loop.drop()
        self.root = None
        for call in self.pending.values():
            call.future = None  # a driver that still has the call must not keep the code alive
        self.pending.clear()
        self.issued.clear()


def settle(loop: WorkflowLoop, call: Call, event: Event) -> None:
    """Give a call the end that the log has for it."""
    text, future = event.details or "", call.future
    assert future is not None, "only a call that is awaited has an end"
    if event.type == STEP_COMPLETED:
        done = details.read_step_completed(text)
        check_call(loop, call, done.name, done.args)
        future.set_result(done.result)
        return
    failed = details.read_step_failed(text)
    check_call(loop, call, failed.name, failed.args)
    kind = StepTimedOut if failed.timed_out else StepFailed
    future.set_exception(kind(call.key, failed.error))


def check_call(loop: WorkflowLoop, call: Call, name: str, args: int) -> None:
    """Raise DeterminismError where the log has another step or other arguments for a key."""
    if name != call.name:
        loop.check(call.key, f"a call of {name}", f"a call of {call.name}")
    if args != call.fingerprint:
        loop.check(call.key, f"a call of {name} with other arguments", f"a call of {name}")
