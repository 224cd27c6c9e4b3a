"""Where a flow's shape in the code and its shape in the database differ, in words."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, cast

from holdfast.flows.shape import Fields, flow_fields, step_fields
from holdfast.types import FlowShape

# The name of each field in the code, whose words readers know, and the unit of its value.
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "kind": ("kind", ""),
    "queue": ("queue", ""),
    "max_attempts": ("attempts", ""),
    "base_delay": ("base_delay", " s"),
    "timeout": ("timeout", " s"),
    "start_delay": ("start_delay", " s"),
    "required": ("when", ""),
    "forbidden": ("unless", ""),
    "when_unmet": ("on_unmet", ""),
    "when_exhausted": ("on_exhausted", ""),
    "runs": ("runs", ""),
    "runs_kind": ("it runs a", ""),
    "trigger_rule": ("trigger_rule", ""),
    "tolerated_count": ("tolerate", ""),
    "tolerated_percent": ("tolerate", "%"),
    "concurrency": ("concurrency", ""),
    "jitter_percent": ("jitter", "%"),
}


# What is not the flow's if a step does not say it.
_WITHOUT: Final = frozenset(
    {
        "required",
        "forbidden",
        "start_delay",
        "tolerated_count",
        "tolerated_percent",
        "concurrency",
        "jitter_percent",
    }
)


def differences(code: FlowShape, database: FlowShape, *, from_code: bool = True) -> list[str]:
    """Return a line for each difference; none if and only if the two have the same hash.

    For example `step sentiment: timeout 30 s in the code, 60 s in the database`. With
    `from_code=False` SQL has made the database's, and gives `run` to each step: whether a step
    takes it makes no difference.
    """
    return list(_differences(code, database, () if from_code else ("wants_run",)))


def _differences(code: FlowShape, database: FlowShape, without: Container[str]) -> Iterator[str]:
    yield from _compare("the flow", flow_fields(code), flow_fields(database), "not set")
    steps = {step.slug: step for step in code.steps}
    found = {step.slug: step for step in database.steps}
    for slug, step in steps.items():
        if slug in found:
            mine, theirs = step_fields(step), step_fields(found[slug])
            mine = {name: value for name, value in mine.items() if name not in without}
            yield from _compare(f"step {slug}", mine, theirs, "the flow's")
        else:
            yield f"step {slug} is not in the database"
    for slug in found:
        if slug not in steps:
            yield f"step {slug} is in the database, not in the code"


def _compare(what: str, code: Fields, database: Fields, absent: str) -> Iterator[str]:
    for name, mine in code.items():
        theirs = database[name]
        if mine == theirs:
            continue
        if name == "deps":
            yield (
                f"{what}: it depends on {_names(mine)} in the code, "
                f"{_names(theirs)} in the database"
            )
        elif name == "wants_run":
            has, lacks = ("code", "database") if mine else ("database", "code")
            yield f"{what}: it is given the run's input in the {has}, not in the {lacks}"
        else:
            word, unit = _WORDS[name]
            none = "none" if name in _WITHOUT else absent
            yield (
                f"{what}: {word} {_shown(mine, unit, none)} in the code, "
                f"{_shown(theirs, unit, none)} in the database"
            )


def _shown(value: object, unit: str, absent: str) -> str:
    return absent if value is None else f"{value}{unit}"


def _names(deps: object) -> str:
    return ", ".join(cast("tuple[str, ...]", deps)) or "no step"
