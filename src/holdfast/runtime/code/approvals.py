"""Approvals: decisions of people that a run waits for."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast, overload

from holdfast.codec import decoder, encode
from holdfast.details import ApprovalRequested
from holdfast.errors import InvalidInput
from holdfast.events import read_approval_resolved
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.forms import fill_in, form_fields
from holdfast.runtime.code.history import APPROVAL
from holdfast.runtime.code.run import ContextPart
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.types import Event, Value
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_step_name
from holdfast.values.texts import check_text

T = TypeVar("T")


class Decision(Value, Generic[T], frozen=True):
    """The decision of a person: `approved` or not, `by` whom, and `feedback`.

    `values` are those of the form; None without a form, or for a rejection without values.
    """

    approved: bool
    by: str | None = None
    feedback: str | None = None
    values: T | None = None


class ApprovalPart(ContextPart):
    """The part of a context that asks people for decisions."""

    __slots__ = ()

    @overload
    async def request_approval(
        self,
        title: str,
        *,
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[None]: ...
    @overload
    async def request_approval(
        self,
        title: str,
        *,
        form: type[T],
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[T]: ...
    async def request_approval(
        self,
        title: str,
        *,
        form: type[T] | None = None,
        description: str = "",
        timeout: Duration | None = None,
        id: str | None = None,
    ) -> Decision[T] | Decision[None]:
        """Ask for the decision of a person, and wait for it.

        ```python
        @dataclass
        class Terms:
            discount: float
            reason: Literal["volume", "loyalty"] = "volume"

        decision = await ctx.request_approval(f"Offer {offer.id}", form=Terms, timeout="2d")
        if decision.approved: ...
        ```

        `form` is a dataclass, msgspec struct or TypedDict of texts, numbers, booleans, dates,
        moments and choices; the decision's `values` are of that type. The first decision wins.

        Raises TimeoutError without a decision in time, InvalidInput for values that do not fit
        the form, ConfigurationError for a form of other fields.
        """
        loop, commands = self._run.loop, self._run.ledger(Commands)
        leaf = "approve" if id is None else check_step_name(id)
        limit = None if timeout is None else seconds(timeout)
        check_text("title", title)
        check_text("description", description)
        timeout_at = None if limit is None else loop.now + round(limit * 1e6)
        fields = () if form is None else form_fields(form)
        asked = ApprovalRequested(title, description, fields, timeout_at)
        key, earlier = loop.scope().key(leaf), asked.forms_before_fields
        command = Command(APPROVAL, key, repr(title), asked.fingerprint, earlier=earlier)
        commands.give(command, lambda: asked)
        async with asyncio.timeout(limit):
            event = await commands.end_of(command, withdraw=True)
        return self._decision(event, form)

    def _decision(self, event: Event, form: type[T] | None) -> Decision[T]:
        try:
            resolved = read_approval_resolved(event.details or "")
        except UNREADABLE as error:
            raise self._run.history.stop_at(unreadable(event, error)) from None
        values = None
        if form is not None and (resolved.approved or resolved.values is not None):
            filled = encode(fill_in(form, resolved.values or {}))
            try:
                values = cast("T", decoder(form)(filled))
            except InvalidInput as error:
                raise self._run.ledger(Values).misfit(error, event.key) from None
        return Decision(resolved.approved, resolved.by, resolved.feedback, values)
