"""The details of a run's events, as the runtime writes and reads them.

The shapes are stable: fields may be added, never renamed. What a step returned is spliced in as
the JSON text that it is, and comes back as `msgspec.Raw`: it is decoded where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.types import ORDERS, ErrorInfo

WORKFLOW_STARTED: Final = "WorkflowStarted"
STEP_COMPLETED: Final = "StepCompleted"
STEP_FAILED: Final = "StepFailed"
STEP_RETRY: Final = "StepRetryScheduled"
TIMER_SCHEDULED: Final = "TimerScheduled"
TIMER_FIRED: Final = "TimerFired"
SIGNAL_RECEIVED: Final = "SignalReceived"
CANCEL_REQUESTED: Final = "WorkflowCancelRequested"
VALUE_SET: Final = "ValueSet"
VALUE_RECORDED: Final = "ValueRecorded"
ACTIVITY_SCHEDULED: Final = "ActivityScheduled"
ACTIVITY_CANCEL: Final = "ActivityCancelRequested"
ACTIVITY_COMPLETED: Final = "ActivityCompleted"
ACTIVITY_FAILED: Final = "ActivityFailed"
CHILD_STARTED: Final = "ChildStarted"
CHILD_CANCEL: Final = "ChildCancelRequested"
CHILD_COMPLETED: Final = "ChildCompleted"
CHILD_FAILED: Final = "ChildFailed"
APPROVAL_REQUESTED: Final = "ApprovalRequested"
APPROVAL_WITHDRAWN: Final = "ApprovalWithdrawn"
APPROVAL_RESOLVED: Final = "ApprovalResolved"
SIGNAL_SENT: Final = "SignalSent"
UPDATE_ACCEPTED: Final = "UpdateAccepted"
UPDATE_REJECTED: Final = "UpdateRejected"
UPDATE_COMPLETED: Final = "UpdateCompleted"
PAUSED: Final = "WorkflowPaused"
RESUMED: Final = "WorkflowResumed"
FORKED: Final = "WorkflowForked"
WORKER_LOST: Final = "WorkerLost"
YIELDED: Final = "WorkflowTaskYielded"
COMPLETED: Final = "WorkflowCompleted"
FAILED: Final = "WorkflowFailed"
CANCELLED: Final = "WorkflowCanceled"
CONTINUED: Final = "WorkflowContinuedAsNew"

TERMINAL: Final = frozenset(
    {
        COMPLETED,
        FAILED,
        CANCELLED,
        "WorkflowTimedOut",
        "WorkflowTerminated",
        CONTINUED,
    }
)
# What the log has of steps.
STEPS: Final = frozenset({STEP_COMPLETED, STEP_FAILED, STEP_RETRY})
# How what was ordered from others has ended.
ENDS: Final = frozenset(
    {ACTIVITY_COMPLETED, ACTIVITY_FAILED, CHILD_COMPLETED, CHILD_FAILED, APPROVAL_RESOLVED}
)
# Facts of the code's own, which the store acts on.
NOTED_ORDERS: Final = ORDERS - TERMINAL
ANSWERS: Final = frozenset({UPDATE_ACCEPTED, UPDATE_REJECTED, UPDATE_COMPLETED})
# Written by others than the worker that runs the code.
GUESTS: Final = ENDS | {
    WORKFLOW_STARTED,
    SIGNAL_RECEIVED,
    CANCEL_REQUESTED,
    WORKER_LOST,
    PAUSED,
    RESUMED,
    FORKED,
    "ActivityRetryScheduled",
}


class StepCompleted(msgspec.Struct, gc=False):
    """A step's result, with the fingerprint of the call that it belongs to."""

    name: str
    args: int
    result: msgspec.Raw


class RecordedStep(msgspec.Struct, gc=False):
    """What of a step's end tells one call from another."""

    name: str
    args: int


class StepFailed(msgspec.Struct, gc=False):
    """A step's last error; `timed_out` says that the last attempt ran out of time."""

    name: str
    args: int
    error: ErrorInfo
    timed_out: bool = False


class StepRetryScheduled(msgspec.Struct, gc=False):
    """A failed attempt that is followed by another, not before `retry_at`."""

    name: str
    args: int
    attempt: int
    retry_at: int


class Timer(msgspec.Struct, gc=False):
    """A timer's deadline; `delay` in seconds is its fingerprint.

    Older releases did not write it for a timer that had fired.
    """

    fire_at: int
    delay: float | None = None


class SignalReceived(msgspec.Struct, gc=False):
    """A message to the run; an update is answered, and `reply_to` is the topic that hears of it."""

    signal_name: str
    input: msgspec.Raw
    update: bool = False
    reply_to: str | None = None


class WorkerLost(msgspec.Struct, gc=False):
    """A lease that ran out; the turn's task has the key ''."""

    task_key: str
    lease_no: int


read_step_completed: Final = msgspec.json.Decoder(StepCompleted).decode
read_step: Final = msgspec.json.Decoder(RecordedStep).decode
read_step_failed: Final = msgspec.json.Decoder(StepFailed).decode
read_step_retry: Final = msgspec.json.Decoder(StepRetryScheduled).decode
read_timer: Final = msgspec.json.Decoder(Timer).decode
read_signal: Final = msgspec.json.Decoder(SignalReceived).decode
read_worker_lost: Final = msgspec.json.Decoder(WorkerLost).decode

_encode = msgspec.json.Encoder().encode


def step_completed(name: str, args: int, attempt: int, result: str, started_at: int) -> str:
    """Return the details of a StepCompleted. Names of steps need no quoting."""
    tried = "" if attempt == 1 else f',"attempt":{attempt}'
    return f'{{"name":"{name}","args":{args},"result":{result},"started_at":{started_at}{tried}}}'


def step_failed(
    name: str, args: int, attempt: int, error: ErrorInfo, started_at: int, timed_out: bool
) -> str:
    """Return the details of a StepFailed."""
    late = ',"timed_out":true' if timed_out else ""
    return (
        f'{{"name":"{name}","args":{args},"error":{_encode(error).decode()},'
        f'"started_at":{started_at},"attempt":{attempt}{late}}}'
    )


def step_retry(name: str, args: int, attempt: int, error: ErrorInfo, retry_at: int) -> str:
    """Return the details of a StepRetryScheduled."""
    return (
        f'{{"name":"{name}","args":{args},"attempt":{attempt},'
        f'"error":{_encode(error).decode()},"retry_at":{retry_at}}}'
    )


def timer(key: str, fire_at: int, delay: int) -> str:
    """Return the details of a TimerScheduled or TimerFired; `delay` is in microseconds."""
    timer_id = _encode(key).decode()
    return f'{{"timer_id":{timer_id},"fire_at":{fire_at},"delay":{delay / 1e6}}}'


def workflow_failed(calls: Sequence[str], seen: int) -> str:
    """Return what a WorkflowFailed has for a retry: the calls that ended the run, which had `seen`
    that many entries of its log then. Its error is stored once, in the run's row.
    """
    return _encode({"calls": calls, "seen": seen}).decode()


def value_set(value: str) -> str:
    """Return the details of a ValueSet; `value` is JSON text."""
    return f'{{"value":{value}}}'
