"""A flow's graph as lines of text for a terminal: one line for each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.flows.graphs import steps_by_depth
from holdfast.types import FlowShape, StepShape, TriggerRule

_MAX_NAMES: Final = 6  # of dependencies in a line


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
