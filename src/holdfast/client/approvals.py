"""`client.approvals`: list the approvals that wait for a decision, and decide them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import cast
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from holdfast.client.chains import find_successor, newest_of_key
from holdfast.client.naming import RunRef
from holdfast.client.session import Group, Session
from holdfast.codec import encode
from holdfast.errors import (
    ApprovalClosed,
    ApprovalDecided,
    ApprovalNotFound,
    InvalidInput,
    RunNotFound,
)
from holdfast.insight.approvals import OpenApproval, read_approval
from holdfast.store.shared_calls import persist
from holdfast.types import Decided, Decision, FormField
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.texts import check_id, check_text

MAX_OPEN = 1_000  # open approvals of one run that are read


class _Standing(msgspec.Struct):
    """The details of ApprovalResolved."""

    approved: bool = False
    by: str | None = None


class Approvals(Group):
    """The approvals of all runs."""

    async def list(
        self, run: RunRef | None = None, limit: int = 100
    ) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first.

        Of a run that continued as new they are those of the newest.

        ```python
        for approval in await client.approvals.list():
            print(approval.run_id, approval.key, approval.title)
        ```
        """
        whole_number(limit, "approvals.list", "limit", 0)
        run_id = None if run is None else await self._session.newest_of(run)
        store = self._session.reads if run_id is None else self._session.store
        found = await store.list_approvals(run_id=run_id, limit=limit)
        if not found and run_id is not None:
            next_id = await find_successor(store, run_id)
            if next_id is not None:
                found = await store.list_approvals(run_id=next_id, limit=limit)
        return [read_approval(each) for each in found]

    async def decide(
        self,
        run: RunRef,
        key: str,
        approved: bool,
        *,
        by: str | None = None,
        feedback: str | None = None,
        values: object = None,
        decision_id: str | None = None,
    ) -> bool:
        """Approve or refuse what a run asks for; `list` gives the keys of open approvals.

        The first decision counts: another one raises ApprovalDecided, which names the first.
        Returns False if this very decision, by its `decision_id`, was taken before. `values` are
        those of the approval's form, by name or as a value of the form's type.

        Raises InvalidInput for values that do not fit the form, ApprovalNotFound, RunNotFound, and
        ApprovalClosed if the run no longer waits for it.

        ```python
        for approval in await client.approvals.list():
            await client.approvals.decide(approval.run_id, approval.key, True, by="ann")
        ```
        """
        true_or_false(approved, "approved")
        decision = Decision(
            run_id=await self._session.newest_of(run),
            key=check_text("key", key),
            decision_id=check_id(
                "decision id", str(uuid4()) if decision_id is None else decision_id
            ),
            approved=approved,
            by=None if by is None else check_text("name", by),
            feedback=None if feedback is None else check_text("feedback", feedback),
        )
        return await _decide(self._session, decision, _by_name(values))


def _by_name(values: object) -> Mapping[str, object] | None:
    """Return the values of a form by name. Raises InvalidInput for what has no names."""
    if values is None or isinstance(values, Mapping):
        return cast("Mapping[str, object] | None", values)
    as_dict: Callable[[], object] | None = getattr(values, "_asdict", None)  # of a named tuple
    given: object = msgspec.json.decode(encode(values if as_dict is None else as_dict()))
    if isinstance(given, dict):
        return cast("dict[str, object]", given)
    raise InvalidInput(
        f"values are those of the form by name, or a value of its type, not {values!r}"
    )


async def _decide(
    session: Session, decision: Decision, values: Mapping[str, object] | None
) -> bool:
    """Check a decision's values against the form, and send it.

    If the run continued as new and the newest run asks for the approval, decide it there.
    """
    run_id, key = decision.run_id, decision.key
    form = await _form(session, run_id, key)
    if form is not None:
        filled = fill_form(form, values, complete=decision.approved)
        decision = replace(decision, values=None if filled is None else encode(filled))
    elif values:  # it is not open: only a repeated decision can succeed
        decision = replace(decision, values=encode(values))
    decided = await persist(lambda: session.store.decide_approval(decision))
    session.tell(decided.notices)
    if decided.outcome in ("missing", "closed"):
        next_id = await find_successor(session.store, run_id)
        if next_id is not None and await _form(session, next_id, key) is not None:
            return await _decide(session, replace(decision, run_id=next_id), values)
    return await _read_outcome(session, decided, run_id, key)


async def _form(session: Session, run_id: UUID, key: str) -> tuple[FormField, ...] | None:
    """Return the fields of an open approval, None if it is not open."""
    found = await session.store.list_approvals(run_id=run_id, limit=MAX_OPEN)
    return next((read_approval(each).fields for each in found if each.key == key), None)


async def _read_outcome(session: Session, decided: Decided, run_id: UUID, key: str) -> bool:
    match decided.outcome:
        case "decided" | "duplicate":
            return decided.outcome == "decided"
        case "closed":
            last = await newest_of_key(session.store, run_id)
            is_open = last != run_id and await _form(session, last, key) is not None
            raise ApprovalClosed(run_id, key, last if is_open else None)
        case "missing":
            if not await session.store.get_runs([run_id]):
                raise RunNotFound(run_id)
            found = await session.store.list_approvals(run_id=run_id, limit=MAX_OPEN)
            similar = [each.key for each in found if each.key.endswith(f"/{key}")]
            raise ApprovalNotFound(run_id, key, similar)
        case "conflict":
            details = decided.standing.details if decided.standing else None
            standing = msgspec.json.decode(details or "{}", type=_Standing)
            raise ApprovalDecided(run_id, key, standing.approved, standing.by)


def fill_form(
    fields: tuple[FormField, ...], values: Mapping[str, object] | None, *, complete: bool
) -> Mapping[str, object] | None:
    """Return the values of an approval, checked against its form, None if there are none.

    With `complete` the defaults are added, and a required value must not be missing. Raises
    InvalidInput, which names the field, for a value that is unknown, missing or of another type.
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
