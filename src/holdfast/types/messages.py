"""What reaches runs from outside: signals, decisions, pauses."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Event, Notice, Value


class NewSignal(Value, frozen=True):
    """A signal to send. With a `signal_id` it is delivered once, however often it is sent.

    An `update` is a signal that is answered: it has an id, and `reply_to` is the topic that
    is notified of the answer. `trace` is the span of the sender, as a `traceparent` has it.
    """

    run_id: UUID
    name: str
    payload: str = "null"
    signal_id: str | None = None
    update: bool = False
    reply_to: str | None = None
    trace: str | None = None


Delivery: TypeAlias = Literal[
    "delivered", "duplicate", "ended", "missing", "begun", "ruled", "flow"
]
"""What became of a change of a run.

`reschedule_runs` refuses a start of one that has `begun`, all but a queue of one that waits for a
rule (`ruled`), and all but a deadline of a run of a `flow`.
"""


class Delivered(Value, frozen=True):
    """What became of signals, cancels or terminations, in the order in which they were given.

    `duplicate` is a signal id seen before, or a second cancel of the same run.
    """

    outcomes: list[Delivery]
    notices: list[Notice]


class Approval(Value, frozen=True, kw_only=True):
    """An open approval. `payload` is the details of its ApprovalRequested, as JSON text."""

    run_id: UUID
    key: str
    workflow: str
    queue: str
    requested_at: int
    payload: str


class Decision(Value, frozen=True, kw_only=True):
    """A person's decision about an approval. `values` is a JSON object, as text."""

    run_id: UUID
    key: str
    decision_id: str
    approved: bool
    by: str | None = None
    feedback: str | None = None
    values: str | None = None


class Decided(Value, frozen=True):
    """What became of a decision.

    `duplicate`: this very decision was taken before. `conflict`: another was; `standing` is its
    ApprovalResolved. `closed`: the run withdrew the approval, or has ended. `missing`: there is
    no such run or approval.
    """

    outcome: Literal["decided", "duplicate", "conflict", "closed", "missing"]
    standing: Event | None
    notices: list[Notice]


Scope: TypeAlias = Literal["queue", "workflow"]


class Pause(Value, frozen=True):
    """A queue or a workflow of which nothing is claimed."""

    scope: Scope
    name: str
    reason: str | None
    paused_at: int
