"""The details of orders, which a run gives to others, and of what came of them.

The shapes are stable: fields may be added, never renamed. Payloads are spliced in as the JSON
text that they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.codec import fingerprint
from holdfast.durations import seconds
from holdfast.retry import Retry
from holdfast.types import ErrorInfo, FormField

ParentClose: TypeAlias = Literal["terminate", "cancel", "abandon"]


class RetryPolicy(msgspec.Struct, gc=False):
    """When a failed attempt is tried again; times are in seconds."""

    attempts: int | None
    backoff: str
    base: float
    max: float
    factor: float
    jitter: float

    @classmethod
    def of(cls, retry: Retry) -> RetryPolicy:
        """Write a policy down; `should_retry` is asked where the attempt runs."""
        base, longest = seconds(retry.base), seconds(retry.max)
        return cls(retry.attempts, retry.backoff, base, longest, retry.factor, retry.jitter)


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


class ChildStarted(msgspec.Struct, gc=False):
    """A run to be started; times are in seconds, None for never."""

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
        """The form, condensed. The description may be worded anew while a person decides."""
        return fingerprint(_encode(self.fields).decode())


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


class CarriedSignal(msgspec.Struct, gc=False):
    """A message that nobody has taken, for the run that this one continues as."""

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


class RecordedActivity(msgspec.Struct, gc=False):
    """What of an ActivityScheduled tells one call from another."""

    activity_name: str
    args: int


class RecordedChild(msgspec.Struct, gc=False):
    """What of a ChildStarted tells one call from another, and the run that it started."""

    workflow_name: str
    args: int
    child_run_id: UUID


class Target(msgspec.Struct, gc=False):
    """The run that an order is about."""

    run_id: UUID | None = None
    child_run_id: UUID | None = None


class ActivityCompleted(msgspec.Struct, gc=False):
    """An activity's result."""

    activity_name: str
    result: msgspec.Raw


class ActivityFailed(msgspec.Struct, gc=False):
    """An activity's last error."""

    activity_name: str
    error: ErrorInfo
    timed_out: bool = False


class ChildCompleted(msgspec.Struct, gc=False):
    """A child's output; the run that ended may be one that it continued as."""

    child_run_id: UUID
    output: msgspec.Raw


class ChildFailed(msgspec.Struct, gc=False):
    """How a child ended that did not complete."""

    child_run_id: UUID
    status: str
    error: ErrorInfo | None = None


class ApprovalResolved(msgspec.Struct, gc=False):
    """What somebody decided; `values` is what the form's fields were filled in with."""

    approved: bool
    by: str | None = None
    feedback: str | None = None
    values: dict[str, object] | None = None


class Forked(msgspec.Struct, gc=False):
    """What a run was made of another's log; `seed` is what its chance derives from."""

    seed: UUID


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


def write(details: msgspec.Struct) -> str:
    """Return details as JSON text."""
    return _encode(details).decode()
