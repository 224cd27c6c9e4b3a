"""The canonical form of a shape: its hash, and the differences of two shapes in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.flows import canonical_pattern, differences, shape_hash
from holdfast.types import FlowShape, StepShape

SHAPE = FlowShape(
    name="shop/analyze",
    version=3,
    queue="web",
    max_attempts=2,
    base_delay=1,
    timeout=30,
    steps=(
        StepShape(slug="website", wants_run=True, timeout=60),
        StepShape(slug="links", deps=("website",), required='{"website": {"n": 1.0, "a": "ä"}}'),
        StepShape(slug="fetched", kind="map", deps=("links",), when_exhausted="skip"),
        StepShape(slug="save", deps=("website", "fetched"), forbidden="{}", start_delay=2),
    ),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False).filter(lambda number: abs(number) != float("inf"))
    | st.text(max_size=3)
)
patterns = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    max_size=3,
)
seconds = st.none() | st.integers(0, 3)
otherwise = st.sampled_from(["fail", "skip", "skip-cascade"])


@st.composite
def steps(draw: st.DrawFn, slug: str, before: list[str]) -> StepShape:
    kind = draw(st.sampled_from(["single", "map"]))
    most = 1 if kind == "map" else 3
    deps = draw(st.lists(st.sampled_from(before), max_size=most, unique=True)) if before else []
    return StepShape(
        slug=slug,
        kind=kind,  # type: ignore[arg-type]
        deps=tuple(deps),
        wants_run=draw(st.booleans()),
        queue=draw(st.none() | st.sampled_from(["a", "b"])),
        max_attempts=draw(seconds),
        timeout=draw(seconds),
        start_delay=draw(seconds),
        required=draw(st.none() | patterns.map(json.dumps)),
        when_unmet=draw(otherwise),
        when_exhausted=draw(otherwise),
    )


@st.composite
def shapes(draw: st.DrawFn) -> FlowShape:
    slugs = ["a", "b", "c", "d"][: draw(st.integers(0, 4))]
    drawn = tuple(draw(steps(slug, slugs[:place])) for place, slug in enumerate(slugs))
    timeout = draw(st.integers(1, 2))
    return FlowShape(name="shop/one", timeout=timeout, steps=drawn)


def exact(text: str) -> Any:
    """Read JSON text with its numbers as they are written, as `jsonb` does."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def reversed_keys(value: Any) -> Any:
    """Return an equal value whose dictionaries have their keys in another order."""
    if isinstance(value, Mapping):
        return {key: reversed_keys(each) for key, each in reversed(list(value.items()))}
    return [reversed_keys(each) for each in value] if isinstance(value, list) else value


@given(patterns)
def test_a_pattern_does_not_depend_on_the_order_of_keys_or_on_spaces(pattern: Any) -> None:
    written = json.dumps(pattern)
    text = canonical_pattern(written)
    assert canonical_pattern(json.dumps(reversed_keys(pattern), indent=2)) == text
    assert canonical_pattern(text) == text
    assert exact(text) == exact(written)


@given(shapes())
def test_the_hash_does_not_depend_on_the_order_of_keys_steps_and_dependencies(
    shape: FlowShape,
) -> None:
    other = msgspec.structs.replace(
        shape,
        steps=tuple(
            msgspec.structs.replace(
                step,
                deps=step.deps[::-1],
                required=step.required
                and json.dumps(reversed_keys(json.loads(step.required)), indent=1),
            )
            for step in reversed(shape.steps)
        ),
    )
    assert shape_hash(other) == shape_hash(shape)
    assert differences(shape, other) == []


@given(shapes(), shapes())
def test_shapes_have_the_same_hash_if_and_only_if_nothing_differs(
    one: FlowShape, other: FlowShape
) -> None:
    assert (shape_hash(one) == shape_hash(other)) == (differences(one, other) == [])
    assert len(differences(one, other)) == len(differences(other, one))


def test_the_hash_is_the_same_in_every_release() -> None:
    """P9. If this fails, every worker would report a mismatch after an upgrade."""
    assert shape_hash(SHAPE) == ("6ff9c9cc3d7dbc8040ba31bcddc9a6479a17c6d7cf6809795512d54fa7f7ab5e")


def test_the_hash_is_about_the_graph_not_about_its_name_and_version() -> None:
    assert shape_hash(msgspec.structs.replace(SHAPE, name="x/y", version=9)) == shape_hash(SHAPE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a":1.0}'),
        ('{"a": 1e2}', '{"a": 100}'),
        ('{"a": 0.0}', '{"a": -0}'),
        ('{"a": 1.50, "b": []}', '{"b":[],"a":1.5}'),
        ('{"a": "ä"}', '{"a": "\\u00e4"}'),
        ('{"a": 1e-7}', '{"a": 0.0000001}'),
        ('{"a": 1E+30}', '{"a": 1000000000000000000000000000000}'),
    ],
)
def test_values_that_jsonb_holds_as_equal_have_one_text(one: str, other: str) -> None:
    assert canonical_pattern(one) == canonical_pattern(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 0}', '{"a": false}'),
        ('{"a": null}', "{}"),
        ('{"a": "1"}', '{"a": 1}'),
        ('{"a": 1e400}', '{"a": 1e401}'),
        ('{"a": 0.1}', '{"a": 0.10000000000000000001}'),
    ],
)
def test_values_that_differ_have_different_text(one: str, other: str) -> None:
    assert canonical_pattern(one) != canonical_pattern(other)


def test_no_start_delay_is_one_of_zero() -> None:
    none, zero = changed("save", start_delay=None), changed("save", start_delay=0)
    assert shape_hash(none) == shape_hash(zero)
    assert differences(none, zero) == []


def changed(slug: str, /, **fields: Any) -> FlowShape:
    steps = (
        msgspec.structs.replace(step, **fields) if step.slug == slug else step
        for step in SHAPE.steps
    )
    return msgspec.structs.replace(SHAPE, steps=tuple(steps))


@pytest.mark.parametrize(
    ("database", "lines"),
    [
        (SHAPE, []),
        (
            msgspec.structs.replace(SHAPE, timeout=60, queue="default"),
            [
                "the flow: queue web in the code, default in the database",
                "the flow: timeout 30 s in the code, 60 s in the database",
            ],
        ),
        (
            changed("website", timeout=90),
            ["step website: timeout 60 s in the code, 90 s in the database"],
        ),
        (
            changed("website", timeout=None, max_attempts=1),
            [
                "step website: attempts the flow's in the code, 1 in the database",
                "step website: timeout 60 s in the code, the flow's in the database",
            ],
        ),
        (
            changed("website", wants_run=False),
            ["step website: it is given the run's input in the code, not in the database"],
        ),
        (
            changed("save", deps=("fetched",), start_delay=None, when_unmet="fail"),
            [
                "step save: it depends on fetched, website in the code, fetched in the database",
                "step save: start_delay 2 s in the code, none in the database",
                "step save: on_unmet skip in the code, fail in the database",
            ],
        ),
        (
            changed("save", forbidden='{"run": {"a": 1}}', required="{}"),
            [
                "step save: when none in the code, {} in the database",
                'step save: unless {} in the code, {"run":{"a":1}} in the database',
            ],
        ),
        (
            changed("fetched", kind="single", deps=()),
            [
                "step fetched: kind map in the code, single in the database",
                "step fetched: it depends on links in the code, no step in the database",
            ],
        ),
        (
            changed("links", slug="urls"),
            ["step links is not in the database", "step urls is in the database, not in the code"],
        ),
    ],
    ids=lambda value: "" if isinstance(value, FlowShape) else "; ".join(value) or "none",
)
def test_differences_are_plain_words(database: FlowShape, lines: list[str]) -> None:
    """P9."""
    assert differences(SHAPE, database) == lines
