"""Operations of approvals: list those that are open, and decide them."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast.errors import ApprovalClosed, ApprovalDecided, ApprovalNotFound, RunNotFound
from holdfast.insight.approvals import OpenApproval
from holdfast.server.api.fields import Changed, Key, Size, Text
from holdfast.server.api.runs import one_id
from holdfast.server.operations import Body, Call, ForAgents, Nothing, Operation, Query


class ApprovalQuery(Query, frozen=True):
    """Which approvals: those of one run, or the oldest of all."""

    run: UUID | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = Size


class ApprovalList(msgspec.Struct, frozen=True):
    """Approvals that wait for a decision, oldest first."""

    approvals: list[OpenApproval]


class Decision(Body, frozen=True):
    """A decision about the approval `key`; `values` are those of its form, by name."""

    key: Annotated[str, Meta(min_length=1, max_length=1_024)]
    approved: bool
    values: dict[str, Any] | None = None
    feedback: Text | None = None
    by: Key | None = None
    decision_id: Key | None = None


async def list_approvals(call: Call[ApprovalQuery, None]) -> ApprovalList:
    """List the approvals that wait for a decision, oldest first."""
    query = call.query
    return ApprovalList(await call.site.reader.approvals.list(query.run, query.limit))


async def decide_approval(call: Call[Nothing, Decision]) -> Changed:
    """Approve or reject what a run asks for. The first decision counts.

    `by` is by default the caller. With an Idempotency-Key the same decision may be sent again.
    """
    body = call.body
    decided = await call.site.client.approvals.decide(
        call.run_id,
        body.key,
        body.approved,
        by=body.by or call.principal.name,
        feedback=body.feedback,
        values=body.values,
        decision_id=one_id(call, body.decision_id, "decision_id"),
    )
    return Changed(decided)


OPERATIONS: Final = (
    Operation(
        "GET /v1/approvals",
        "read",
        list_approvals,
        problems=(RunNotFound,),
        tool=ForAgents(about="List the approvals that wait for a decision, oldest first."),
    ),
    Operation(
        "POST /v1/runs/{run}/approvals",
        "write",
        decide_approval,
        problems=(ApprovalNotFound, ApprovalDecided, ApprovalClosed),
        keyed=True,
        tool=ForAgents(
            name="decide",
            about="Approve or reject what a run asks for. The first decision counts.",
            destructive=True,
            hidden=frozenset({"by", "decision_id"}),  # it decides as itself, with `idempotency_key`
        ),
    ),
)
