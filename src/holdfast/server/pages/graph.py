"""A flow as a drawing: its steps in layers, with the state of each."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.flows.layers import steps_by_depth
from holdfast.insight.flow_progress import StepProgress, progress_of
from holdfast.insight.wording import length, shorten
from holdfast.store.port import Store
from holdfast.types import RunRecord

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
    progress = {each.step: each for each in steps}
    if len(shape.steps) > MOST_DRAWN:
        return Graph(0, 0, (), (), tuple(steps))
    layers = steps_by_depth(shape)
    tallest = max((len(layer) for layer in layers), default=1)
    height = tallest * (_HEIGHT + _DOWN) - _DOWN
    places: dict[str, tuple[int, int]] = {}
    nodes: list[Node] = []
    for depth, layer in enumerate(
        _ordered(
            [[each.slug for each in layer] for layer in layers],
            {each.slug: each.deps for each in shape.steps},
        )
    ):
        above = (height - (len(layer) * (_HEIGHT + _DOWN) - _DOWN)) // 2
        for row, slug in enumerate(layer):
            place = (
                _EDGE + depth * (_WIDTH + _ACROSS),
                _EDGE + above + row * (_HEIGHT + _DOWN),
            )
            places[slug] = place
            step = progress.get(slug)
            if step is not None:
                nodes.append(Node(*place, shorten(slug, 18), step, _below(step), _part(step)))
    edges = [
        Edge(_line(places[dep], places[step.slug]))
        for step in shape.steps
        for dep in step.deps
        if dep in places
    ]
    width = len(layers) * (_WIDTH + _ACROSS) - _ACROSS
    return Graph(width + 2 * _EDGE, height + 2 * _EDGE, tuple(nodes), tuple(edges), tuple(steps))


def _ordered(layers: list[list[str]], deps: dict[str, tuple[str, ...]]) -> list[list[str]]:
    """Return layers in which steps stand near what they depend on, so that lines cross less."""
    place: dict[str, float] = {}

    def middle(slug: str) -> float:
        above = [place[dep] for dep in deps[slug] if dep in place]
        return sum(above) / len(above) if above else 0.5

    ordered: list[list[str]] = []
    for layer in layers:
        chosen = sorted(layer, key=middle) if ordered else layer
        place.update({slug: (row + 0.5) / len(chosen) for row, slug in enumerate(chosen)})
        ordered.append(chosen)
    return ordered


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    x2, y2 = end[0], end[1] + _HEIGHT // 2
    bend = max(20, (x2 - x1) // 2)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


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
