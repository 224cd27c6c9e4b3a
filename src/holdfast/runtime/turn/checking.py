"""Checks that find code that is not deterministic, in tests and in development."""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import FrameType
from typing import Any, Final, Literal, TypeAlias

from msgspec import field

from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError
from holdfast.events import ATTRIBUTES_SET, CALL_COMMANDS, VALUE_RECORDED, VALUE_SET
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import ContextPart, RunInfo
from holdfast.runtime.code.steps import Call, Steps
from holdfast.runtime.log.virtual_log import VirtualLog, in_delivery_order
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.user_code import (
    is_user_code,
    line_of_call,
    line_of_error,
    line_of_waiting,
    running_line,
)
from holdfast.runtime.loop.watch import Watch
from holdfast.runtime.turn.divergence import Reason
from holdfast.runtime.turn.outcome import outcome, raised
from holdfast.types import Event

Check: TypeAlias = Literal["no", "warn", "refuse"]

_WRITTEN: Final = CALL_COMMANDS | {ATTRIBUTES_SET, VALUE_RECORDED, VALUE_SET}
_POP: Final = dis.opmap["POP_TOP"]
_PERFORM: Final = Steps._perform.__code__  # pyright: ignore[reportPrivateUsage]


def watch(instance: Instance, *, refuse: bool) -> None:
    """Look for calls that a run's code must not make, and for those that it does not await.

    With `refuse` such a call makes the run stuck, otherwise it is a warning.
    """
    loop = instance.loop

    def warn(problem: str) -> None:
        if problem not in loop.problems:
            loop.problems.append(problem)

    def stop(problem: str) -> None:
        loop.broken = loop.broken or DeterminismError(problem)

    tell = stop if refuse else warn
    loop.watch = Watch(tell)
    _watch_steps(instance, tell, warn)


def _watch_steps(
    instance: Instance, tell: Callable[[str], None], warn: Callable[[str], None]
) -> None:
    _watch_coroutines()
    steps = WatchedSteps(instance, loop=instance.loop, tell=tell, warn=warn)
    instance.steps = instance.ledgers[Steps] = steps


_Made: TypeAlias = tuple[Call, weakref.ref[Coroutine[object, None, Any]], str]


class WatchedSteps(Steps, kw_only=True):
    """The steps of a run that is checked: they report calls that the code does not await.

    Python tells of a call that was dropped. `check_end` finds those that the code still has.
    """

    loop: WorkflowLoop
    tell: Callable[[str], None]
    warn: Callable[[str], None]
    _made: list[_Made] = field(default_factory=list[_Made])

    def call(
        self,
        step: Step[..., object],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, Any]:
        """Call a step under a name, and remember the line."""
        coro = super().call(step, leaf, args, kwargs)
        line = running_line() or "code that cannot be seen"
        self._made.append((_call_of(coro), weakref.ref(coro), f"{line} calls step {step.name}"))
        return coro

    def dropped(self, coro: object) -> None:
        """Report a call that nobody can await any more. A closed run drops all that it has."""
        call = _call_of(coro)
        for made, _, what in () if self.loop.closing else self._made:
            if made is call:
                _forgotten(self.loop, _unawaited(what), self.tell)

    def check_end(self, *, raised: bool) -> None:
        """Report the calls that code that has ended never awaited.

        If it has raised, they are a warning: the error may have kept it from awaiting them.
        """
        for _, ref, what in self._made:
            if (coro := ref()) is not None and inspect.getcoroutinestate(coro) == "CORO_CREATED":
                (self.warn if raised else self.tell)(_unawaited(what))


def check_end(instance: Instance) -> None:
    """Report the steps that the watched code of a run, which has ended, has never awaited.

    Raises DeterminismError if the run is to be stuck for one of them.
    """
    loop, steps = instance.loop, instance.steps
    if isinstance(steps, WatchedSteps) and (root := loop.root) is not None:
        left = loop.fatal is not None  # by an exit of another task: the run's own code may wait
        steps.check_end(raised=left or root.cancelled() or root.exception() is not None)
    if loop.broken is not None:
        raise loop.broken


def verify_end(
    workflow: Workflow[Any, object], info: RunInfo, instance: Instance, log: VirtualLog
) -> None:
    """Replay the log of code that has ended, in a check.

    Raises DeterminismError if it does not end again and make the same calls, and in a check that
    refuses if it has not awaited a step.
    """
    check_end(instance)
    if log.durable is not None:
        whole = in_delivery_order([*log.durable, *log.fresh])
        replay_to_end(workflow, info, whole, instance.history.unused())


def _ignore(problem: str) -> None: ...


def _call_of(coro: Any) -> Call:
    call: Call = coro.cr_frame.f_locals["call"]
    return call


def _unawaited(what: str, called: str = "the step") -> str:
    return f"{what} and does not await it: {called} never runs; write `await` before the call"


def _forgotten(loop: WorkflowLoop, problem: str, tell: Callable[[str], None]) -> None:
    """Report a call that nobody can await any more, once the task that has dropped it suspends.

    If it has raised or was cancelled, this is a warning: that may have kept it from awaiting.
    """
    task = asyncio.current_task(loop)

    def judge() -> None:
        # Without exception(): asyncio would take it for one that was retrieved.
        kept = task is not None and (task.cancelled() or task._exception is not None)
        (loop.problems.append if kept else tell)(problem)

    if task is None:
        judge()
    else:
        loop.make_ready(asyncio.Handle(judge, (), loop))


def _loop_of(coro: Any, frame: FrameType | None) -> WorkflowLoop | None:
    """Return the loop of the run whose code has dropped a coroutine; None if none is known.

    The coroutine is given the run's context, or workflow code drops it in the statement that made
    it: what is collected later may be of another run. `frame` is that of the function that calls.
    """
    for given in coro.cr_frame.f_locals.values():
        if isinstance(given, ContextPart):
            return given._run.loop  # pyright: ignore[reportPrivateUsage]
    loop, caller = asyncio.events._get_running_loop(), frame and frame.f_back
    if not isinstance(loop, WorkflowLoop) or caller is None:
        return None
    is_statement = caller.f_code.co_code[caller.f_lasti] == _POP
    return loop if is_statement and is_user_code(caller.f_code.co_filename) else None


@functools.cache
def _watch_coroutines() -> None:
    """Take over Python's warning of coroutines that are dropped before they began."""
    original = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]

    def warn(coro: Any) -> None:
        owner = coro.cr_frame.f_locals.get("self")
        if coro.cr_code is _PERFORM and isinstance(owner, WatchedSteps):
            owner.dropped(coro)
            return
        loop = _loop_of(coro, inspect.currentframe())
        if loop is not None and loop.watch is not None:
            if not loop.closing:
                name = f"ctx.{coro.__name__}" if isinstance(owner, ContextPart) else coro.__name__
                problem = _unawaited(f"{running_line() or 'its code'} calls {name}", "it")
                _forgotten(loop, problem, loop.watch.tell)
        elif coro.cr_origin is None:
            # As `original` does, but at the line of its caller: it would name this one.
            text = f"coroutine {coro.__qualname__!r} was never awaited"
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=coro)
        else:
            original(coro)

    warnings._warn_unawaited_coroutine = warn  # type: ignore[attr-defined]


def replay_to_end(
    workflow: Workflow[Any, object],
    info: RunInfo,
    log: Sequence[Event],
    unused: Collection[str] | None = None,
    end: str | None = None,
) -> None:
    """Replay the log of code that has ended, and compare.

    `unused` are recorded calls that the code has not made: the replay need not make them either.
    Without it, they are the copied calls of a fork that its code may leave out.
    Raises DeterminismError if the replay does not end, or not by this type of event, or does not
    make the same calls.
    """
    written: list[str] = []

    def note(kind: str, key: str, text: str | None) -> None:
        if kind in _WRITTEN:
            written.append(key)

    again = Instance(workflow, info, note)
    _watch_steps(again, _ignore, _ignore)  # what it does not await was reported before
    again.history.live_from = again.history.length = len(log)  # so that its logger is silent
    try:
        if len(log) > 1:
            again.foresee(log)
        for event in log:
            again.feed(event)
        missing = _missing(again, log, unused)
        if found := _difference(again, missing, written, end):
            raise DeterminismError(
                f"a replay of the run differs from what it has done: {found.text}; workflow code "
                "must do the same on each replay",
                line=found.line,
                key=found.key,
            )
    finally:
        again.close()


def _missing(again: Instance, log: Sequence[Event], unused: Collection[str] | None) -> list[str]:
    """Return the keys of recorded calls that the code has not made, in the order of the log."""
    allowed = again.history.copied if unused is None else unused
    left = {key for key in again.history.unused() if key not in allowed}
    ordered = dict.fromkeys(event.key for event in log if event.key in left)
    return [*filter(None, ordered), *sorted(left - ordered.keys())]


def _difference(
    again: Instance, missing: Sequence[str], written: Sequence[str], end: str | None
) -> Reason | None:
    loop = again.loop
    if missing:
        text, calls = f"it does not call {', '.join(missing)}", [*written, *again.steps.pending]
        if not calls or loop.ended:
            return Reason(text, missing[0])
        line = line_of_call(loop, loop.tasks, calls[0])
        return Reason(f"{text}, and calls {', '.join(calls)} instead", missing[0], line)
    if written:
        line = line_of_call(loop, loop.tasks, written[0])
        return Reason(f"it calls {', '.join(written)} besides", line=line)
    if not loop.ended:
        waits = ", ".join(again.steps.pending) or "something else"
        return Reason(f"it does not end, and waits for {waits}", line=line_of_waiting(loop.tasks))
    if end is not None and (kind := outcome(again).kind) != end:
        error = raised(again)
        text = f"it ends with {kind}, and not with {end}"
        return Reason(text, line=None if error is None else line_of_error(error))
    return None
