"""The steps of a flow by their depth in the graph."""

from __future__ import annotations

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
