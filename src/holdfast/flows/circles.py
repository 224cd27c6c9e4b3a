"""Finding flows whose steps run each other in a circle."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from holdfast.types import FlowShape


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
