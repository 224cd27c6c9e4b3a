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


class Graph:
    """A flow of up to seven steps, some of which feed maps."""

    def __init__(self, chance: Random) -> None:
        self.nodes: dict[str, Node] = {}
        for number in range(chance.randrange(1, 8)):
            kind = "map" if chance.random() < 0.35 else "single"
            before = list(self.nodes)
            many = 1 if kind == "map" else 3
            deps = chance.sample(before, min(len(before), many, chance.choice([0, 1, 1, 2, 3])))
            self.nodes[f"s{number}"] = Node(
                slug=f"s{number}",
                kind=kind,
                deps=tuple(deps),
                attempts=chance.choice([None, 1, 2, 3]),
                required={dep: {} for dep in deps[:1]} if chance.random() < 0.15 else None,
                forbidden={"n": 1} if chance.random() < 0.1 else None,
                unmet=chance.choice(["skip", "skip-cascade", "fail"]),
                exhausted=chance.choice(["fail", "skip", "skip-cascade"]),
            )

    @property
    def maps_the_input(self) -> bool:
        return any(node.kind == "map" and not node.deps for node in self.nodes.values())

    @property
    def leaves(self) -> set[str]:
        return set(self.nodes) - {dep for node in self.nodes.values() for dep in node.deps}

    def feeds_a_map(self, slug: str) -> bool:
        return any(node.kind == "map" and slug in node.deps for node in self.nodes.values())

    def output(self, slug: str, given: object) -> object:
        """What a step returns for what it is given: always the same."""
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
            if step["status"] not in ("completed", "skipped")
        ]
    return found


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
    judged = seen if node.deps else given
    met = (node.required is None or contains(judged, node.required)) and (
        node.forbidden is None or not contains(judged, node.forbidden)
    )
    if status == "completed":
        if any(dep["status"] not in ("completed", "skipped") for dep in above.values()):
            found.append(f"{slug} completed before its dependencies ended")
        if node.kind == "map":
            elements: Any = outputs.get(node.deps[0], []) if node.deps else given
            expected: object = [graph.output(slug, element) for element in elements]
        else:
            expected = graph.output(slug, seen)
        if step["output"] != expected:
            found.append(f"{slug} returned {step['output']}, not {expected}")
        if not met:
            found.append(f"{slug} completed although its condition does not hold")
        found += [
            f"{slug} completed although {name} was to take it along"
            for name, dep in above.items()
            if dep["status"] == "skipped" and _cascades(graph.nodes[name], dep["skip_reason"])
        ]
    elif status == "skipped":
        if reason == "condition_unmet" and met:
            found.append(f"{slug} was skipped although its condition holds")
        if reason == "dependency_skipped" and not any(
            dep["status"] == "skipped" for dep in above.values()
        ):
            found.append(f"{slug} was skipped because of no dependency")
    return found


def _cascades(node: Node, reason: str) -> bool:
    if reason == "dependency_skipped":
        return True
    policy = node.unmet if reason == "condition_unmet" else node.exhausted
    return policy == "skip-cascade"
