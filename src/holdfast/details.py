"""The details of a log's entries: what is read of them, by event type.

Shapes are stable: fields may be added, never renamed. A shape has what is read; a log may have
more. Payloads are JSON text: `msgspec.Raw`, which is decoded where it is used.
"""

# No `from __future__ import annotations`: each process that starts would compile the texts.

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.codec import MOST_ADDED, fingerprint
from holdfast.types import AttributeValue, ErrorInfo, FormField, RunKind, WebhookBody, WebhookScheme

_NULL: Final = msgspec.Raw(b"null")
_encode: Final = msgspec.json.Encoder().encode

ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]
OnCancel: TypeAlias = Literal["try", "wait", "abandon"]


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
    """An activity to be run; `args` is the fingerprint of its `input`.

    `misfit` is True if the input did not fit the code that the caller's program had. `run_key` is
    the key that the code sees, in the log of a fork: its run has none. Without a `priority` the
    activity has that of its run.
    """

    activity_name: str
    args: int
    input: msgspec.Raw
    queue: str
    retry: RetryPolicy
    start_to_close: float | None
    schedule_to_close: float | None
    heartbeat_timeout: float | None
    units: int | msgspec.UnsetType = msgspec.UNSET
    on_cancel: OnCancel | msgspec.UnsetType = msgspec.UNSET
    misfit: bool | msgspec.UnsetType = msgspec.UNSET
    run_key: str | msgspec.UnsetType = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET


class RecordedActivity(msgspec.Struct, gc=False):
    """The fields of an ActivityScheduled that tell one call from another, and its policy."""

    activity_name: str
    args: int
    on_cancel: OnCancel = "try"


class ActivityRetryScheduled(msgspec.Struct, gc=False):
    """A failed attempt that is followed by another, not before `retry_at`."""

    activity_name: str
    attempt: int
    error: ErrorInfo
    retry_at: int


class ActivityCompleted(msgspec.Struct, gc=False):
    """An activity's result; `started_at` is set if a worker's attempt returned it."""

    activity_name: str
    result: msgspec.Raw
    started_at: int | None = None


class ActivityFailed(msgspec.Struct, gc=False):
    """An activity's last error."""

    activity_name: str
    error: ErrorInfo
    timed_out: bool = False


class ChildStarted(msgspec.Struct, gc=False):
    """A run to be started; times are in seconds, None for never.

    `kind` is null if the program that starts it knows it by its name only; then its code says what
    the call leaves out of queue, priority and timeout.
    """

    workflow_name: str
    version: int
    args: int
    child_run_id: UUID
    input: msgspec.Raw
    queue: str | None
    priority: int | None
    key: str | None
    parent_close: ParentClose
    timeout: float | None
    retention: float | None
    tags: tuple[str, ...]
    headers: Mapping[str, str] | None = None
    kind: RunKind | None = None
    attributes: Mapping[str, AttributeValue] | msgspec.UnsetType = msgspec.UNSET
    on_cancel: OnCancel | msgspec.UnsetType = msgspec.UNSET


class RecordedChild(msgspec.Struct, gc=False):
    """The fields of a ChildStarted that tell one call from another, its run and its policy.

    Forks do not write the `key`.
    """

    workflow_name: str
    args: int
    child_run_id: UUID
    key: str | None = None
    on_cancel: OnCancel = "try"


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

    def forms_before_fields(self) -> Iterator[str]:
        """Yield the texts of the form without some of the fields that may be left empty."""
        free = [place for place, field in enumerate(self.fields) if not field.required]
        for size in range(1, MOST_ADDED + 1):
            for chosen in combinations(free, size):
                kept = [each for at, each in enumerate(self.fields) if at not in chosen]
                yield _encode(kept).decode()


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


class StreamWritten(msgspec.Struct, gc=False):
    """A value that the code has appended to a stream, as an array; or it `closes` the stream."""

    stream: str
    items: msgspec.Raw
    closes: bool = False

    @property
    def fingerprint(self) -> int:
        """The stream and the value, condensed."""
        return fingerprint(self.compared(bytes(self.items).decode()[1:-1]))

    def compared(self, value: str) -> str:
        """Return what is condensed of such an entry with a value."""
        return f"{self.stream} {'close' if self.closes else value}"


class EventSubscribed(msgspec.Struct, gc=False):
    """The events that a run is to be told of: of topics that fit `pattern`, that contain `match`.

    The event's key is the name of the signal by which the run is told.
    """

    pattern: str
    match: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def fingerprint(self) -> int:
        """The pattern and the condition, condensed."""
        return fingerprint(f"{self.pattern} {bytes(self.match).decode()}")


class WebhookOpened(msgspec.Struct, gc=False):
    """A URL that takes one POST for the run. `digest` is that of the token in it.

    `body` says how the body is read. `secret` is the name of the variable with the key of its
    signature, None if it has none to check.
    """

    webhook_name: str
    body: WebhookBody
    secret: str | None
    scheme: WebhookScheme
    digest: str
    url: str

    @property
    def fingerprint(self) -> int:
        """What is taken and checked, condensed."""
        return fingerprint(f"{self.body} {self.secret} {self.scheme}")


class WebhookReceived(msgspec.Struct, gc=False):
    """What was posted to a URL of the run, read as its call had said."""

    body: msgspec.Raw


class UpdateReply(msgspec.Struct, omit_defaults=True):
    """What became of an update: accepted, rejected with an `error`, or carried out.

    `taken` are the places, among the messages of the run, of those that a call of an entity took.
    """

    update_name: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorInfo | None = None
    taken: list[int] = []


class ValueSet(msgspec.Struct, gc=False):
    """A value that the code has set or drawn."""

    value: msgspec.Raw


class AttributesSet(msgspec.Struct, gc=False):
    """Attributes of the run that the code has set, or removed with None."""

    attributes: Mapping[str, AttributeValue | None]


class Reason(msgspec.Struct, gc=False):
    """Why a person or a program stopped or paused a run, and who it was if they said so."""

    reason: str | None = None
    by: str | None = None


class By(msgspec.Struct, gc=False):
    """Who made a change, if they said so."""

    by: str | None = None


class Rescheduled(Reason, gc=False, omit_defaults=True):
    """What changed of a run from outside; a `deadline_at` of None is one that was removed."""

    queue: str | None = None
    start_at: int | None = None
    deadline_at: int | msgspec.UnsetType | None = msgspec.UNSET


class FailedAttempt(msgspec.Struct, gc=False):
    """A failed attempt of a run that the policy of its workflow retries after `delay` seconds.

    `number` counts from 1, of `attempts`, None for no limit. `run_id` is the run of the first one.
    """

    number: int
    attempts: int | None
    delay: float
    run_id: UUID


class RecordedFailure(msgspec.Struct, gc=False):
    """What the entries of an attempt that failed, and of the next one, say of it."""

    attempt: FailedAttempt | None = None
    error: msgspec.Raw = _NULL


class Forked(msgspec.Struct, gc=False):
    """A copy of another run's log; the chance of both derives from `seed`.

    `again` are the calls that were left out because a retry makes them again; None if a cancel was
    left out, too: any call may come before those that were copied. Older releases did not write it.
    `after` are the calls that the code of that run made because it was told of its failure, if
    this run retries it; None for other forks, and in the logs of older releases.
    `attempt` is there if this is the next attempt of the other run, whose error is `error`.
    `run_key` is the key of the first origin, which the code still sees.
    """

    run_id: UUID
    seed: UUID
    again: Sequence[str] | None = None
    after: Sequence[str] | None = None
    attempt: FailedAttempt | None = None
    run_key: str | None = None


class WorkerLost(msgspec.Struct, gc=False):
    """A lease that ran out; the turn's task has the key ''."""

    task_key: str
    lease_no: int


class WorkflowFailed(msgspec.Struct, gc=False):
    """The calls whose failures ended the run; `seen` entries of its log led to the first of them.

    `after` are the calls that the code made because it was told of these failures, and of a cancel
    that came later; `handling` those that it made while it handled any failure. Older releases did
    not write these two, or none of all. The error is stored once, in the run's row.
    """

    calls: Sequence[str] = ()
    seen: int | None = None
    after: Sequence[str] = ()
    handling: Sequence[str] = ()


class WorkflowCanceled(msgspec.Struct, gc=False):
    """What the code called because of a cancel; `seen` entries led to the cancel, with its own.

    `after` are the calls that it made because it was told of the cancel, `handling` those that it
    made while it handled any failure. Null if it called nothing then, and in the logs of older
    releases.
    """

    seen: int
    after: Sequence[str] = ()
    handling: Sequence[str] = ()


class CarriedSignal(msgspec.Struct, gc=False):
    """A signal that the code has not taken, for the run that this one continues as."""

    signal_name: str
    input: msgspec.Raw
    key: str | None = None
    update: bool = False
    reply_to: str | None = None


class ContinuedAsNew(msgspec.Struct, gc=False, omit_defaults=True):
    """The run that takes this one's place.

    With `attempt` it is the next attempt of this one, which has failed with `error`: it gets a copy
    of the log, without what a retry makes `again`, and has the same input.
    """

    run_id: UUID
    input: msgspec.Raw
    version: int
    signals: list[CarriedSignal]
    attempt: FailedAttempt | None = None
    error: msgspec.Raw = _NULL
    again: WorkflowFailed | None = None


class Target(msgspec.Struct, gc=False):
    """The run that a command is about."""

    run_id: UUID | None = None
    child_run_id: UUID | None = None
