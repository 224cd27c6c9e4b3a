"""The event types of a log: the role of each, the command that it is about, its details.

This table is the only place where event types are told apart. Sets of types in other modules are
derived from it, and a test compares it with what the SQL functions say of each type.

Shapes are stable: fields may be added, never renamed. A shape has what is read; a log may have
more. Payloads are JSON text: `msgspec.Raw`, which is decoded where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.codec import fingerprint
from holdfast.types import ErrorInfo, Event, FormField, RunKind

Shape: TypeAlias = type[msgspec.Struct] | None
ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]

Role: TypeAlias = Literal[
    "start",  # the first entry
    "command",  # a call of the code, which the store carries out with the commit
    "withdrawal",  # takes a command back; carried out as well
    "command_end",  # how a command ended; written by others
    "external",  # anything else that others write
    "delivered",  # what the worker brought about and feeds to the code
    "fact",  # anything else that the code did
    "suspension",  # the last entry of a commit that had nothing else to record
    "end",  # of the run: the last entry of its log
]


class StepCompleted(msgspec.Struct, gc=False):
    """A step's result, with the fingerprint of the call that it belongs to."""

    name: str
    args: int
    result: msgspec.Raw


class RecordedStep(msgspec.Struct, gc=False):
    """The fields of a step's end that tell one call from another."""

    name: str
    args: int


class StepFailed(msgspec.Struct, gc=False):
    """A step's last error; `timed_out` is true if the last attempt ran out of time."""

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


class RetryPolicy(msgspec.Struct, gc=False):
    """When a failed attempt is tried again; times are in seconds."""

    attempts: int | None
    backoff: str
    base: float
    max: float
    factor: float
    jitter: float


class ActivityScheduled(msgspec.Struct, gc=False):
    """An activity to be run; `args` is the fingerprint of its `input`."""

    activity_name: str
    args: int
    input: msgspec.Raw
    queue: str
    priority: int
    retry: RetryPolicy
    start_to_close: float | None
    schedule_to_close: float | None
    heartbeat_timeout: float | None


class RecordedActivity(msgspec.Struct, gc=False):
    """The fields of an ActivityScheduled that tell one call from another."""

    activity_name: str
    args: int


class ActivityRetryScheduled(msgspec.Struct, gc=False):
    """A failed attempt that is followed by another, not before `retry_at`."""

    activity_name: str
    attempt: int
    error: ErrorInfo
    retry_at: int


class ActivityCompleted(msgspec.Struct, gc=False):
    """An activity's result."""

    activity_name: str
    result: msgspec.Raw


class ActivityFailed(msgspec.Struct, gc=False):
    """An activity's last error."""

    activity_name: str
    error: ErrorInfo
    timed_out: bool = False


class ChildStarted(msgspec.Struct, gc=False):
    """A run to be started; times are in seconds, None for never.

    `kind` is null if the program that starts it knows it by its name only.
    """

    workflow_name: str
    version: int
    args: int
    child_run_id: UUID
    input: msgspec.Raw
    queue: str
    priority: int
    key: str | None
    parent_close: ParentClose
    timeout: float | None
    retention: float | None
    tags: tuple[str, ...]
    headers: Mapping[str, str] | None = None
    kind: RunKind | None = None


class RecordedChild(msgspec.Struct, gc=False):
    """The fields of a ChildStarted that tell one call from another, and the run that it started."""

    workflow_name: str
    args: int
    child_run_id: UUID


class ChildCompleted(msgspec.Struct, gc=False):
    """A child's output; the run that ended may be one that it continued as."""

    child_run_id: UUID
    output: msgspec.Raw


class ChildFailed(msgspec.Struct, gc=False):
    """How a child ended that did not complete."""

    child_run_id: UUID
    status: str
    error: ErrorInfo | None = None


class ChildCancelRequested(msgspec.Struct, gc=False):
    """A child to be cancelled."""

    child_run_id: UUID
    reason: str | None = None


class ApprovalRequested(msgspec.Struct, gc=False):
    """A decision that is asked for; `timeout_at` is in microseconds since 1970 UTC."""

    title: str
    description: str
    fields: tuple[FormField, ...]
    timeout_at: int | None

    @property
    def fingerprint(self) -> int:
        """The form, condensed. The description may change while a person decides."""
        return fingerprint(_encode(self.fields).decode())


class ApprovalResolved(msgspec.Struct, gc=False):
    """A person's decision; `values` is what the form's fields were filled in with."""

    approved: bool
    by: str | None = None
    feedback: str | None = None
    values: dict[str, object] | None = None


class SignalReceived(msgspec.Struct, gc=False):
    """A message to the run; an update is answered, and `reply_to` is the topic that hears of it."""

    signal_name: str
    input: msgspec.Raw
    update: bool = False
    reply_to: str | None = None


class SignalSent(msgspec.Struct, gc=False):
    """A message to another run."""

    run_id: UUID
    signal_name: str
    input: msgspec.Raw
    signal_id: str

    @property
    def fingerprint(self) -> int:
        """The target and the payload, condensed."""
        return fingerprint(self.compared(bytes(self.input).decode()))

    def compared(self, payload: str) -> str:
        """Return what is condensed of such a message with a payload."""
        return f"{self.run_id} {payload}"


class UpdateReply(msgspec.Struct, omit_defaults=True):
    """What became of an update: accepted, rejected with an `error`, or carried out."""

    update_name: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorInfo | None = None


class ValueSet(msgspec.Struct, gc=False):
    """A value that the code has set or drawn."""

    value: msgspec.Raw


class Reason(msgspec.Struct, gc=False):
    """Why a person or a program stopped or paused a run."""

    reason: str | None = None


class Forked(msgspec.Struct, gc=False):
    """A copy of another run's log; the chance of both derives from `seed`."""

    seed: UUID


class WorkerLost(msgspec.Struct, gc=False):
    """A lease that ran out; the turn's task has the key ''."""

    task_key: str
    lease_no: int


class WorkflowFailed(msgspec.Struct, gc=False):
    """The calls whose failures ended the run; `seen` entries of its log led to the first of them.

    Older releases did not write it. The error is stored once, in the run's row.
    """

    calls: Sequence[str] = ()
    seen: int | None = None


class CarriedSignal(msgspec.Struct, gc=False):
    """A signal that the code has not taken, for the run that this one continues as."""

    signal_name: str
    input: msgspec.Raw
    key: str | None
    update: bool
    reply_to: str | None


class ContinuedAsNew(msgspec.Struct, gc=False):
    """The run that takes this one's place."""

    run_id: UUID
    input: msgspec.Raw
    version: int
    signals: list[CarriedSignal]


class Target(msgspec.Struct, gc=False):
    """The run that a command is about."""

    run_id: UUID | None = None
    child_run_id: UUID | None = None


class EventType(msgspec.Struct, frozen=True):
    """One event type.

    `details` is None if there are none, or if they are the run's input or output. `command` is
    the command that it ends, takes back or tells of.
    """

    name: str
    role: Role
    details: Shape
    command: str | None


TYPES: Final[dict[str, EventType]] = {}


def _type(name: str, role: Role, details: Shape = None, *, of: str | None = None) -> str:
    TYPES[name] = EventType(name, role, details, of)
    return name


WORKFLOW_STARTED: Final = _type("WorkflowStarted", "start")

STEP_COMPLETED: Final = _type("StepCompleted", "delivered", StepCompleted)
STEP_FAILED: Final = _type("StepFailed", "delivered", StepFailed)
STEP_RETRY: Final = _type("StepRetryScheduled", "fact", StepRetryScheduled)
TIMER_SCHEDULED: Final = _type("TimerScheduled", "fact", Timer)
TIMER_FIRED: Final = _type("TimerFired", "delivered", Timer)

_ACTIVITY: Final = "ActivityScheduled"
ACTIVITY_SCHEDULED: Final = _type(_ACTIVITY, "command", ActivityScheduled)
ACTIVITY_CANCEL: Final = _type("ActivityCancelRequested", "withdrawal", of=_ACTIVITY)
ACTIVITY_RETRY: Final = _type(
    "ActivityRetryScheduled", "external", ActivityRetryScheduled, of=_ACTIVITY
)
ACTIVITY_COMPLETED: Final = _type(
    "ActivityCompleted", "command_end", ActivityCompleted, of=_ACTIVITY
)
ACTIVITY_FAILED: Final = _type("ActivityFailed", "command_end", ActivityFailed, of=_ACTIVITY)

_CHILD: Final = "ChildStarted"
CHILD_STARTED: Final = _type(_CHILD, "command", ChildStarted)
CHILD_CANCEL: Final = _type("ChildCancelRequested", "withdrawal", ChildCancelRequested, of=_CHILD)
CHILD_COMPLETED: Final = _type("ChildCompleted", "command_end", ChildCompleted, of=_CHILD)
CHILD_FAILED: Final = _type("ChildFailed", "command_end", ChildFailed, of=_CHILD)

_APPROVAL: Final = "ApprovalRequested"
APPROVAL_REQUESTED: Final = _type(_APPROVAL, "command", ApprovalRequested)
APPROVAL_WITHDRAWN: Final = _type("ApprovalWithdrawn", "withdrawal", of=_APPROVAL)
APPROVAL_RESOLVED: Final = _type("ApprovalResolved", "command_end", ApprovalResolved, of=_APPROVAL)

SIGNAL_RECEIVED: Final = _type("SignalReceived", "external", SignalReceived)
SIGNAL_SENT: Final = _type("SignalSent", "command", SignalSent)
UPDATE_ACCEPTED: Final = _type("UpdateAccepted", "fact", UpdateReply)
UPDATE_REJECTED: Final = _type("UpdateRejected", "fact", UpdateReply)
UPDATE_COMPLETED: Final = _type("UpdateCompleted", "fact", UpdateReply)
VALUE_SET: Final = _type("ValueSet", "fact", ValueSet)
VALUE_RECORDED: Final = _type("ValueRecorded", "fact", ValueSet)

for _name in ("Started", "Completed", "Failed", "RetryScheduled", "Skipped"):
    _type(f"FlowStep{_name}", "fact")  # only SQL reads and writes their details

CANCEL_REQUESTED: Final = _type("WorkflowCancelRequested", "external", Reason)
PAUSED: Final = _type("WorkflowPaused", "external", Reason)
RESUMED: Final = _type("WorkflowResumed", "external")
FORKED: Final = _type("WorkflowForked", "external", Forked)
WORKER_LOST: Final = _type("WorkerLost", "external", WorkerLost)
YIELDED: Final = _type("WorkflowTaskYielded", "suspension")

COMPLETED: Final = _type("WorkflowCompleted", "end")
FAILED: Final = _type("WorkflowFailed", "end", WorkflowFailed)
CANCELLED: Final = _type("WorkflowCanceled", "end")
TIMED_OUT: Final = _type("WorkflowTimedOut", "end")
TERMINATED: Final = _type("WorkflowTerminated", "end", Reason)
CONTINUED: Final = _type("WorkflowContinuedAsNew", "end", ContinuedAsNew)  # carried out as well


def with_role(*roles: Role) -> frozenset[str]:
    """Return the names of the event types that have one of these roles."""
    return frozenset(each.name for each in TYPES.values() if each.role in roles)


TERMINAL: Final = with_role("end")
CALL_COMMANDS: Final = with_role("command", "withdrawal")  # after which the run continues
COMMANDS: Final = CALL_COMMANDS | {CONTINUED}  # what the store carries out
COMMAND_ENDS: Final = with_role("command_end")
EXTERNAL: Final = with_role("start", "external", "command_end")
DELIVERED: Final = with_role("delivered")
COMMAND_OF: Final = {each.name: each.command for each in TYPES.values() if each.command}
# A worker's entries that are on their way may stand after these. For anything else that others
# write the code is replayed: the writer was told that it holds.
_OTHERS_THAT_CAN_WAIT: Final = {ACTIVITY_RETRY, SIGNAL_RECEIVED, WORKER_LOST}
CAN_WAIT: Final = COMMAND_ENDS - {APPROVAL_RESOLVED} | _OTHERS_THAT_CAN_WAIT

STEP_ENDS: Final = frozenset({STEP_COMPLETED, STEP_FAILED})
STEPS: Final = STEP_ENDS | {STEP_RETRY}
TIMERS: Final = frozenset({TIMER_SCHEDULED, TIMER_FIRED})
CALL_FAILURES: Final = frozenset({STEP_FAILED, ACTIVITY_FAILED, CHILD_FAILED})
UPDATE_ENDS: Final = frozenset({UPDATE_COMPLETED, UPDATE_REJECTED})
UPDATE_REPLIES: Final = UPDATE_ENDS | {UPDATE_ACCEPTED}
# Their keys are names and ids that callers chose; all other keys are those of calls.
NAMED_BY_CALLERS: Final = UPDATE_REPLIES | {SIGNAL_RECEIVED, VALUE_SET}
# Their details are the run's input, output or error, which are stored once.
TOLD_BY_RUN: Final = frozenset({WORKFLOW_STARTED, COMPLETED, FAILED})

read_step_completed: Final = msgspec.json.Decoder(StepCompleted).decode
read_step: Final = msgspec.json.Decoder(RecordedStep).decode
read_step_failed: Final = msgspec.json.Decoder(StepFailed).decode
read_step_retry: Final = msgspec.json.Decoder(StepRetryScheduled).decode
read_timer: Final = msgspec.json.Decoder(Timer).decode
read_signal: Final = msgspec.json.Decoder(SignalReceived).decode
read_worker_lost: Final = msgspec.json.Decoder(WorkerLost).decode
read_recorded_activity: Final = msgspec.json.Decoder(RecordedActivity).decode
read_recorded_child: Final = msgspec.json.Decoder(RecordedChild).decode
read_approval_requested: Final = msgspec.json.Decoder(ApprovalRequested).decode
read_signal_sent: Final = msgspec.json.Decoder(SignalSent).decode
read_target: Final = msgspec.json.Decoder(Target).decode
read_activity_completed: Final = msgspec.json.Decoder(ActivityCompleted).decode
read_activity_failed: Final = msgspec.json.Decoder(ActivityFailed).decode
read_child_completed: Final = msgspec.json.Decoder(ChildCompleted).decode
read_child_failed: Final = msgspec.json.Decoder(ChildFailed).decode
read_approval_resolved: Final = msgspec.json.Decoder(ApprovalResolved).decode
read_forked: Final = msgspec.json.Decoder(Forked).decode

_encode = msgspec.json.Encoder().encode


def write_details(details: msgspec.Struct) -> str:
    """Return details as JSON text."""
    return _encode(details).decode()


def write_step_completed(name: str, args: int, attempt: int, result: str, started_at: int) -> str:
    """Return the details of a StepCompleted. Names of steps need no quoting."""
    tried = "" if attempt == 1 else f',"attempt":{attempt}'
    return f'{{"name":"{name}","args":{args},"result":{result},"started_at":{started_at}{tried}}}'


def write_step_failed(
    name: str, args: int, attempt: int, error: ErrorInfo, started_at: int, timed_out: bool
) -> str:
    """Return the details of a StepFailed."""
    late = ',"timed_out":true' if timed_out else ""
    return (
        f'{{"name":"{name}","args":{args},"error":{_encode(error).decode()},'
        f'"started_at":{started_at},"attempt":{attempt}{late}}}'
    )


def write_step_retry(name: str, args: int, attempt: int, error: ErrorInfo, retry_at: int) -> str:
    """Return the details of a StepRetryScheduled."""
    return (
        f'{{"name":"{name}","args":{args},"attempt":{attempt},'
        f'"error":{_encode(error).decode()},"retry_at":{retry_at}}}'
    )


def write_timer(key: str, fire_at: int, delay_micros: int) -> str:
    """Return the details of a TimerScheduled or TimerFired."""
    timer_id = _encode(key).decode()
    return f'{{"timer_id":{timer_id},"fire_at":{fire_at},"delay":{delay_micros / 1e6}}}'


def write_value(value: str) -> str:
    """Return the details of a ValueSet or ValueRecorded; `value` is JSON text."""
    return f'{{"value":{value}}}'


# An entry of a worker that was written after what others had appended says in its details, as
# `seen`, how many entries of the log the code had seen. Those of others from that index on stand
# before it in the log, and the code saw them after it.
_BEGINNINGS: Final = ('{"seen":', '{"python":')
_seen = re.compile(r'\{(?:"python":"[^"]*",)?"seen":(\d+),')


def read_seen(event: Event) -> int | None:
    """Return how many entries the code had seen before this one, None if it does not say so."""
    text = event.details
    if event.type not in DELIVERED or text is None or not text.startswith(_BEGINNINGS):
        return None
    found = _seen.match(text)
    return None if found is None else int(found[1])


def mark_seen(event: Event, seen: int) -> Event:
    """Return an entry that says how many entries the code had seen; an earlier mark stands."""
    if event.type not in DELIVERED or read_seen(event) is not None:
        return event
    return Event(event.type, event.key, f'{{"seen":{seen},{(event.details or "")[1:]}', event.at)


def without_mark(event: Event) -> Event:
    """Return an entry as it is delivered in its own place."""
    if read_seen(event) is None:
        return event
    text = re.sub(r'"seen":\d+,', "", event.details or "", count=1)
    return Event(event.type, event.key, text, event.at)
