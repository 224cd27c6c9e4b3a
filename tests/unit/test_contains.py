"""Containment by the rules of PostgreSQL's jsonb; the expectations are what `@>` answers."""

import json

import pytest

from holdfast.codec import contains

HOLDS = [
    ('{"a": 1, "b": 2}', '{"a": 1}'),
    ('{"a": 1}', "{}"),
    ("{}", "{}"),
    ('{"a": {"b": [1, {"c": 2, "d": 3}]}}', '{"a": {"b": [{"c": 2}]}}'),
    ('{"a": null}', '{"a": null}'),
    ("[1, 2, 3]", "[3, 1]"),
    ("[1, 2]", "[1, 1, 1]"),
    ("[1]", "[]"),
    ("[]", "[]"),
    ("[[1, 2]]", "[[1]]"),
    ("[[1], [2]]", "[[2]]"),
    ('[{"a": 1, "b": 2}]', '[{"a": 1}]'),
    ('[{"a": 1}, {"b": 2}]', '[{"a": 1}, {"b": 2}]'),
    ('["foo", "bar"]', '"bar"'),
    ("[1, null]", "null"),
    ('"foo"', '"foo"'),
    ("null", "null"),
    ("true", "true"),
    ("1", "1.0"),
    ("[1.0]", "1"),
    ("1e30", "1000000000000000000000000000000"),
    ('{"a": 100}', '{"a": 1e2}'),
]

FAILS = [
    ('{"a": 1}', '{"a": 2}'),
    ('{"a": 1}', '{"b": 1}'),
    ("{}", '{"a": null}'),
    ('{"a": 1}', '{"a": null}'),
    ('{"a": null}', '{"a": {}}'),
    ('{"a": {"b": 1}}', '{"b": 1}'),
    ('{"a": [1, 2]}', '{"a": 1}'),
    ("[1, 2]", "[1, 3]"),
    ("[[1, 2]]", "[1]"),
    ("[[1]]", "1"),
    ("[]", "1"),
    ("[]", "null"),
    ('[{"a": 1}]', '{"a": 1}'),
    ('{"a": 1}', '[{"a": 1}]'),
    ("[1]", "{}"),
    ("{}", "[]"),
    ('"bar"', '["bar"]'),
    ("1", "[]"),
    ('{"a": 1}', '"a"'),
    ('["a"]', '{"a": 1}'),
    ("true", "1"),
    ("[0]", "[false]"),
    ('"1"', "1"),
    ("null", "false"),
    ('[{"a": 1}, {"b": 2}]', '[{"a": 1, "b": 2}]'),
]


@pytest.mark.parametrize(("value", "pattern"), HOLDS)
def test_containment_holds(value: str, pattern: str) -> None:
    """Trap 13, B4."""
    assert contains(json.loads(value), json.loads(pattern))


@pytest.mark.parametrize(("value", "pattern"), FAILS)
def test_containment_fails(value: str, pattern: str) -> None:
    """Trap 13, B4."""
    assert not contains(json.loads(value), json.loads(pattern))
