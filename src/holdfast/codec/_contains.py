"""Containment of JSON values, as PostgreSQL's `jsonb @>` defines it."""

from __future__ import annotations

from decimal import Decimal
from typing import TypeGuard


def contains(value: object, pattern: object) -> bool:
    """Return True if `value @> pattern` holds in PostgreSQL, for plain JSON values.

    - An object contains an object whose every key it has, with a value that contains the
      pattern's. An absent key is not null.
    - An array contains an array whose every element some element of its own equals (scalars) or
      contains (objects, arrays). Order and repeats do not count.
    - Scalars contain their equals: `1` and `1.0` are equal, `1` and `true` are not.
    - At the top level only, an array also contains a scalar that is one of its elements.
    """
    if _is_array(value) and not (_is_array(pattern) or _is_object(pattern)):
        return any(_equal(element, pattern) for element in value)
    return _contains(value, pattern)


def _contains(value: object, pattern: object) -> bool:
    if _is_object(pattern):
        return _is_object(value) and all(
            key in value and _contains(value[key], wanted) for key, wanted in pattern.items()
        )
    if _is_array(pattern):
        return _is_array(value) and all(
            any(_contains(element, wanted) for element in value) for wanted in pattern
        )
    return _equal(value, pattern)


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _is_array(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _equal(value: object, scalar: object) -> bool:
    if isinstance(value, bool) or isinstance(scalar, bool):
        return value is scalar
    if isinstance(value, int | float) and isinstance(scalar, int | float):
        # By the decimal digits: PostgreSQL's 1e30 is exactly 10^30, Python's float is not.
        return value == scalar or Decimal(repr(value)) == Decimal(repr(scalar))
    return not isinstance(value, list | dict) and value == scalar
