"""The canonical form of a flow's shape: equal shapes have equal text, and so an equal hash."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Final, TypeAlias, cast

from holdfast.types import FlowShape, StepShape

Fields: TypeAlias = dict[str, object]

_FORMAT: Final = 1  # of the canonical text; another number would give every shape another hash

# What a step's field means if it is not in the canonical text. A field that is added later is
# left out of the text of steps that do not use it, so their hashes stay as they are.
_DEFAULTS: Final[Fields] = {
    "deps": (),
    "wants_run": False,
    "queue": None,
    "max_attempts": None,
    "base_delay": None,
    "timeout": None,
    "start_delay": None,
    "required": None,
    "forbidden": None,
    "when_unmet": "skip",
    "when_exhausted": "fail",
    "runs": None,
    "runs_kind": None,
    "trigger_rule": "none_failed",
    "tolerated_count": None,
    "tolerated_percent": None,
    "concurrency": None,
    "jitter_percent": None,
}


def shape_hash(shape: FlowShape) -> str:
    """Return the SHA-256 of a shape's canonical text, as 64 hexadecimal digits.

    It covers all that decides how runs go: the flow's queue, attempts, delay and timeout, and of
    each step its slug and all its fields. It does not cover the flow's name and version, the
    order of the steps, or how patterns are written. It is the same in every release.
    """
    return hashlib.sha256(canonical_shape(shape).encode()).hexdigest()


def canonical_shape(shape: FlowShape) -> str:
    """Return the JSON text of a shape that `shape_hash` covers.

    Keys are sorted, patterns are canonical, and fields of steps with their defaults are left out.
    """
    steps = {step.slug: _fields_set(step) for step in shape.steps}
    text: Fields = {"format": _FORMAT, **flow_fields(shape), "steps": steps}
    return json.dumps(text, sort_keys=True, separators=(",", ":"))


def flow_fields(shape: FlowShape) -> Fields:
    """Return what a shape says of the flow itself, by name."""
    return {
        "queue": shape.queue,
        "max_attempts": shape.max_attempts,
        "base_delay": shape.base_delay,
        "timeout": shape.timeout,
    }


def step_fields(step: StepShape) -> Fields:
    """Return what a shape says of a step, by name, so that equal steps have equal fields.

    An element of a map is given nothing but itself, so `wants_run` is always False for maps. A
    start_delay of 0 is none.
    """
    return {
        "kind": step.kind,
        "deps": tuple(sorted(step.deps)),
        "wants_run": step.wants_run and step.kind == "single",
        "queue": step.queue,
        "max_attempts": step.max_attempts,
        "base_delay": step.base_delay,
        "timeout": step.timeout,
        "start_delay": step.start_delay or None,
        "required": None if step.required is None else canonical_pattern(step.required),
        "forbidden": None if step.forbidden is None else canonical_pattern(step.forbidden),
        "when_unmet": step.when_unmet,
        "when_exhausted": step.when_exhausted,
        "runs": step.runs,
        "runs_kind": step.runs_kind,
        "trigger_rule": step.trigger_rule,
        "tolerated_count": step.tolerated_count,
        "tolerated_percent": step.tolerated_percent,
        "concurrency": step.concurrency,
        "jitter_percent": step.jitter_percent or None,
    }


def _fields_set(step: StepShape) -> Fields:
    return {
        name: value
        for name, value in step_fields(step).items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def canonical_pattern(text: str) -> str:
    """Return JSON text with sorted keys and each number in one form.

    Equal values of PostgreSQL's `jsonb` have equal text. Raises ValueError for invalid JSON.

    >>> canonical_pattern('{"b": 1.50, "a": 2e1}')
    '{"a":20,"b":1.5}'
    """
    return _write(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _write(value: object) -> str:
    if isinstance(value, dict):
        fields = sorted(cast("dict[str, object]", value).items())
        return "{" + ",".join(f"{json.dumps(key)}:{_write(each)}" for key, each in fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, cast("list[object]", value))) + "]"
    return _write_number(value) if isinstance(value, Decimal) else json.dumps(value)


def _write_number(value: Decimal) -> str:
    """Write a number without zeros that do not count: 20 for 2e1, 1.5 for 1.50."""
    sign, digits, exponent = value.as_tuple()
    if not value or not isinstance(exponent, int):
        return "0"
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    return _place_point("-" if sign else "", stripped, exponent + len(text) - len(stripped))


def _place_point(sign: str, digits: str, exponent: int) -> str:
    if 0 <= exponent <= 20:
        return f"{sign}{digits}{'0' * exponent}"
    if -20 <= exponent < 0:
        padded = digits.rjust(1 - exponent, "0")
        return f"{sign}{padded[:exponent]}.{padded[exponent:]}"
    return f"{sign}{digits}e{exponent}"
