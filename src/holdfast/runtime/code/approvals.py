"""Approvals: decisions of people that a run waits for, and the forms that they fill in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import inspect as types

from holdfast.codec import decoder, encode, is_model_type, without_aliases
from holdfast.details import ApprovalRequested
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.events import read_approval_resolved
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import APPROVAL
from holdfast.runtime.code.run import ContextPart
from holdfast.runtime.code.values import Values
from holdfast.runtime.log.unreadable import UNREADABLE, unreadable
from holdfast.types import Event, FieldFormat, FieldType, FormField, Value
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_step_name
from holdfast.values.texts import check_text, clipped

T = TypeVar("T")

_plain = decoder(object)
_TYPES: Final[dict[type[types.Type], FieldType]] = {
    types.StrType: "text",
    types.IntType: "number",
    types.FloatType: "number",
    types.BoolType: "boolean",
    types.LiteralType: "choice",
    types.EnumType: "choice",
    types.DateType: "text",
    types.DateTimeType: "text",
    types.DecimalType: "text",
}
_FORMATS: Final[dict[type[types.Type], FieldFormat]] = {
    types.DateType: "date",
    types.DateTimeType: "date-time",
    types.DecimalType: "decimal",
}


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


def form_fields(form: type) -> tuple[FormField, ...]:
    """Return the fields of a dataclass, msgspec struct, TypedDict, named tuple or pydantic model.

    They are text, numbers, booleans, dates, moments and choices (a Literal or an enum); `… | None`
    may be left empty, and `Annotated[…, msgspec.Meta(title=…)]` labels one. Raises
    ConfigurationError for other types.
    """
    if is_model_type(form):
        form = _struct_of(form)
    if not isinstance(get_origin(form) or form, type):
        raise _no_form(form)
    hints = get_type_hints(get_origin(form) or form, include_extras=False)
    return tuple(_field(form, field, hints[field.name]) for field in _described(form))


def _described(form: type) -> tuple[types.Field, ...]:
    described = types.type_info(form)
    if not isinstance(
        described,
        types.StructType | types.DataclassType | types.TypedDictType | types.NamedTupleType,
    ):
        raise _no_form(form)
    return described.fields


def _no_form(form: object) -> ConfigurationError:
    return ConfigurationError(
        f"{getattr(form, '__name__', clipped(form))} is not a form: use a dataclass, a msgspec "
        "struct, a TypedDict or a pydantic model"
    )


def _struct_of(model: type) -> type:
    """Return a msgspec struct with the fields of a pydantic model."""
    fields: list[Any] = []
    aliases: dict[str, str] = {}
    for name, info in cast("Any", model).model_fields.items():
        title = info.title or info.description
        kind = Annotated[info.annotation, msgspec.Meta(title=title)] if title else info.annotation
        aliases[name] = info.alias or name
        if info.is_required():
            fields.append((name, kind))
        else:
            fields.append((name, kind, info.get_default(call_default_factory=True)))
    return msgspec.defstruct(model.__name__, fields, kw_only=True, rename=aliases)


def fill_in(form: type, values: Mapping[str, object]) -> dict[str, object] | list[object]:
    """Return the values, with None for optional fields that were left empty.

    Fields with a default, or with a factory of one, are left to the type. The values of a named
    tuple are in the order of its fields, up to the first that is missing.
    """
    described = _described(_struct_of(form) if is_model_type(form) else form)
    empty = {
        field.encode_name: None
        for field in described
        if field.default is field.default_factory is msgspec.NODEFAULT
        and _options(_unwrapped(field.type)[0])[1]
    }
    filled = {**empty, **values}
    if not isinstance(types.type_info(form), types.NamedTupleType):
        return filled
    defaults = {field.encode_name: field.default for field in described}
    found = (filled.get(name, default) for name, default in defaults.items())
    return list(takewhile(lambda value: value is not msgspec.NODEFAULT, found))


def _field(form: type, field: types.Field, hint: object) -> FormField:
    kind, label = _unwrapped(field.type)
    options, optional = _options(kind)
    found = _TYPES.get(type(options[0])) if len(options) == 1 else None
    if found is None:
        raise ConfigurationError(
            f"{form.__name__}.{field.name}: a form takes text, numbers, booleans, dates, moments "
            "(datetime) and choices (a Literal or an enum)"
        )
    return FormField(
        name=field.encode_name,
        type=found,
        required=field.required and not optional,
        choices=_choices(options[0], hint) if found == "choice" else (),
        default=_default(field),
        label=label or "",
        format=_FORMATS.get(type(options[0]), ""),
    )


def _default(field: types.Field) -> object:
    """Return a default as the log has it: a plain JSON value."""
    if field.default is msgspec.NODEFAULT:
        return msgspec.UNSET
    return _plain(encode(field.default))


def _options(kind: types.Type) -> tuple[list[types.Type], bool]:
    """Return the alternatives other than None, and True if None is one of them."""
    if not isinstance(kind, types.UnionType):
        return [kind], False
    options = [_unwrapped(one)[0] for one in kind.types]
    some = [one for one in options if not isinstance(one, types.NoneType)]
    return some, len(some) < len(options)


def _unwrapped(kind: types.Type) -> tuple[types.Type, str | None]:
    if isinstance(kind, types.Metadata):
        schema = cast("Mapping[str, str]", getattr(kind, "extra_json_schema") or {})  # noqa: B009
        return kind.type, schema.get("title") or schema.get("description")
    return kind, None


def _choices(kind: types.Type, hint: object) -> tuple[str | int, ...]:
    if isinstance(kind, types.LiteralType):  # msgspec sorts its values
        declared = dict.fromkeys([*_literals(hint), *kind.values])
        return tuple(value for value in declared if isinstance(value, str | int))
    assert isinstance(kind, types.EnumType), "choices are a Literal or an enum"
    return tuple(member.value for member in kind.cls)


def _literals(hint: object) -> Iterator[object]:
    """Yield the values of a type's Literals in the order of their declaration."""
    hint = without_aliases(hint)
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _literals(part)
