"""Random graphs of steps, what their steps return, and what may be true of a run that has ended."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

ENDED = ("completed", "skipped", "failed")
_END_ENTRIES = {
    "FlowStepCompleted": "completed",
    "FlowStepSkipped": "skipped",
    "FlowStepFailed": "failed",
}


@dataclass(frozen=True)
class Node:
    slug: str
    kind: str
    deps: tuple[str, ...]
    attempts: int | None
    required: dict[str, Any] | None
    forbidden: dict[str, Any] | None
    unmet: str
    exhausted: str
    rule: str = "none_failed"
    tolerated: int | None = None
    concurrency: int | None = None


class Graph:
    """A flow of up to seven steps, some of which feed maps; every third has trigger rules."""

    def __init__(self, chance: Random) -> None:
        self.nodes: dict[str, Node] = {}
        has_rules = chance.random() < 0.35
        for number in range(chance.randrange(1, 8)):
            kind = "map" if chance.random() < 0.35 else "single"
            before = [node.slug for node in self.nodes.values() if node.rule != "always"]
            many = 1 if kind == "map" else 3
            deps = chance.sample(before, min(len(before), many, chance.choice([0, 1, 1, 2, 3])))
            rule = "none_failed"
            if has_rules and kind == "single" and before:
                rule = chance.choice(
                    [rule, *(["all_done", "one_failed"] if deps else []), "always"]
                )
            is_free = rule != "always"
            self.nodes[f"s{number}"] = Node(
                slug=f"s{number}",
                kind=kind,
                deps=tuple(deps),
                attempts=chance.choice([None, 1, 2, 3]),
                required={dep: {} for dep in deps[:1]}
                if chance.random() < 0.15 and is_free
                else None,
                forbidden={"n": 1} if chance.random() < 0.1 and is_free else None,
                unmet=chance.choice(["skip", "skip-cascade", "fail"][: 2 + (rule != "one_failed")]),
                exhausted=chance.choice(["fail", "skip", "skip-cascade"]),
                rule=rule,
                tolerated=chance.choice([None, None, 1, 3]) if kind == "map" else None,
                concurrency=chance.choice([None, None, 1, 2]) if kind == "map" else None,
            )

    @property
    def is_soft(self) -> bool:
        """True if a step that fails does not end the run."""
        return any(node.rule != "none_failed" for node in self.nodes.values())

    @property
    def maps_the_input(self) -> bool:
        return any(node.kind == "map" and not node.deps for node in self.nodes.values())

    @property
    def leaves(self) -> set[str]:
        others = [node for node in self.nodes.values() if node.rule != "always"]
        return {node.slug for node in others} - {dep for node in others for dep in node.deps}

    def feeds_a_map(self, slug: str) -> bool:
        return any(node.kind == "map" and slug in node.deps for node in self.nodes.values())

    def output(self, slug: str, given: object) -> object:
        """What a step returns for what it is given: always the same, whatever an error says."""
        if isinstance(given, dict) and "$failed" in given:
            given = {**given, "$failed": sorted(given["$failed"])}
        drawn = zlib.crc32(json.dumps([slug, given], sort_keys=True).encode())
        if not self.feeds_a_map(slug):
            return {"drawn": drawn}
        if self.nodes[slug].kind == "map":
            return drawn % 7
        return [(drawn >> place) % 100 for place in range(drawn % 5)]


def contains(value: object, pattern: object) -> bool:
    """`value @> pattern`, for the patterns of these graphs."""
    if isinstance(value, dict) and isinstance(pattern, dict):
        return all(key in value and contains(value[key], pattern[key]) for key in pattern)
    return type(value) is type(pattern) and value == pattern


@dataclass(frozen=True)
class Ended:
    """A run as it ended: its status and output, its steps, and (type, key) of its entries."""

    status: str
    output: Any
    steps: Mapping[str, Mapping[str, Any]]
    entries: list[tuple[str, str | None]]


def faults(graph: Graph, given: object, run: Ended) -> list[str]:
    """List what cannot be true of a run of the graph that has ended."""
    found = [fault for node in graph.nodes.values() for fault in _of_step(graph, given, run, node)]
    if run.status == "completed":
        outputs = _outputs(run)
        if run.output != {slug: outputs[slug] for slug in graph.leaves if slug in outputs}:
            found.append(f"the output is {run.output}")
        found += [
            f"{slug} is {step['status']} in a completed run"
            for slug, step in run.steps.items()
            if step["status"] not in ("completed", "skipped", *(["failed"] * graph.is_soft))
        ]
    if graph.is_soft and run.status in ("completed", "failed"):
        unhandled = {slug for slug in graph.nodes if _is_unhandled(graph, run, slug)}
        if bool(unhandled) != (run.status == "failed"):
            found.append(f"the run {run.status}, and no step handled the failures of {unhandled}")
    if run.status in ("completed", "failed", "cancelled"):
        found += [
            f"{node.slug} is {run.steps[node.slug]['status']}, and always runs"
            for node in graph.nodes.values()
            if node.rule == "always" and run.steps[node.slug]["status"] not in ENDED
        ]
    return found


def _has_failed(step: Mapping[str, Any]) -> bool:
    return "failed" in (step["status"], str(step["skip_reason"]).removeprefix("dependency_"))


def _is_unhandled(graph: Graph, run: Ended, slug: str) -> bool:
    """A step that failed, or that was skipped because of one, has only such steps after it."""
    last = graph.nodes[slug].rule == "always" or slug in graph.leaves
    return _has_failed(run.steps[slug]) and last


def _outputs(run: Ended) -> dict[str, Any]:
    return {slug: s["output"] for slug, s in run.steps.items() if s["status"] == "completed"}


def _of_step(graph: Graph, given: object, run: Ended, node: Node) -> list[str]:
    slug, step, outputs = node.slug, run.steps[node.slug], _outputs(run)
    status, reason = step["status"], step["skip_reason"]
    ends = Counter(_END_ENTRIES.get(type_) for type_, key in run.entries if key == slug)
    del ends[None]
    found: list[str] = []
    if ends != ({status: 1} if status in ENDED else {}):
        found.append(f"{slug} is {status}, and its log says {dict(ends)}")
    above = {dep: run.steps[dep] for dep in node.deps}
    seen = {"run": given} | {dep: outputs[dep] for dep in node.deps if dep in outputs}
    errors = [dep for dep, each in above.items() if _has_failed(each)]
    with_errors = [
        dep
        for dep, each in above.items()
        if _has_failed(each) or (each["status"] == "completed" and each["failed_tasks"])
    ]
    if with_errors:
        seen["$failed"] = dict.fromkeys(with_errors)
    judged = seen if node.deps else given
    met = (
        (node.rule != "one_failed" or bool(errors))
        and (node.required is None or contains(judged, node.required))
        and (node.forbidden is None or not contains(judged, node.forbidden))
    )
    if status == "completed":
        if node.rule != "always" and any(dep["status"] not in ENDED for dep in above.values()):
            found.append(f"{slug} completed before its dependencies ended")
        if node.rule == "none_failed" and errors:
            found.append(f"{slug} completed although {errors} failed")
        if node.kind == "map":
            elements: Any = outputs.get(node.deps[0], []) if node.deps else given
            expected: Any = [graph.output(slug, element) for element in elements]
        else:
            expected = graph.output(slug, seen)
        if node.kind == "map" and step["failed_tasks"]:
            both = zip(step["output"], expected, strict=True)
            expected = [None if output is None else good for output, good in both]
            if not expected.count(None) == step["failed_tasks"] <= (node.tolerated or 0):
                found.append(f"{slug} tolerated {step['failed_tasks']} failures")
        if step["output"] != expected:
            found.append(f"{slug} returned {step['output']}, not {expected}")
        if not met:
            found.append(f"{slug} completed although its condition does not hold")
        found += [
            f"{slug} completed although {name} was to take it along"
            for name, dep in above.items()
            if dep["status"] == "skipped"
            and node.rule == "none_failed"
            and _cascades(graph.nodes[name], dep["skip_reason"])
        ]
    elif status == "skipped":
        if reason == "condition_unmet" and met:
            found.append(f"{slug} was skipped although its condition holds")
        if reason == "dependency_skipped" and not any(
            dep["status"] == "skipped" for dep in above.values()
        ):
            found.append(f"{slug} was skipped because of no dependency")
        if reason == "dependency_failed" and not errors:
            found.append(f"{slug} was skipped because of a failure that there was not")
    return found


def _cascades(node: Node, reason: str) -> bool:
    if reason in ("dependency_skipped", "dependency_failed"):
        return True
    policy = node.unmet if reason == "condition_unmet" else node.exhausted
    return policy == "skip-cascade"
