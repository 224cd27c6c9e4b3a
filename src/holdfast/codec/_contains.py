"""Containment of JSON values, as PostgreSQL's `jsonb @>` defines it."""

from __future__ import annotations

from decimal import Decimal
from typing import cast


def contains(value: object, pattern: object) -> bool:
    """Say whether `value @> pattern` holds in PostgreSQL, for plain JSON values.

    - An object contains an object whose every key it has, with a value that contains the
      pattern's. An absent key is not null.
    - An array contains an array whose every element some element of its own equals (scalars) or
      contains (objects, arrays). Order and repeats do not count.
    - Scalars contain their equals: `1` and `1.0` are equal, `1` and `true` are not.
    - At the top level only, an array also contains a scalar that is one of its elements.
    """
    if type(value) is list and not isinstance(pattern, list | dict):
        return any(_equal(element, pattern) for element in cast("list[object]", value))
    return _contains(value, pattern)


def _contains(value: object, pattern: object) -> bool:
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            return False
        return all(
            key in value and _contains(value[key], wanted)
            for key, wanted in cast("dict[str, object]", pattern).items()
        )
    if isinstance(pattern, list):
        if not isinstance(value, list):
            return False
        elements = cast("list[object]", value)
        return all(
            any(_contains(element, wanted) for element in elements)
            for wanted in cast("list[object]", pattern)
        )
    return _equal(value, pattern)


def _equal(value: object, scalar: object) -> bool:
    if isinstance(value, bool) or isinstance(scalar, bool):
        return value is scalar
    if isinstance(value, int | float) and isinstance(scalar, int | float):
        # By the decimal digits: PostgreSQL's 1e30 is exactly 10^30, Python's float is not.
        return value == scalar or Decimal(repr(value)) == Decimal(repr(scalar))
    return not isinstance(value, list | dict) and value == scalar
