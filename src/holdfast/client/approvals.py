"""Decide approvals: check the values against the form, and record the decision once."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.client.chains import heir
from holdfast.client.coalescing import persist
from holdfast.client.session import Session
from holdfast.codec import encode
from holdfast.errors import (
    ApprovalClosed,
    ApprovalDecided,
    ApprovalNotFound,
    InvalidInput,
    RunNotFound,
)
from holdfast.insight.approvals import read_approval
from holdfast.types import Decided, Decision, FormField

MAX_OPEN = 1_000  # open approvals of one run that are looked at


class _Standing(msgspec.Struct):
    """The details of ApprovalResolved."""

    approved: bool = False
    by: str | None = None


async def decide(session: Session, decision: Decision, values: Mapping[str, object] | None) -> bool:
    """Check a decision's values against the form, and take it.

    Decides for a run that continued as new where that asks for the approval. Returns False
    for a decision that was taken before. Raises what `Client.decide` says.
    """
    run_id, key = decision.run_id, decision.key
    form = await _form(session, run_id, key)
    if form is not None:
        filled = fill_form(form, values, complete=decision.approved)
        decision = replace(decision, values=None if filled is None else encode(filled))
    elif values:  # it is no longer open: only a repeated decision has anything to say
        decision = replace(decision, values=encode(values))
    decided = await persist(lambda: session.store.decide_approval(decision))
    session.tell(decided.notices)
    if decided.outcome in ("missing", "closed"):
        next_id = await heir(session.store, run_id)
        if next_id is not None and await _form(session, next_id, key) is not None:
            return await decide(session, replace(decision, run_id=next_id), values)
    return await _judge(session, decided, run_id, key)


async def _form(session: Session, run_id: UUID, key: str) -> tuple[FormField, ...] | None:
    """Return the fields of an open approval, None where it is not open."""
    found = await session.store.list_approvals(run_id=run_id, limit=MAX_OPEN)
    return next((read_approval(each).fields for each in found if each.key == key), None)


async def _judge(session: Session, decided: Decided, run_id: UUID, key: str) -> bool:
    match decided.outcome:
        case "decided" | "duplicate":
            return decided.outcome == "decided"
        case "closed":
            raise ApprovalClosed(run_id, key)
        case "missing":
            if not await session.store.get_runs([run_id]):
                raise RunNotFound(run_id)
            raise ApprovalNotFound(run_id, key)
        case "conflict":
            details = decided.standing.details if decided.standing else None
            standing = msgspec.json.decode(details or "{}", type=_Standing)
            raise ApprovalDecided(run_id, key, standing.approved, standing.by)


def fill_form(
    fields: tuple[FormField, ...], values: Mapping[str, object] | None, *, complete: bool
) -> Mapping[str, object] | None:
    """Check the values of an approval against its form; `complete` adds the defaults.

    Raises InvalidInput, which names the field, for a value that is unknown or of another type,
    and to be `complete` for one that is missing. Returns None where there are no values.
    """
    given = values or {}
    unknown = given.keys() - {field.name for field in fields}
    if unknown:
        known = ", ".join(field.name for field in fields)
        raise InvalidInput(
            f"the approval has no field {', '.join(map(repr, sorted(unknown)))}: "
            + (f"there are {known}" if known else "it takes no values")
        )
    filled: dict[str, object] = {}
    for field in fields:
        if field.name in given:
            filled[field.name] = field.check(given[field.name])
        elif not complete:
            continue
        elif field.has_default:
            filled[field.name] = field.default
        elif field.required:
            raise InvalidInput(f"field {field.name!r} is required to approve: give it a value")
    return filled or None
