"""Check by annotations if the output of one step fits a parameter of another.

Values pass from step to step as JSON. So a type fits if its JSON can be decoded as the other type:
a dataclass fits a TypedDict with the same keys. Types that cannot be judged fit.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

from msgspec import inspect

from holdfast.codec import is_model_type

_Kind: TypeAlias = Literal["null", "bool", "int", "float", "text", "array", "object", "any"]
_Pairs: TypeAlias = set[tuple[int, int]]  # compared already: types may contain themselves

_TEXTS: Final = (
    inspect.StrType,
    inspect.BytesType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
)
_SEQUENCES: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_RECORDS: Final = (inspect.DataclassType, inspect.TypedDictType, inspect.StructType)


def fits(given: object, wanted: object) -> bool:
    """Return False if some value of the type `given` can never be decoded as `wanted`."""
    if given == wanted:
        return True
    source, target = _describe(given), _describe(wanted)
    return source is None or target is None or _fits(source, target, set())


def admits_none(annotation: object) -> bool:
    """Return False if None can never be decoded as this type."""
    return fits(None, annotation)


def list_of(annotation: object) -> object:
    """Return the type of a list of these."""
    return types.GenericAlias(list, (annotation,))


def fits_elements(given: object, wanted: object) -> bool | None:
    """Return False if some element of the type `given` can never be decoded as `wanted`.

    None: `given` is not a type of arrays, so it has no elements.
    """
    source, target = _describe(given), _describe(wanted)
    if source is None:
        return True
    parts = _members(source)
    if any(_kind(part) not in ("array", "any") for part in parts):
        return None
    items = [item for part in parts for item in _items(part) or ()]
    return target is None or all(_fits(item, target, set()) for item in items)


def may_have_field(annotation: object, name: str) -> bool:
    """Return False if no value of this type is a JSON object with a field of this name."""
    described = _describe(annotation)
    return described is None or any(_may_have_field(part, name) for part in _members(described))


def field_names(annotation: object) -> set[str]:
    """Return the fields that JSON objects of this type may have; none if that cannot be said."""
    described = _describe(annotation)
    names = [_field_names(part) for part in _members(described)] if described is not None else []
    return set[str]().union(*(each or () for each in names)) if None not in names else set()


def type_name(annotation: object) -> str:
    """Return an annotation as people write it, without modules: `list[Page]`, `str | None`."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(args[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_name, args))
    if origin is not None and origin is not typing.Literal:
        return f"{type_name(origin)}[{', '.join(map(type_name, args))}]"
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).removeprefix("typing.")


def _describe(annotation: object) -> inspect.Type | None:
    """Return the parts of a type; None if it cannot be judged."""
    try:
        return inspect.type_info(annotation)
    except Exception:  # of any kind: msgspec runs code of the types
        return None


def _members(part: inspect.Type) -> Iterable[inspect.Type]:
    """Return the members of a union; a Literal or an enum is the union of its values' types."""
    if isinstance(part, inspect.UnionType):
        return [member for each in part.types for member in _members(each)]
    if isinstance(part, inspect.LiteralType | inspect.EnumType):
        return [_type_of_value(value) for value in _values(part)]
    return (part,)


def _fits(given: inspect.Type, wanted: inspect.Type, pairs: _Pairs) -> bool:
    """Return True if each member of a union fits some member of the other."""
    pair = (id(given), id(wanted))
    if pair in pairs:
        return True
    pairs.add(pair)
    return all(
        any(_fits_member(member, other, pairs) for other in _members(wanted))
        for member in _members(given)
    )


def _fits_member(given: inspect.Type, wanted: inspect.Type, pairs: _Pairs) -> bool:
    kind = _kind(given)
    if not _fits_kind(kind, wanted):
        return False
    if kind == "array":
        return _fit_arrays(given, wanted, pairs)
    if kind == "object":
        return _fit_objects(given, wanted, pairs)
    return True


def _fits_kind(kind: _Kind, wanted: inspect.Type) -> bool:
    if isinstance(wanted, inspect.DecimalType):
        return kind in ("any", "text", "int", "float")
    other = _kind(wanted)
    return "any" in (kind, other) or kind == other or (kind, other) == ("int", "float")


def _kind(part: inspect.Type) -> _Kind:
    """Return what values of a type are in JSON; `any` if that cannot be said."""
    if isinstance(part, inspect.NoneType):
        return "null"
    if isinstance(part, inspect.BoolType):
        return "bool"
    if isinstance(part, inspect.IntType):
        return "int"
    if isinstance(part, inspect.FloatType):
        return "float"
    if isinstance(part, (*_TEXTS, inspect.DecimalType)):
        return "text"
    if isinstance(part, (*_SEQUENCES, inspect.TupleType, inspect.NamedTupleType)):
        return "array"
    if isinstance(part, (inspect.DictType, *_RECORDS)):
        return _kind_of_record(part)
    if isinstance(part, inspect.CustomType) and _is_plain_model(part.cls):
        return "object"
    return "any"


def _kind_of_record(part: inspect.Type) -> _Kind:
    if isinstance(part, inspect.StructType) and part.array_like:
        return "array"
    return "object"


def _type_of_value(value: object) -> inspect.Type:
    if value is None:
        return inspect.NoneType()
    return inspect.IntType() if isinstance(value, int) else inspect.StrType()


def _values(part: inspect.LiteralType | inspect.EnumType) -> Iterable[object]:
    if isinstance(part, inspect.LiteralType):
        return part.values
    return [member.value for member in part.cls]


def _is_plain_model(kind: type) -> bool:
    """Return True for a class of pydantic's models that are written and read as JSON objects."""
    if not is_model_type(kind):
        return False
    fields: dict[str, object] = getattr(kind, "model_fields", {})
    found: Any = getattr(kind, "__pydantic_decorators__", None)
    own = getattr(found, "model_serializers", True) or getattr(found, "model_validators", True)
    return "root" not in fields and not own


def _fit_arrays(given: inspect.Type, wanted: inspect.Type, pairs: _Pairs) -> bool:
    mine, theirs = _items(given), _items(wanted)
    if mine is None or theirs is None:
        return True
    if isinstance(given, inspect.TupleType) and isinstance(wanted, inspect.TupleType):
        return len(mine) == len(theirs) and all(
            _fits(item, other, pairs) for item, other in zip(mine, theirs, strict=True)
        )
    return all(any(_fits(item, other, pairs) for other in theirs) for item in mine)


def _items(part: inspect.Type) -> tuple[inspect.Type, ...] | None:
    """Return the types of an array's elements; None if they cannot be said."""
    if isinstance(part, _SEQUENCES):
        return (part.item_type,)
    return part.item_types if isinstance(part, inspect.TupleType) else None


def _may_have_field(part: inspect.Type, name: str) -> bool:
    names = _field_names(part)
    return names is None or name in names


def _field_names(part: inspect.Type) -> set[str] | None:
    """Return the fields of an object; none for what is not an object, None if it may have any."""
    if isinstance(part, _RECORDS) and _kind(part) == "object":
        tag = _tag_of(part)
        return {field.encode_name for field in part.fields} | ({tag} if tag else set())
    if isinstance(part, inspect.CustomType) and _is_plain_model(part.cls):
        return _fields_of_model(part.cls)
    return None if _kind(part) in ("object", "any") else set()


def _fields_of_model(model: Any) -> set[str] | None:
    if model.model_config.get("extra") == "allow":
        return None
    fields = model.model_fields
    names: set[str] = {fields[name].serialization_alias or name for name in fields}
    return names.union(each.alias or name for name, each in model.model_computed_fields.items())


def _tag_of(part: inspect.Type) -> str | None:
    return part.tag_field if isinstance(part, inspect.StructType) else None


def _fit_objects(given: inspect.Type, wanted: inspect.Type, pairs: _Pairs) -> bool:
    if isinstance(given, inspect.DictType) and isinstance(wanted, inspect.DictType):
        return _fits(given.value_type, wanted.value_type, pairs)
    if not (isinstance(given, _RECORDS) and isinstance(wanted, _RECORDS)):
        return True
    if given.cls is wanted.cls:
        return True
    fields = {field.encode_name: field for field in given.fields}
    for field in wanted.fields:
        own = fields.get(field.encode_name)
        if own is None and field.required and field.encode_name != _tag_of(given):
            return False
        if own is not None and own.required and not _fits(own.type, field.type, pairs):
            return False
    return True
