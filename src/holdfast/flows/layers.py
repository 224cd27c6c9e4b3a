"""The steps of a flow by their depth in the graph."""

from __future__ import annotations

from holdfast.types import FlowShape, StepShape


def steps_by_depth(shape: FlowShape) -> list[list[StepShape]]:
    """Return the steps in layers: those without dependencies, those one step below, and so on.

    Each step is one layer below the deepest of its dependencies. The order inside a layer is
    that of the shape.
    """
    depths: dict[str, int] = {}
    layers: list[list[StepShape]] = []
    for step in shape.steps:
        depth = max((depths[dep] + 1 for dep in step.deps), default=0)
        depths[step.slug] = depth
        if depth == len(layers):
            layers.append([])
        layers[depth].append(step)
    return layers


def leaves(shape: FlowShape) -> list[StepShape]:
    """Return the steps on which no other depends: their outputs are the output of a run."""
    inner = {dep for step in shape.steps for dep in step.deps}
    return [step for step in shape.steps if step.slug not in inner]
