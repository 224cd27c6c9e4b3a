"""The graphs of flows: the steps by their depth, and flows that run each other in a circle."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from holdfast.types import FlowShape, StepShape


def steps_by_depth(shape: FlowShape) -> list[list[StepShape]]:
    """Return the steps in layers: those without dependencies, those one step below, and so on.

    Each step is one layer below the deepest of its dependencies. The order inside a layer is
    that of the shape. Steps that always run at the end are in the last layer.
    """
    depths: dict[str, int] = {}
    layers: list[list[StepShape]] = []
    last = [step for step in shape.steps if step.trigger_rule == "always"]
    for step in shape.steps:
        if step.trigger_rule == "always":
            continue
        depth = max((depths[dep] + 1 for dep in step.deps), default=0)
        depths[step.slug] = depth
        if depth == len(layers):
            layers.append([])
        layers[depth].append(step)
    return [*layers, last] if last else layers


def comes_after(shape: FlowShape, step: StepShape) -> tuple[str, ...]:
    """Return the steps after which one is drawn: its dependencies, or for the last ones, all."""
    if step.trigger_rule != "always":
        return step.deps
    return (*step.deps, *(leaf.slug for leaf in leaves(shape) if leaf.slug not in step.deps))


def leaves(shape: FlowShape) -> list[StepShape]:
    """Return the steps on which no other depends: their outputs are the output of a run.

    Steps that always run at the end are not among them, and do not count.
    """
    steps = [step for step in shape.steps if step.trigger_rule != "always"]
    inner = {dep for step in steps for dep in step.deps}
    return [step for step in steps if step.slug not in inner]


def flows_run(shape: FlowShape) -> dict[str, str]:
    """Return the flows that steps of a flow run, as `name@version`, each with the first step."""
    found: dict[str, str] = {}
    for step in shape.steps:
        if step.runs is not None and step.runs_kind == "flow":
            found.setdefault(step.runs, step.slug)
    return found


def find_circle(shapes: Iterable[FlowShape]) -> list[tuple[str, str, str]]:
    """Return a circle of flows that run each other; empty if there is none.

    Each entry is a flow, one of its steps and the flow that this step runs, which is that of the
    next entry; flows are `name@version`.
    """
    runs = {shape.handler: flows_run(shape) for shape in shapes}
    try:
        TopologicalSorter(runs).prepare()
    except CycleError as error:
        # Each flow of the circle is run by the next one; the first is also the last.
        circle: list[str] = error.args[1][::-1]
        first = circle.index(min(circle))
        circle = [*circle[first:-1], *circle[:first], circle[first]]
        return [(flow, runs[flow][other], other) for flow, other in pairwise(circle)]
    return []
