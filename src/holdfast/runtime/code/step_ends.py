"""The ends of steps, as the log has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from holdfast.codec import describe
from holdfast.errors import PayloadError, StepFailed, StepTimedOut
from holdfast.events import (
    STEP_COMPLETED,
    STEP_FAILED,
    read_step_completed,
    read_step_failed,
    write_step_failed,
)
from holdfast.runtime.code.calls import Call
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

_call: Final = re.compile(r'"name":"([^"]*)","args":(\d+),')


def step_unstorable(completed: Event, message: str) -> Event:
    """Return the failure of a step whose result the database refuses to store."""
    # Its result is not read: it may be what cannot be.
    found = _call.search((completed.details or "")[:1000])
    assert found is not None, "a step's end begins with its name and the arguments' fingerprint"
    error = describe(PayloadError(f"the result of {completed.key} cannot be stored: {message}"))
    text = write_step_failed(found[1], int(found[2]), 1, error, completed.at, False)
    return Event(STEP_FAILED, completed.key, text, completed.at)


def settle(loop: WorkflowLoop, call: Call, event: Event) -> None:
    """Give a call the end that the log has for it."""
    text, future = event.details or "", call.future
    assert future is not None, "only a call that is awaited has an end"
    if event.type == STEP_COMPLETED:
        done = read_step_completed(text)
        check_call(loop, call, done.name, done.args)
        future.set_result(done.result)
        return
    failed = read_step_failed(text)
    check_call(loop, call, failed.name, failed.args)
    kind = StepTimedOut if failed.timed_out else StepFailed
    loop.failures.tell(call.key, loop.position)
    future.set_exception(kind(call.key, failed.error))


def check_call(loop: WorkflowLoop, call: Call, name: str, args: int) -> None:
    """Raise DeterminismError where the log has another step or other arguments for a key."""
    if name != call.name:
        loop.check(call.key, f"a call of {name}", f"a call of {call.name}")
    if not call.has_arguments(args):
        loop.check(call.key, f"a call of {name} with other arguments", f"a call of {name}")
