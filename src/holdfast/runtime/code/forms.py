"""Forms: the fields that a person fills in, from the type that the code wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as types

from holdfast.codec import decoder, encode, is_model_type
from holdfast.errors import ConfigurationError
from holdfast.types import FieldFormat, FieldType, FormField

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


def form_fields(form: type) -> tuple[FormField, ...]:
    """Return the fields of a dataclass, msgspec struct, TypedDict, named tuple or pydantic model.

    They are text, numbers, booleans, dates, moments and choices (a Literal or an enum); `… | None`
    may be left empty, and `Annotated[…, msgspec.Meta(title=…)]` labels one. Raises
    ConfigurationError for other types.
    """
    if is_model_type(form):
        form = _struct_of(form)
    hints = get_type_hints(get_origin(form) or form, include_extras=False)
    return tuple(_field(form, field, hints[field.name]) for field in _described(form))


def _described(form: type) -> tuple[types.Field, ...]:
    described = types.type_info(form)
    if not isinstance(
        described,
        types.StructType | types.DataclassType | types.TypedDictType | types.NamedTupleType,
    ):
        raise ConfigurationError(
            f"{form.__name__} is not a form: use a dataclass, a msgspec struct, a TypedDict or a "
            "pydantic model"
        )
    return described.fields


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
    hint = getattr(hint, "__value__", hint)  # of a type alias
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _literals(part)
