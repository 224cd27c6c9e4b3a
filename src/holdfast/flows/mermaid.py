"""A flow's graph as a Mermaid flowchart, which Markdown viewers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.flows.graphs import comes_after
from holdfast.flows.shape import canonical_pattern
from holdfast.types import FlowShape, StepShape, StepStatus

_MAX_PATTERN: Final = 40  # characters of a condition in a node

_COLOURS: Final[dict[StepStatus, str]] = {
    "started": "fill:#cfe2ff,stroke:#0d6efd",
    "completed": "fill:#d1e7dd,stroke:#198754",
    "failed": "fill:#f8d7da,stroke:#dc3545",
    "skipped": "fill:#eeeeee,stroke:#999999,stroke-dasharray:4",
}


def to_mermaid(shape: FlowShape, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the text of a flowchart: a box for each step, with double sides for a map.

    The round box is the run's input. With `statuses`, by slug, the steps of a run are coloured.
    """
    return "\n".join(_lines(shape, statuses or {})) + "\n"


def _lines(shape: FlowShape, statuses: Mapping[str, StepStatus]) -> Iterator[str]:
    yield "flowchart TD"
    # Numbers, because slugs such as `end` and `style` are words of Mermaid.
    ids = {step.slug: f"s{number}" for number, step in enumerate(shape.steps)}
    if any(map(_reads_input, shape.steps)):
        yield '    run(["run"])'
    for step in shape.steps:
        yield f"    {ids[step.slug]}{_box(step)}"
    for step in shape.steps:
        if _reads_input(step):
            yield f"    run --> {ids[step.slug]}"
        for dep in comes_after(shape, step):
            yield f"    {ids[dep]} {'-->' if dep in step.deps else '-.->'} {ids[step.slug]}"
    for status, colour in _COLOURS.items():
        chosen = ",".join(ids[slug] for slug in ids if statuses.get(slug) == status)
        if chosen:
            yield f"    classDef {status} {colour}"
            yield f"    class {chosen} {status}"


def _reads_input(step: StepShape) -> bool:
    return step.wants_run or (step.kind == "map" and not step.deps)


def _box(step: StepShape) -> str:
    lines = [step.slug]
    for word, pattern in (("when", step.required), ("unless", step.forbidden)):
        if pattern is not None:
            lines.append(f"{word} {_shorten(canonical_pattern(pattern))}")
    if step.trigger_rule != "none_failed":
        lines.append(step.trigger_rule)
    text = "<br/>".join(map(_escape, lines))
    return f'[["{text}"]]' if step.kind == "map" else f'["{text}"]'


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_PATTERN else text[: _MAX_PATTERN - 1] + "…"


def _escape(text: str) -> str:
    for character, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, code)
    return text
