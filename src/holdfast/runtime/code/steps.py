"""The ledger of steps: the calls that the code waits for, their ends, and which of them execute."""

from __future__ import annotations

import asyncio
import sys
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Final, final
from uuid import UUID

import msgspec

from holdfast.codec import fingerprint
from holdfast.definitions.steps import Step
from holdfast.errors import DeterminismError, InvalidInput, StepFailed, StepTimedOut
from holdfast.events import (
    STEP_COMPLETED,
    STEP_ENDS,
    STEP_FAILED,
    STEP_RETRY,
    STEPS,
    TIMER_FIRED,
    read_step_completed,
    read_step_failed,
    read_step_retry,
    write_step_completed,
    write_step_failed,
    write_step_retry,
)
from holdfast.runtime.code.begun import call_begun
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.history import TRANSACTION
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.code.values import Values
from holdfast.types import ErrorInfo, Event

IN_PLACE: Final = 1_000_000  # a pause before a retry up to this long is waited for on the worker


@final
class Restored(msgspec.Struct, frozen=True, gc=False):
    """The result of a step that this worker has just encoded and decoded again."""

    value: object


class Call(msgspec.Struct, eq=False):
    """A step that the workflow waits for.

    `attempt` is the number of the next attempt, from 1. It must not start before `retry_at`, and
    not before the first `mark` entries of the log are durable. `streams` is the number of the lease
    under which the attempt has opened a stream. `origins` are the runs that this one retries, whose
    transactions may have left a result that their logs lack, with True if that is taken. `begun` is
    True if the log says that this transaction has begun. `args` and `kwargs` are as they came.
    `former` is the key under the step's first name: an attempt may have had its effect under it.
    """

    key: str
    step: Step[..., object]
    name: str
    arguments: str
    run_id: UUID
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] | None = None
    attempt: int = 1
    mark: int = 0
    retry_at: int | None = None
    streams: int | None = None
    begun: bool = False
    origins: tuple[tuple[UUID, int, bool], ...] = ()
    future: asyncio.Future[Any] | None = None
    former: str = ""

    @property
    def id(self) -> str:
        """The call's own id, the same at each attempt: an idempotency key for the outside."""
        return f"{self.run_id}/{(self.name == self.step.name and self.former) or self.key}"

    @property
    def fingerprint(self) -> int:
        """The fingerprint of the arguments."""
        return fingerprint(self.arguments)

    def has_arguments(self, recorded: int) -> bool:
        """Return True if the log's arguments are these, apart from added fields with defaults."""
        return recorded == self.fingerprint or recorded in map(
            fingerprint, self.step.arguments_before_fields(self.arguments, self.args, self.kwargs)
        )


class Steps(Ledger, msgspec.Struct, eq=False):
    """The step calls of one instance.

    `pending` are those that the code waits for, `issued` those that may start once as many entries
    as their `mark` says are durable. `given_up` are those that the code no longer waits for, with
    the number of entries that must be durable for this to be certain. `unbegun` are transactions
    that the log must say begin.
    """

    facts: ClassVar = frozenset({STEP_RETRY})
    delivers: ClassVar = STEP_ENDS

    _run: Run
    pending: dict[str, Call] = {}
    issued: list[Call] = []
    unbegun: list[Call] = []
    given_up: dict[str, int] = {}
    _dropped: dict[str, None] = {}  # keys; an empty set would take more memory
    _recorded: dict[str, None] = {}  # keys that the log has, for steps with aliases

    # What the log says

    def learn_keys(self, event: Event) -> None:
        """Remember the key of a recorded step, for steps that had another name before."""
        if (key := event.key if event.type in STEPS else call_begun(event)) is not None:
            self._recorded[key] = None

    def learn(self, event: Event) -> None:
        """Learn that an attempt of a step has failed and another one follows."""
        key, fact = event.key or "", read_step_retry(event.details or "")
        call = self.pending.get(key)
        if call is None:
            self._run.history.retries[key] = fact
        else:
            call.attempt, call.retry_at = fact.attempt + 1, fact.retry_at

    def deliver(self, event: Event) -> None:
        """Give a call its end; keep the end of a call that the code has not made yet."""
        key = event.key or ""
        call = self.pending.get(key)
        if call is not None:
            self._end(call, event)
            del self.pending[key]
        elif key not in self._dropped:
            self._run.check_unclaimed(key, "a step")
            self._run.history.keep_end(key, event)

    def _end(self, call: Call, event: Event) -> None:
        text, future = event.details or "", call.future
        assert future is not None, "only a call that is awaited has an end"
        if recorded := self._run.history.recorded:
            recorded.pop(call.key, None)  # where it has begun does not matter any more
        if event.type == STEP_COMPLETED:
            done = read_step_completed(text)
            if done.name != call.name or done.args != fingerprint(call.arguments):
                self._check(call, done.name, done.args)
            future.set_result(done.result)
            return
        failed = read_step_failed(text)
        self._check(call, failed.name, failed.args)
        kind, history = StepTimedOut if failed.timed_out else StepFailed, self._run.history
        history.note_failures().tell(call.key, history.position)
        future.set_exception(kind(call.key, failed.error))

    def _check(self, call: Call, name: str, args: int) -> None:
        """Raise DeterminismError if the log has another step or other arguments for this call."""
        history = self._run.history
        if name != call.name:
            history.check(call.key, f"a call of {name}", f"a call of {call.name}")
        if not call.has_arguments(args):
            history.check(call.key, f"a call of {name} with other arguments", f"a call of {name}")

    def check_fit(self, call: Call) -> None:
        """Raise DeterminismError if the arguments of a step that was tried do not fit its code."""
        try:
            call.step.decode_arguments(call.arguments)
        except InvalidInput as error:
            how = f"{call.key!r} was tried before, and its arguments do not fit its code now"
            raise self._run.history.differ(f"{how}: {error}", call.key, is_misfit=True) from None
        except Exception:  # an error of its own, which the attempt reports
            return

    def called(self, key: str) -> str | None:
        """Describe the open call that the code has made with this key; None if there is none."""
        return f"a call of {self.pending[key].name}" if key in self.pending else None

    # What the code does

    def call(
        self,
        step: Step[..., object],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a step under a name: its key is taken now, and it starts when it is awaited."""
        run = self._run
        arguments = step.encode_arguments(args, kwargs)
        key, kept = run.loop.scope().key(leaf), kwargs or None
        call = Call(key, step, step.name, arguments, run.info.run_id, args, kept)
        if step.aliases and leaf == step.name:
            self._take_alias(call)
        coro = self._perform(call)
        coro.__name__ = leaf  # type: ignore[attr-defined]  # names the task that it may be wrapped in
        return coro

    def _take_alias(self, call: Call) -> None:
        """Give a call the key and the name that its step had before, if the log has those."""
        scope, first = self._run.loop.scope(), call.step.aliases[0]
        call.former = scope.key(first, f"{first}@")  # of all steps that had this name, as then
        known = ChainMap[str, Any](self._recorded, self._run.history.again)
        if call.key not in known:
            found = scope.former_key(call.name, call.step.aliases, known.__contains__)
            call.key, call.name = found or (call.key, call.name)

    async def _perform(self, call: Call) -> object:
        run, key, pending = self._run, call.key, self.pending
        loop, history = run.loop, run.history
        if loop.closing:
            await loop.create_future()  # which blocks for ever
        call.mark = history.called_at = history.position
        if history.failures is not None:
            history.failures.note_call(key)
        # Not a WorkflowFuture: asyncio is faster with its own class, and no user code sees it.
        future: asyncio.Future[msgspec.Raw | str | Restored] = asyncio.Future(loop=loop)
        call.future = future
        if history.recorded or history.ends or history.retries or history.forked:
            self._compare(call)
        if sys.exception() is not None:
            known = future.done() or call.begun or call.attempt > 1
            run.ledger(Caught).note_call(key, None if known else self._open(call))
        if not future.done():
            pending[key] = call
            self.issued.append(call)
            if call.step.is_apart and call.attempt == 1 and not call.begun:
                self.unbegun.append(call)
        try:
            result = await future
        except BaseException:
            if pending.get(key) is call and not loop.closing:  # given up
                del pending[key]
                self._dropped[key] = None
                self.given_up[key] = history.position
            elif history.failures is not None and not loop.closing:
                history.failures.note_receiver(key)
            raise
        if type(result) is Restored:  # isinstance() is slow if it is not a struct
            return result.value
        try:
            return call.step.decode_result(result)
        except InvalidInput as error:
            raise run.ledger(Values).misfit(error, key, was_checked=True) from None

    def _open(self, call: Call) -> Callable[[], bool]:  # in `_perform` it would cost each call
        return lambda: self.pending.get(call.key) is call

    def _compare(self, call: Call) -> None:
        """Apply what the log already has for this call."""
        key, history = call.key, self._run.history
        if history.origins and (call.step.connects is not None or call.step.is_sent_once):
            call.origins = history.origins_of(key)
        if history.again:
            history.make_again(key)
        if (recorded := history.recorded.get(key)) is not None:
            if recorded.family != TRANSACTION:
                history.check(key, str(recorded), f"a call of {call.name}")
            self._check(call, recorded.name or "", recorded.args or 0)
            if call.step.place == recorded.place:  # else it counts as not made, until it ends
                call.begun = history.recorded.pop(key) is recorded
        if (retry := history.retries.pop(key, None)) is not None:
            self._check(call, retry.name, retry.args)
            call.attempt, call.retry_at = retry.attempt + 1, retry.retry_at
        if (event := history.take_end(key)) is not None:
            if event.type == TIMER_FIRED:
                history.check(key, "a timer", f"a call of {call.name}")
            self._end(call, event)

    def close(self) -> None:
        """Stop waiting for any call, and let go of the run, which holds this ledger."""
        while self.pending:  # a driver that still has a call must not keep the code alive
            self.pending.popitem()[1].future = None
        self.issued.clear()
        del self._run


# Python says `coroutine '…' was never awaited`, with the line where the call was dropped.
_perform: Any = vars(Steps)["_perform"]
_perform.__qualname__ = "the call of a step in a workflow"


class Executions(msgspec.Struct, eq=False):
    """The steps of a turn: executing, or pausing before another attempt. It outlives a replay.

    It decides which steps start and which are cancelled. Both are effects: what led to them must be
    durable first. `pausing` are the steps that wait for their next attempt. `uncertain_ends` are
    the ends of steps that the code has given up, while a replay may still take that back.
    """

    executing: dict[str, Call] = {}
    uncertain_ends: dict[str, Event] = {}
    pausing: dict[str, Call] = {}

    def cancel(self, steps: Steps, durable: int) -> list[str]:
        """Return the keys of executing steps that the code has given up for certain."""
        given_up, found = steps.given_up, list[str]()
        for key, mark in list(given_up.items()):
            if mark <= durable:
                del given_up[key]
                self.uncertain_ends.pop(key, None)
                if self.executing.pop(key, None) is not None:
                    found.append(key)
        return found

    def start(self, steps: Steps, durable: int) -> list[Call]:
        """Return the calls that may start now. Those that execute already continue.

        Raises DeterminismError for a recorded pause of a step that could not be tried again.
        """
        issued, pending, executing, taken = steps.issued, steps.pending, self.executing, 0
        found: list[Call] = []
        for call in issued:
            if call.mark > durable and call.retry_at is None:
                break
            taken += 1
            if pending.get(call.key) is not call or call.key in executing:
                continue
            if call.retry_at is None:
                executing[call.key] = call
                found.append(call)
            else:
                self._pause_again(steps, call, found)
        del issued[:taken]
        return found

    def _pause_again(self, steps: Steps, call: Call, found: list[Call]) -> None:
        """Let a call wait that the log says was tried: maybe by older code."""
        try:
            steps.check_fit(call)
        except DeterminismError:
            self.forget(found)
            raise
        self.pausing[call.key] = call

    def forget(self, calls: Iterable[Call]) -> None:
        """Take back calls that `start` returned: the turn must not start them."""
        for call in calls:
            self.executing.pop(call.key, None)

    def start_again(self, steps: Steps, durable: int, now: int) -> list[Call]:
        """Return the calls to be tried again: their pause is over, their failure is durable."""
        found: list[Call] = []
        for key, call in list(self.pausing.items()):
            if steps.pending.get(key) is not call:
                del self.pausing[key]
            elif call.mark <= durable and (call.retry_at or 0) <= now:
                del self.pausing[key]
                call.retry_at = call.streams = None
                self.executing[key] = call
                found.append(call)
        return found

    def pause(self, call: Call, mark: int) -> None:
        """Let a call wait for its next attempt, at least until its failure is durable."""
        call.mark = mark
        self.pausing[call.key] = call

    def forget_pauses(self) -> None:
        """Forget all pauses: a rebuilt instance finds them again."""
        self.pausing.clear()

    def all_pause(self, steps: Steps, now: int) -> bool:
        """Return True if every pending step pauses so long that the run does not need its lease."""
        return len(steps.pending) <= len(self.pausing) and all(
            (call.retry_at or 0) > now + IN_PLACE for call in steps.pending.values()
        )

    def next_retry(self, durable: int | None = None) -> int | None:
        """Return the earliest end of a pause; with `durable`, only of calls that may start then."""
        moments = [
            call.retry_at or 0
            for call in self.pausing.values()
            if durable is None or call.mark <= durable
        ]
        return min(moments, default=None)

    def stop(self) -> list[str]:
        """Forget the executing steps, and return their keys."""
        found = list(self.executing)
        self.executing.clear()
        return found


def completed_step(call: Call, result: str, started_at: int, at: int) -> Event:
    """Return the end of a step with a result, as JSON text."""
    args = fingerprint(call.arguments)
    text = write_step_completed(call.name, args, call.attempt, result, started_at, call.streams)
    return Event(STEP_COMPLETED, call.key, text, at)


def failed_step(
    call: Call, error: ErrorInfo, started_at: int, retry_at: int | None, timed_out: bool, at: int
) -> Event:
    """Return the failure of a step's attempt: its end, unless it is tried again at `retry_at`."""
    name, args, attempt = call.name, call.fingerprint, call.attempt
    if retry_at is None:
        text = write_step_failed(name, args, attempt, error, started_at, timed_out, call.streams)
        return Event(STEP_FAILED, call.key, text, at)
    text = write_step_retry(name, args, attempt, error, retry_at)
    return Event(STEP_RETRY, call.key, text, at)
