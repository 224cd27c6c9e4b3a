"""Open approvals as people see them: what is asked, and the form to fill in."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.details import ApprovalRequested
from holdfast.insight.actions import Action
from holdfast.types import Approval, FormField
from holdfast.values.composing import compose
from holdfast.values.moments import maybe_datetime, to_datetime


class OpenApproval(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that waits for a decision; `run_id` and `key` are what `decide` takes.

    `requested_at` and `timeout_at` are moments in UTC; `timeout_at` is None if it waits without a
    limit.
    """

    run_id: UUID
    key: str
    workflow: str
    queue: str
    title: str
    description: str
    fields: tuple[FormField, ...]
    requested_at: datetime
    timeout_at: datetime | None


def read_approval(approval: Approval) -> OpenApproval:
    """Return an approval of the store with its form decoded."""
    request = msgspec.json.decode(approval.payload, type=ApprovalRequested)
    return compose(
        OpenApproval,
        approval,
        request,
        requested_at=to_datetime(approval.requested_at),
        timeout_at=maybe_datetime(request.timeout_at),
    )


def decide_action(approval: OpenApproval) -> Action:
    """Return the action that approves, with each field that must be filled in."""
    required = tuple(each for each in approval.fields if each.required and not each.has_default)
    return Action("decide", approval.run_id, approval.key, fields=required)
