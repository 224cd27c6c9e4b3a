"""A graph of a flow: as lines of text for a terminal, one for each step, and as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.flows.graphs import comes_after, steps_by_depth
from holdfast.flows.shape import canonical_pattern
from holdfast.types import FlowShape, StepShape, StepStatus, TriggerRule

_MAX_NAMES: Final = 6  # of dependencies in a line
_MAX_PATTERN: Final = 40  # characters of a condition in a box of Mermaid

_COLOURS: Final[dict[StepStatus, str]] = {
    "started": "fill:#cfe2ff,stroke:#0d6efd",
    "completed": "fill:#d1e7dd,stroke:#198754",
    "failed": "fill:#f8d7da,stroke:#dc3545",
    "skipped": "fill:#eeeeee,stroke:#999999,stroke-dasharray:4",
}


def draw(shape: FlowShape, notes: Mapping[str, str] | None = None) -> list[str]:
    """Return the graph as lines, the deepest steps last.

    A line has the number of its layer if it is the first of one, the step, `[]` after the name of a
    map, and what the step depends on. `notes`, by slug, stand between, such as `12/100`.

    ```text
    1  website        ← run
    2  sentiment      ← website
       links          ← website
    3  fetched[]      ← each of links
    4  save           ← fetched, sentiment
    ```
    """
    notes = notes or {}
    layers = steps_by_depth(shape)
    names = {step.slug: _name(step) for step in shape.steps}
    name_width = max(map(len, names.values()), default=0)
    note_width = max((len(notes.get(slug, "")) for slug in names), default=0)
    number_width = len(str(len(layers)))
    lines: list[str] = []
    for number, layer in enumerate(layers, 1):
        for place, step in enumerate(layer):
            head = str(number) if place == 0 else ""
            parts = [head.rjust(number_width), names[step.slug].ljust(name_width)]
            if note_width:
                parts.append(notes.get(step.slug, "").ljust(note_width))
            parts.append(_sources(step))
            lines.append("  ".join(parts).rstrip())
    return lines


def _name(step: StepShape) -> str:
    return f"{step.slug}[]" if step.kind == "map" else step.slug


def _sources(step: StepShape) -> str:
    if step.kind == "map":
        return f"← each of {step.deps[0] if step.deps else 'run'}"
    names = [*(["run"] if step.wants_run else []), *step.deps]
    if len(names) > _MAX_NAMES:
        left = len(names) - _MAX_NAMES + 1
        names = [*names[: _MAX_NAMES - 1], f"{left} more"]
    sources = f"← {', '.join(names)}" if names else ""
    return f"{sources}  {rule_words(step.trigger_rule)}".strip()


def rule_words(rule: TriggerRule) -> str:
    """Return a trigger rule as `(one_failed)`, empty for the default."""
    return "" if rule == "none_failed" else f"({rule})"


def to_mermaid(shape: FlowShape, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the text of a flowchart: a box for each step, with double sides for a map.

    The round box is the run's input. With `statuses`, by slug, the steps of a run are coloured.
    """
    return "\n".join(_mermaid_lines(shape, statuses or {})) + "\n"


def _mermaid_lines(shape: FlowShape, statuses: Mapping[str, StepStatus]) -> Iterator[str]:
    yield "flowchart TD"
    # Numbers, because slugs such as `end` and `style` are words of Mermaid.
    ids = {step.slug: f"s{number}" for number, step in enumerate(shape.steps)}
    if any(map(_reads_input, shape.steps)):
        yield '    run(["run"])'
    for step in shape.steps:
        yield f"    {ids[step.slug]}{_mermaid_box(step)}"
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


def _mermaid_box(step: StepShape) -> str:
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
