"""The event types of a log: the role of each, the command that it is about, its details.

This table is the only place where event types are told apart. Sets of types in other modules are
derived from it, and a test compares it with what the SQL functions say of each type.

The shapes of the details are in `holdfast.details`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.details import (
    ActivityCompleted,
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityScheduled,
    ApprovalRequested,
    ApprovalResolved,
    AttributesSet,
    By,
    ChildCancelRequested,
    ChildCompleted,
    ChildFailed,
    ChildStarted,
    ContinuedAsNew,
    EventSubscribed,
    Forked,
    Reason,
    RecordedActivity,
    RecordedChild,
    RecordedFailure,
    RecordedStep,
    Rescheduled,
    SignalReceived,
    SignalSent,
    StepCompleted,
    StepFailed,
    StepRetryScheduled,
    StreamWritten,
    Target,
    Timer,
    UpdateReply,
    ValueSet,
    WebhookOpened,
    WebhookReceived,
    WorkerLost,
    WorkflowCanceled,
    WorkflowFailed,
)
from holdfast.types import ErrorInfo, Event, LastFailureRecord

Shape: TypeAlias = type[msgspec.Struct] | None

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


class EventType(msgspec.Struct, frozen=True):
    """One event type.

    `details` is None if there are none, or if they are the run's input or output. `command` is
    the command that it ends, takes back or tells of. `payloads` are the fields that a codec
    encodes, each with what its value is called in errors ({} is the event's key).
    """

    name: str
    role: Role
    details: Shape
    command: str | None
    payloads: Mapping[str, str]


NONE: Final[Mapping[str, str]] = {}
"""No payloads: all that it has stays readable."""

GIVEN: Final[Mapping[str, str]] = {}
"""The store makes it of values that it was given, which a codec had encoded before."""


TYPES: Final[dict[str, EventType]] = {}


def _type(
    name: str,
    role: Role,
    details: Shape = None,
    *,
    of: str | None = None,
    payloads: Mapping[str, str],
) -> str:
    TYPES[name] = EventType(name, role, details, of, payloads)
    return name


WORKFLOW_STARTED: Final = _type("WorkflowStarted", "start", payloads=GIVEN)

STEP_COMPLETED: Final = _type(
    "StepCompleted", "delivered", StepCompleted, payloads={"result": "it"}
)
STEP_FAILED: Final = _type("StepFailed", "delivered", StepFailed, payloads={"error": ""})
STEP_RETRY: Final = _type("StepRetryScheduled", "fact", StepRetryScheduled, payloads={"error": ""})
TIMER_SCHEDULED: Final = _type("TimerScheduled", "fact", Timer, payloads=NONE)
TIMER_FIRED: Final = _type("TimerFired", "delivered", Timer, payloads=NONE)

_ACTIVITY: Final = "ActivityScheduled"
ACTIVITY_SCHEDULED: Final = _type(
    _ACTIVITY, "command", ActivityScheduled, payloads={"input": "the input of activity {}"}
)
ACTIVITY_CANCEL: Final = _type("ActivityCancelRequested", "withdrawal", of=_ACTIVITY, payloads=NONE)
ACTIVITY_RETRY: Final = _type(
    "ActivityRetryScheduled", "external", ActivityRetryScheduled, of=_ACTIVITY, payloads=GIVEN
)
ACTIVITY_COMPLETED: Final = _type(
    "ActivityCompleted", "command_end", ActivityCompleted, of=_ACTIVITY, payloads=GIVEN
)
ACTIVITY_FAILED: Final = _type(
    "ActivityFailed", "command_end", ActivityFailed, of=_ACTIVITY, payloads=GIVEN
)

_CHILD: Final = "ChildStarted"
CHILD_STARTED: Final = _type(
    _CHILD, "command", ChildStarted, payloads={"input": "the input of child {}"}
)
CHILD_CANCEL: Final = _type(
    "ChildCancelRequested", "withdrawal", ChildCancelRequested, of=_CHILD, payloads=NONE
)
CHILD_COMPLETED: Final = _type(
    "ChildCompleted", "command_end", ChildCompleted, of=_CHILD, payloads=GIVEN
)
CHILD_FAILED: Final = _type("ChildFailed", "command_end", ChildFailed, of=_CHILD, payloads=GIVEN)

_APPROVAL: Final = "ApprovalRequested"
APPROVAL_REQUESTED: Final = _type(_APPROVAL, "command", ApprovalRequested, payloads=NONE)
APPROVAL_WITHDRAWN: Final = _type("ApprovalWithdrawn", "withdrawal", of=_APPROVAL, payloads=NONE)
APPROVAL_RESOLVED: Final = _type(
    "ApprovalResolved", "command_end", ApprovalResolved, of=_APPROVAL, payloads=NONE
)

_WEBHOOK: Final = "WebhookOpened"
WEBHOOK_OPENED: Final = _type(
    _WEBHOOK, "command", WebhookOpened, payloads={"url": "the URL of webhook {}"}
)
WEBHOOK_CLOSED: Final = _type("WebhookClosed", "withdrawal", of=_WEBHOOK, payloads=NONE)
WEBHOOK_RECEIVED: Final = _type(
    "WebhookReceived", "command_end", WebhookReceived, of=_WEBHOOK, payloads=GIVEN
)

SIGNAL_RECEIVED: Final = _type("SignalReceived", "external", SignalReceived, payloads=GIVEN)
EVENT_SUBSCRIBED: Final = _type("EventSubscribed", "command", EventSubscribed, payloads=NONE)
SIGNAL_SENT: Final = _type(
    "SignalSent", "command", SignalSent, payloads={"input": "the payload of signal {}"}
)
STREAM_WRITTEN: Final = _type(
    "StreamWritten", "command", StreamWritten, payloads={"items": "what is written to stream {}"}
)
_REPLY: Final = {"result": "the result of update {}", "error": ""}
UPDATE_ACCEPTED: Final = _type("UpdateAccepted", "fact", UpdateReply, payloads=_REPLY)
UPDATE_REJECTED: Final = _type("UpdateRejected", "fact", UpdateReply, payloads=_REPLY)
UPDATE_COMPLETED: Final = _type("UpdateCompleted", "fact", UpdateReply, payloads=_REPLY)
VALUE_SET: Final = _type("ValueSet", "fact", ValueSet, payloads={"value": "the value {}"})
VALUE_RECORDED: Final = _type("ValueRecorded", "fact", ValueSet, payloads=NONE)

# Readable whatever codec there is: lists find runs by it.
ATTRIBUTES_SET: Final = _type("AttributesSet", "fact", AttributesSet, payloads=NONE)

for _name in ("Started", "Completed", "Failed", "RetryScheduled", "Skipped"):
    _type(f"FlowStep{_name}", "fact", payloads=GIVEN)  # only SQL reads and writes their details

CANCEL_REQUESTED: Final = _type("WorkflowCancelRequested", "external", Reason, payloads=NONE)
PAUSED: Final = _type("WorkflowPaused", "external", Reason, payloads=NONE)
RESUMED: Final = _type("WorkflowResumed", "external", By, payloads=NONE)
RESCHEDULED: Final = _type("WorkflowRescheduled", "external", Rescheduled, payloads=NONE)
FORKED: Final = _type("WorkflowForked", "external", Forked, payloads=GIVEN)
WORKER_LOST: Final = _type("WorkerLost", "external", WorkerLost, payloads=NONE)
YIELDED: Final = _type("WorkflowTaskYielded", "suspension", payloads=NONE)

COMPLETED: Final = _type("WorkflowCompleted", "end", payloads=GIVEN)
FAILED: Final = _type("WorkflowFailed", "end", WorkflowFailed, payloads=GIVEN)
CANCELLED: Final = _type("WorkflowCanceled", "end", WorkflowCanceled, payloads=NONE)
TIMED_OUT: Final = _type("WorkflowTimedOut", "end", payloads=NONE)
TERMINATED: Final = _type("WorkflowTerminated", "end", Reason, payloads=NONE)
CONTINUED: Final = _type(  # carried out as well
    "WorkflowContinuedAsNew",
    "end",
    ContinuedAsNew,
    payloads={"input": "the input of the next run", "signals": "", "error": ""},
)


def with_role(*roles: Role) -> frozenset[str]:
    """Return the names of the event types that have one of these roles."""
    return frozenset(each.name for each in TYPES.values() if each.role in roles)


TERMINAL: Final = with_role("end")
CALL_COMMANDS: Final = with_role("command", "withdrawal")  # after which the run continues
COMMANDS: Final = CALL_COMMANDS | {ATTRIBUTES_SET, CONTINUED}  # what the store carries out
COMMAND_ENDS: Final = with_role("command_end")
EXTERNAL: Final = with_role("start", "external", "command_end")
DELIVERED: Final = with_role("delivered")
COMMAND_OF: Final = {each.name: each.command for each in TYPES.values() if each.command}
# A worker's entries that are on their way may stand after these. For anything else that others
# write the code is replayed: the writer was told that it holds.
_OTHERS_THAT_CAN_WAIT: Final = {ACTIVITY_RETRY, SIGNAL_RECEIVED, WORKER_LOST}
CAN_WAIT: Final = COMMAND_ENDS - {APPROVAL_RESOLVED, WEBHOOK_RECEIVED} | _OTHERS_THAT_CAN_WAIT

STEP_ENDS: Final = frozenset({STEP_COMPLETED, STEP_FAILED})
STEPS: Final = STEP_ENDS | {STEP_RETRY}
FLOW_STEP_ENDS: Final = frozenset({"FlowStepCompleted", "FlowStepFailed"})
FLOW_STEP_RETRY: Final = "FlowStepRetryScheduled"
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
read_stream_written: Final = msgspec.json.Decoder(StreamWritten).decode
read_event_subscribed: Final = msgspec.json.Decoder(EventSubscribed).decode
read_webhook_opened: Final = msgspec.json.Decoder(WebhookOpened).decode
read_webhook_received: Final = msgspec.json.Decoder(WebhookReceived).decode
read_attributes_set: Final = msgspec.json.Decoder(AttributesSet).decode
read_update_reply: Final = msgspec.json.Decoder(UpdateReply).decode
read_target: Final = msgspec.json.Decoder(Target).decode
read_activity_completed: Final = msgspec.json.Decoder(ActivityCompleted).decode
read_activity_failed: Final = msgspec.json.Decoder(ActivityFailed).decode
read_child_completed: Final = msgspec.json.Decoder(ChildCompleted).decode
read_child_failed: Final = msgspec.json.Decoder(ChildFailed).decode
read_approval_resolved: Final = msgspec.json.Decoder(ApprovalResolved).decode
read_forked: Final = msgspec.json.Decoder(Forked).decode

_read_failure: Final = msgspec.json.Decoder(RecordedFailure).decode

encode_details = msgspec.json.Encoder().encode


def is_update(details: str) -> bool:
    """Return True if these are the details of a signal that is an update."""
    return '"update":true' in details and read_signal(details).update


def read_last_failure(details: str | None) -> LastFailureRecord | None:
    """Return the failed attempt that the details of an entry name, None if they name none."""
    found = None if details is None else _read_failure(details)
    if found is None or found.attempt is None:
        return None
    last, error = found.attempt, bytes(found.error).decode()
    return LastFailureRecord(number=last.number, attempts=last.attempts, error=error)


def write_details(details: msgspec.Struct) -> str:
    """Return details as JSON text."""
    return encode_details(details).decode()


def write_step_completed(
    name: str, args: int, attempt: int, result: str, started_at: int, streams: int | None = None
) -> str:
    """Return the details of a StepCompleted. Names of steps need no quoting."""
    tried = "" if attempt == 1 else f',"attempt":{attempt}'
    if streams is not None:
        tried = f'{tried},"streams":{streams}'
    return f'{{"name":"{name}","args":{args},"result":{result},"started_at":{started_at}{tried}}}'


# The end of the details of a step that its own transaction has added to the log, beside the commits
# of its worker: nothing says that the code has continued after it. No other end is like it.
TRANSACTION: Final = ',"transaction":true}'


def in_transaction(completed: Event) -> Event:
    """Return a StepCompleted as the transaction of its step adds it to the log."""
    text = f"{(completed.details or '')[:-1]}{TRANSACTION}"
    return Event(completed.type, completed.key, text, completed.at)


def is_in_transaction(event: Event) -> bool:
    """Return True if the transaction of a step has added the entry."""
    return event.type == STEP_COMPLETED and (event.details or "").endswith(TRANSACTION)


def can_wait(event: Event) -> bool:
    """Return True if a worker's entries that are on their way may stand after this one of others.

    No other result of a step can: it may be one of these, whose commit was not answered.
    """
    return event.type in CAN_WAIT or is_in_transaction(event)


def write_step_failed(
    name: str,
    args: int,
    attempt: int,
    error: ErrorInfo,
    started_at: int,
    timed_out: bool,
    streams: int | None = None,
) -> str:
    """Return the details of a StepFailed."""
    late = ',"timed_out":true' if timed_out else ""
    if streams is not None:
        late = f'{late},"streams":{streams}'
    return (
        f'{{"name":"{name}","args":{args},"error":{encode_details(error).decode()},'
        f'"started_at":{started_at},"attempt":{attempt}{late}}}'
    )


def write_step_retry(name: str, args: int, attempt: int, error: ErrorInfo, retry_at: int) -> str:
    """Return the details of a StepRetryScheduled."""
    return (
        f'{{"name":"{name}","args":{args},"attempt":{attempt},'
        f'"error":{encode_details(error).decode()},"retry_at":{retry_at}}}'
    )


def write_timer(key: str, fire_at: int, delay_micros: int) -> str:
    """Return the details of a TimerScheduled or TimerFired."""
    timer_id = encode_details(key).decode()
    return f'{{"timer_id":{timer_id},"fire_at":{fire_at},"delay":{delay_micros / 1e6}}}'


def read_value_set(details: str) -> str:
    """Return the value of a ValueSet, as JSON text."""
    return bytes(msgspec.json.decode(details, type=ValueSet).value).decode()


def write_value(value: str) -> str:
    """Return the details of a ValueSet or ValueRecorded; `value` is JSON text."""
    return f'{{"value":{value}}}'


# An entry of a worker that was written after what others had appended says in its details, as
# `seen`, how many entries of the log the code had seen. Those of others from that index on stand
# before it in the log, and the code saw them after it.
MARKED: Final = ('{"seen":', '{"python":')
_seen = re.compile(r'\{(?:"python":"[^"]*",)?"seen":(\d+),')


def read_seen(event: Event) -> int | None:
    """Return how many entries the code had seen before this one, None if it does not say so."""
    text = event.details
    if event.type not in DELIVERED or text is None or not text.startswith(MARKED):
        return None
    found = _seen.match(text)
    return None if found is None else int(found[1])


def mark_seen(event: Event, seen: int) -> Event:
    """Return an entry that says how many entries the code had seen; an earlier mark stands."""
    return mark_after_others(event, seen) if event.type in DELIVERED else event


def mark_after_others(event: Event, seen: int) -> Event:
    """Return an entry of a commit that may be appended after others' entries, with its mark."""
    text = event.details
    if text is None or event.type in TERMINAL or _seen.match(text):
        return event
    rest = text[1:] if text == "{}" else f",{text[1:]}"
    return Event(event.type, event.key, f'{{"seen":{seen}{rest}', event.at)


def is_after_others(event: Event) -> bool:
    """Return True if an entry may be of a commit that was appended after others' entries."""
    return _seen.match(event.details or "") is not None


def without_mark(event: Event) -> Event:
    """Return an entry as it is delivered in its own place."""
    if read_seen(event) is None:
        return event
    text = re.sub(r'"seen":\d+,', "", event.details or "", count=1)
    return Event(event.type, event.key, text, event.at)
