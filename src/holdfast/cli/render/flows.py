"""Flows and the steps of their runs, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final

from holdfast.cli.render.console import cut, plain
from holdfast.codec import raw
from holdfast.flows import rule_words, steps_by_depth
from holdfast.insight.flow_progress import SKIPPED, StepProgress, StepState, graph_steps
from holdfast.insight.wording import ago, length, shorten
from holdfast.types import FlowShape

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_BAR: Final = 10  # characters
_NOTE: Final = 60
_MOST_WORKERS: Final = 3
_MOST_DEPS: Final = 5

_SIGNS: Final[Mapping[StepState, tuple[str, str]]] = {
    "created": ("·", "dim"),
    "delayed": ("◷", "yellow"),
    "queued": ("○", "blue"),
    "running": ("▶", "cyan"),
    "retrying": ("↻", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("↷", "dim"),
    "stopped": ("■", "dim"),
}
_WORDS: Final[Mapping[StepState, str]] = {"created": "not begun"}


def steps_table(steps: Sequence[StepProgress], now: int, *, most: int | None = None) -> Table:
    """Draw the graph of a run's steps: a line each, in layers, with what has become of them.

    With more steps than `most`, those that have ended or not begun are left out as far as needed.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()  # this and the next become narrow on a narrow terminal: see `cut`
    table.add_column(ratio=1)
    left = _left_out(steps, most)
    for number, layer in enumerate(_layers(steps), 1):
        head = str(number)
        for step in layer:
            if step.step not in left:
                table.add_row(head, *_row(step, now))
                head = ""
    if left:
        table.add_row("", "", f"… {len(left):,} more")
    return table


def _left_out(steps: Sequence[StepProgress], most: int | None) -> Set[str]:
    """Return the steps that are not shown: the least interesting ones, the last first."""
    if most is None or len(steps) <= most:
        return frozenset()
    order = sorted(steps, key=lambda step: (step.state == "completed", step.state == "created"))
    return {step.step for step in order[most:]}


def step_object(step: StepProgress) -> dict[str, object]:
    """Return a step for JSON, with its output and its error as JSON."""
    return plain(step) | {"output": raw(step.output), "error": raw(step.error)}


class StepLines:
    """Writes a line for each step that has changed, for a log.

    Of a map it writes a line for each tenth of its elements.
    """

    def __init__(self, began_at: int) -> None:
        self._began_at = began_at
        self._shown: dict[str, tuple[StepState, int, int]] = {}

    def changed(self, steps: Sequence[StepProgress], now: int) -> list[str]:
        """Return a line for each step that has changed, unless it has not begun."""
        lines: list[str] = []
        for step in steps:
            tenths = 10 * step.done // step.tasks if step.tasks else 0
            seen = (step.state, step.attempts if step.kind == "single" else 0, tenths)
            if step.state != "created" and self._shown.get(step.step) != seen:
                lines.append(_line(step, self._began_at, now))
            self._shown[step.step] = seen
        return lines


def _line(step: StepProgress, began_at: int, now: int) -> str:
    has_just_begun = step.state == "running" and step.done == 0 and step.attempts < 2
    at = step.ended_at or (step.started_at if has_just_begun else None) or now
    parts = [f"+{length(at - began_at):<9} {_name(step):<24} {_word(step)}"]
    if step.state == "completed" and step.started_at is not None:
        parts.append(f"after {_took(step, now)}")
    parts += [each for each in (_progress(step), _note(step, now)) if each]
    return "  ".join(parts)


def _layers(steps: Sequence[StepProgress]) -> list[list[StepProgress]]:
    by_name = {step.step: step for step in steps}
    shape = FlowShape(name="", steps=graph_steps(steps))
    return [[by_name[each.slug] for each in layer] for layer in steps_by_depth(shape)]


def _row(step: StepProgress, now: int) -> tuple[str | Text, ...]:
    from rich.text import Text

    sign, style = _SIGNS[step.state]
    has_error = step.state in ("failed", "retrying") or bool(step.error_line)
    return (
        Text(sign, style),
        Text(_name(step), style if step.state in ("failed", "created", "skipped") else ""),
        Text(_word(step), style),
        _bar(step, style) if step.tasks is not None else _progress(step),
        _took(step, now),
        cut(_sources(step), "dim"),
        cut(shorten(_note(step, now), _NOTE), "red" if has_error else "dim"),
    )


def _name(step: StepProgress) -> str:
    return f"{step.step}[]" if step.kind == "map" else step.step


def _word(step: StepProgress) -> str:
    return _WORDS.get(step.state, step.state)


def _bar(step: StepProgress, style: str) -> Text:
    """Draw how many elements of a map have ended."""
    from rich.text import Text

    total = step.tasks or 0
    full = _BAR if total == 0 else _BAR * step.done // total
    bar = Text("█" * full, style).append("░" * (_BAR - full), "dim")
    return bar.append(f" {_progress(step)}", "default")


def _progress(step: StepProgress) -> str:
    """Return how far a map is, or which attempt it was, unless it was the first."""
    if step.tasks is not None:
        failed = f", {step.failed_tasks:,} failed" if step.failed_tasks else ""
        return f"{step.done:,}/{step.tasks:,}{failed}"
    return f"attempt {step.attempts}" if step.attempts > 1 else ""


def _took(step: StepProgress, now: int) -> str:
    if step.started_at is None or step.state == "stopped":
        return ""
    return length((step.ended_at or now) - step.started_at)


def _sources(step: StepProgress) -> str:
    names = list(step.deps[:_MOST_DEPS])
    if len(step.deps) > _MOST_DEPS:
        names.append(f"{len(step.deps) - _MOST_DEPS} more")
    if step.kind == "map":
        return f"← each of {names[0] if names else 'run'}"
    sources = f"← {', '.join(names)}" if names else ""
    return f"{sources}  {rule_words(step.trigger_rule)}".strip()


def _note(step: StepProgress, now: int) -> str:
    parts: list[str] = []
    if step.next_at is not None:
        parts.append(ago(step.next_at, now))
    if step.state == "skipped" and step.skip_reason is not None:
        parts.append(SKIPPED[step.skip_reason])
    if step.state == "running" and step.workers:
        more = len(step.workers) - _MOST_WORKERS
        names = ", ".join(step.workers[:_MOST_WORKERS]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"on {names}")
    if step.state == "stopped":
        parts.append("the run ended first")
    return " · ".join([*parts, *filter(None, [step.error_line])])
