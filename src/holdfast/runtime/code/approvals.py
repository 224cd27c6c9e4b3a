"""Approvals: decisions of people that a run waits for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast

from holdfast.codec import decoder, encode
from holdfast.errors import InvalidInput
from holdfast.events import ApprovalRequested, read_approval_resolved, write_details
from holdfast.runtime.code.commands import APPROVAL, Command, Commands
from holdfast.runtime.code.forms import fill_in, form_fields
from holdfast.runtime.code.run import Run
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.texts import check_text
from holdfast.types import Value

T = TypeVar("T")


class Decision(Value, Generic[T], frozen=True):
    """The decision of a person: `approved` or not, `by` whom, and `feedback`.

    `values` are those of the form; None without a form, or for a rejection without values.
    """

    approved: bool
    by: str | None = None
    feedback: str | None = None
    values: T | None = None


async def approve(
    run: Run,
    leaf: str,
    title: str,
    description: str,
    form: type[T] | None,
    timeout: float | None,
) -> Decision[T]:
    """Ask for a decision and wait for it, at most `timeout` seconds."""
    loop = run.loop
    check_text("title", title)
    check_text("description", description)
    timeout_at = None if timeout is None else loop.now + round(timeout * 1e6)
    fields = () if form is None else form_fields(form)
    asked = ApprovalRequested(title, description, fields, timeout_at)
    command = Command(APPROVAL, loop.scope().key(leaf), repr(title), asked.fingerprint)
    run.ledger(Commands).give(command, lambda: write_details(asked))
    async with asyncio.timeout(timeout):
        event = await run.ledger(Commands).end_of(command, withdraw=True)
    try:
        resolved = read_approval_resolved(event.details or "")
    except UNREADABLE as error:
        raise run.history.stop_at(unreadable(event, error)) from None
    values = None
    if form is not None and (resolved.approved or resolved.values is not None):
        filled = encode(fill_in(fields, resolved.values or {}))
        try:
            values = cast("T", decoder(form)(filled))
        except InvalidInput as error:
            raise run.ledger(Values).misfit(error, command.key) from None
    return Decision(resolved.approved, resolved.by, resolved.feedback, values)
