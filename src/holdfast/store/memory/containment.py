"""Containment of JSON values, as PostgreSQL's `jsonb @>` defines it."""

from __future__ import annotations

import json

from holdfast.types import JSON


def contains(document: str, pattern: str) -> bool:
    """Say whether a JSON text contains another.

    Objects contain objects with fewer keys, arrays contain arrays whose every element is
    contained in one of theirs. At the top, an array contains a scalar that is its element.

    >>> contains('{"a": [1, 2], "b": 3}', '{"a": [2]}')
    True
    """
    whole: JSON = json.loads(document)
    part: JSON = json.loads(pattern)
    if isinstance(whole, list) and not isinstance(part, dict | list):
        return any(_equal(item, part) for item in whole)
    return _contains(whole, part)


def _contains(whole: JSON, part: JSON) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and _contains(whole[key], part[key]) for key in part)
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_contains(item, wanted) for item in whole) for wanted in part)
    return _equal(whole, part)


def _equal(left: JSON, right: JSON) -> bool:
    """Compare scalars; True is not 1 here."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right
