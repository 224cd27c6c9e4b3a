"""Graphs of flows as text: layers, lines for a terminal, and Mermaid."""

from __future__ import annotations

import re

from holdfast.flows import draw, leaves, steps_by_depth, to_mermaid
from holdfast.types import FlowShape, StepShape

SHAPE = FlowShape(
    name="shop/analyze",
    steps=(
        StepShape(slug="website", wants_run=True),
        StepShape(slug="sentiment", deps=("website",)),
        StepShape(slug="links", deps=("website",)),
        StepShape(slug="fetched", kind="map", deps=("links",)),
        StepShape(
            slug="end",
            deps=("sentiment", "fetched"),
            wants_run=True,
            required='{"sentiment": "<\\"#\\">"}',
            forbidden='{"fetched": "a very long text which does not fit into a box"}',
        ),
        StepShape(slug="alone"),
        StepShape(slug="each", kind="map"),
    ),
)


def wide(count: int) -> FlowShape:
    """Make a flow in which each step depends on all steps before it."""
    slugs = [f"step_{number}" for number in range(count)]
    return FlowShape(
        name="shop/wide",
        steps=tuple(
            StepShape(slug=slug, deps=tuple(slugs[:place])) for place, slug in enumerate(slugs)
        ),
    )


def test_a_step_is_one_layer_below_its_deepest_dependency() -> None:
    layers = [[step.slug for step in layer] for layer in steps_by_depth(SHAPE)]
    assert layers == [["website", "alone", "each"], ["sentiment", "links"], ["fetched"], ["end"]]


def test_the_leaves_are_the_steps_on_which_no_other_depends() -> None:
    assert [step.slug for step in leaves(SHAPE)] == ["end", "alone", "each"]


def test_a_terminal_shows_a_line_for_each_step() -> None:
    assert draw(SHAPE, {"fetched": "12/100", "website": "done"}) == [
        "1  website    done    ← run",
        "   alone",
        "   each[]             ← each of run",
        "2  sentiment          ← website",
        "   links              ← website",
        "3  fetched[]  12/100  ← each of links",
        "4  end                ← run, sentiment, fetched",
    ]


def test_without_notes_there_is_no_room_for_them() -> None:
    assert draw(SHAPE)[0] == "1  website    ← run"
    assert draw(FlowShape(name="shop/empty")) == []


def test_a_large_graph_stays_narrow_and_short() -> None:
    lines = draw(wide(200))
    assert len(lines) == 200
    assert max(map(len, lines)) < 100
    assert lines[-1].endswith("← step_0, step_1, step_2, step_3, step_4, 194 more")


def test_mermaid_shows_each_step_and_each_edge() -> None:
    assert to_mermaid(SHAPE, {"website": "completed", "links": "started", "each": "started"}) == (
        """\
flowchart TD
    run(["run"])
    s0["website"]
    s1["sentiment"]
    s2["links"]
    s3[["fetched"]]
    s4["end<br/>when {#quot;sentiment#quot;:#quot;#lt;\\#quot;#35;\\#quot;#gt;#quot;}<br/>\
unless {#quot;fetched#quot;:#quot;a very long text which does…"]
    s5["alone"]
    s6[["each"]]
    run --> s0
    s0 --> s1
    s0 --> s2
    s2 --> s3
    run --> s4
    s1 --> s4
    s3 --> s4
    run --> s6
    classDef started fill:#cfe2ff,stroke:#0d6efd
    class s2,s6 started
    classDef completed fill:#d1e7dd,stroke:#198754
    class s0 completed
"""
    )


def test_mermaid_has_no_input_that_no_step_reads() -> None:
    assert not re.search(r"\brun\b", to_mermaid(wide(3)))
