"""A flow as a drawing: its steps in layers, with the state of each."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec

from holdfast.flows.layers import steps_by_depth
from holdfast.insight.flow_progress import StepProgress, progress_of
from holdfast.insight.wording import length, shorten
from holdfast.store.port import Store
from holdfast.types import FlowShape, RunRecord

MOST_DRAWN: Final = 300  # steps; more are a table
_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 168, 50, 54, 16, 8


class Node(msgspec.Struct, frozen=True):
    """A step in the drawing: its box, and how far it is. `part` is done of a map, 0 to 1."""

    x: int
    y: int
    name: str
    step: StepProgress
    below: str
    part: float | None


class Edge(msgspec.Struct, frozen=True):
    """A dependency: the path of a line."""

    path: str


class Graph(msgspec.Struct, frozen=True):
    """The drawing of a flow. With too many steps it has no nodes, only the steps."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    steps: tuple[StepProgress, ...]


async def draw_flow(store: Store, run: RunRecord) -> Graph | None:
    """Return the drawing of a flow's run; None if the database does not have the flow."""
    shape = await store.get_flow(run.full_name, run.version)
    if shape is None:
        return None
    states = (await store.flow_steps([run.run_id], outputs=False)).get(run.run_id, [])
    ended = run.status != "running"
    tasks = () if ended else await store.open_step_tasks(run.run_id)
    steps = progress_of(states, tasks, ended=ended)
    if len(shape.steps) > MOST_DRAWN:
        return Graph(0, 0, (), (), tuple(steps))
    layers, chains = layers_of(shape)
    tallest = max((len(layer) for layer in layers), default=1)
    height = tallest * (_HEIGHT + _DOWN) - _DOWN
    places: dict[str, tuple[int, int]] = {}
    for depth, layer in enumerate(layers):
        above = (height - (len(layer) * (_HEIGHT + _DOWN) - _DOWN)) // 2
        for row, name in enumerate(layer):
            x = _EDGE + depth * (_WIDTH + _ACROSS)
            places[name] = x, _EDGE + above + row * (_HEIGHT + _DOWN)
    nodes = [
        Node(*places[each.step], shorten(each.step, 18), each, _below(each), _part(each))
        for each in steps
        if each.step in places
    ]
    edges = [Edge(_line([places[name] for name in chain])) for chain in chains]
    width = len(layers) * (_WIDTH + _ACROSS) - _ACROSS
    return Graph(width + 2 * _EDGE, height + 2 * _EDGE, tuple(nodes), tuple(edges), tuple(steps))


def layers_of(shape: FlowShape) -> tuple[list[list[str]], list[list[str]]]:
    """Return layers of names, and a chain of names for each dependency.

    A dependency over several layers has a place of its own in each between, so that its line
    passes beside the steps there.
    """
    by_depth = [[each.slug for each in layer] for layer in steps_by_depth(shape)]
    depth = {slug: number for number, layer in enumerate(by_depth) for slug in layer}
    before: dict[str, list[str]] = {slug: [] for slug in depth}
    chains: list[list[str]] = []
    for step in shape.steps:
        for dep in step.deps:
            chain = [dep]
            for number in range(depth[dep] + 1, depth[step.slug]):
                passing = f"{dep}@{number}"  # no step has such a name
                if passing not in before:
                    before[passing] = [chain[-1]]
                    by_depth[number].append(passing)
                chain.append(passing)
            before[step.slug].append(chain[-1])
            chains.append([*chain, step.slug])
    return _ordered(by_depth, before), chains


def _ordered(layers: list[list[str]], before: dict[str, list[str]]) -> list[list[str]]:
    """Return layers in which names stand near those before them, so that lines cross less."""
    place: dict[str, float] = {}

    def middle(name: str) -> float:
        above = [place[each] for each in before[name] if each in place]
        return sum(above) / len(above) if above else 0.5

    ordered: list[list[str]] = []
    for layer in layers:
        chosen = sorted(layer, key=middle) if ordered else layer
        place.update({name: (row + 0.5) / len(chosen) for row, name in enumerate(chosen)})
        ordered.append(chosen)
    return ordered


def _line(places: list[tuple[int, int]]) -> str:
    """Return the path of a line from the first place to the last, straight through the others."""
    middle = _HEIGHT // 2
    path = f"M{places[0][0] + _WIDTH} {places[0][1] + middle}"
    for (x, y), (to_x, to_y) in pairwise(places):
        first, last = (x + _WIDTH, y + middle), (to_x, to_y + middle)
        bend = max(20, (last[0] - first[0]) // 2)
        path += f"C{first[0] + bend} {first[1]} {last[0] - bend} {last[1]} {last[0]} {last[1]}"
        if (to_x, to_y) != places[-1]:
            path += f"H{to_x + _WIDTH}"
    return path


def _below(step: StepProgress) -> str:
    if step.tasks is not None and step.state != "completed":
        return f"{step.done:,} of {step.tasks:,}"
    if step.started_at is not None and step.ended_at is not None:
        took = length(step.ended_at - step.started_at)
        return f"{step.tasks:,} in {took}" if step.tasks is not None else took
    return step.state.replace("_", " ")


def _part(step: StepProgress) -> float | None:
    if step.kind != "map" or step.tasks is None:
        return None
    return 1.0 if not step.tasks else step.done / step.tasks
