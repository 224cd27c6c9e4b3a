"""The ends of steps, as the log has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import StepFailed, StepTimedOut
from holdfast.runtime.code.calls import Call
from holdfast.runtime.log import details
from holdfast.runtime.log.details import STEP_COMPLETED
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop


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
    loop.failures.tell(call.key, loop.position)
    future.set_exception(kind(call.key, failed.error))


def check_call(loop: WorkflowLoop, call: Call, name: str, args: int) -> None:
    """Raise DeterminismError where the log has another step or other arguments for a key."""
    if name != call.name:
        loop.check(call.key, f"a call of {name}", f"a call of {call.name}")
    if args != call.fingerprint:
        loop.check(call.key, f"a call of {name} with other arguments", f"a call of {name}")
