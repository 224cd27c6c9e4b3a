"""Type aliases in annotations: `type Rows = list[Row]`, from Python 3.12 on."""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin


def without_aliases(annotation: Any, within: tuple[object, ...] = ()) -> Any:
    """Return a type with what its type aliases stand for in their place.

    An alias inside itself stays, as it has no end. Raises NameError for an alias that names what
    is not defined yet.
    """
    origin: Any = get_origin(annotation)
    args: tuple[Any, ...] = get_args(annotation)
    parts = tuple([without_aliases(each, within) for each in args])
    alias = origin or annotation
    if type(alias).__name__ == "TypeAliasType":  # typing's, or that of typing_extensions
        if alias in within or len(parts) != len(alias.__type_params__):
            return annotation
        return without_aliases(_value_of(alias, parts), (*within, alias))
    if all(part is each for part, each in zip(parts, args, strict=True)):
        return annotation
    if origin in (Union, types.UnionType):
        return Union[parts]  # noqa: UP007 - made at run time
    return origin[parts[0] if len(parts) == 1 else parts]


def _value_of(alias: Any, arguments: tuple[object, ...]) -> Any:
    """Return what an alias stands for with these arguments."""
    value = alias.__value__
    given = dict(zip(alias.__type_params__, arguments, strict=True))
    if isinstance(value, TypeVar):
        return given[value]
    # Subscribing a type gives its parameters values in the order of their use in it.
    used = tuple([given[each] for each in getattr(value, "__parameters__", ())])
    return value[used] if used else value
