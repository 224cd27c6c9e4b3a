"""A flow as a drawing: its steps in layers, with the state of each."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final

import msgspec

from holdfast.flows import rule_words
from holdfast.flows.graphs import comes_after, steps_by_depth
from holdfast.insight.flow_progress import StepProgress, graph_steps, progress_of
from holdfast.insight.wording import length, shorten
from holdfast.store.port import Store
from holdfast.types import FlowShape, RunRecord

MOST_DRAWN: Final = 2_000  # steps
_EDGE: Final = 8


class Size(msgspec.Struct, frozen=True):
    """How large the box of a step is, and how far from the next across and down.

    A layer of more than so many `rows` has several columns.
    """

    width: int
    height: int
    across: int
    down: int
    rows: int


_LARGE: Final = Size(168, 50, 54, 16, 10_000)
_SMALL: Final = Size(26, 12, 30, 4, 32)  # without names, for flows of many steps
_MOST_LARGE: Final = 300  # steps


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
    """The drawing of a flow, with counts of steps by state. With too many steps it has no nodes."""

    size: Size
    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    steps: tuple[StepProgress, ...]
    counts: dict[str, int]

    @property
    def is_small(self) -> bool:
        """True if the boxes have no names."""
        return self.size == _SMALL


async def draw_flow(store: Store, run: RunRecord) -> Graph | None:
    """Return the drawing of a flow's run; None if the database does not have the flow."""
    states = (await store.flow_steps([run.run_id], outputs=False)).get(run.run_id, [])
    if not states:
        return None
    shape = FlowShape(name=run.full_name, version=run.version, steps=graph_steps(states))
    ended = run.status != "running"
    tasks = () if ended else await store.open_step_tasks(run.run_id)
    steps = progress_of(states, tasks, ended=ended)
    counts: dict[str, int] = dict(Counter(str(each.state) for each in steps))
    if len(shape.steps) > MOST_DRAWN:
        return Graph(_SMALL, 0, 0, (), (), tuple(steps), counts)
    size = _LARGE if len(shape.steps) <= _MOST_LARGE else _SMALL
    layers, chains = layers_of(shape)
    tallest = min(max((len(layer) for layer in layers), default=1), size.rows)
    height = tallest * (size.height + size.down) - size.down
    places: dict[str, tuple[int, int]] = {}
    x = _EDGE
    for layer in layers:
        rows = min(len(layer), size.rows)
        above = (height - (rows * (size.height + size.down) - size.down)) // 2
        for number, name in enumerate(layer):
            column, row = divmod(number, size.rows)
            beside = x + column * (size.width + size.down)
            places[name] = beside, _EDGE + above + row * (size.height + size.down)
        x += -(-len(layer) // size.rows) * (size.width + size.down) - size.down + size.across
    nodes = [
        Node(*places[each.step], shorten(each.step, 18), each, _below(each), _part(each))
        for each in steps
        if each.step in places
    ]
    edges = [Edge(_line([places[name] for name in chain], size)) for chain in chains]
    width = x - size.across + _EDGE
    height += 2 * _EDGE
    return Graph(size, width, height, tuple(nodes), tuple(edges), tuple(steps), counts)


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
        for dep in comes_after(shape, step):
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


def _line(places: list[tuple[int, int]], size: Size) -> str:
    """Return the path of a line from the first place to the last, straight through the others."""
    middle = size.height // 2
    path = f"M{places[0][0] + size.width} {places[0][1] + middle}"
    for (x, y), (to_x, to_y) in pairwise(places):
        first, last = (x + size.width, y + middle), (to_x, to_y + middle)
        bend = max(10, (last[0] - first[0]) // 2)
        path += f"C{first[0] + bend} {first[1]} {last[0] - bend} {last[1]} {last[0]} {last[1]}"
        if (to_x, to_y) != places[-1]:
            path += f"H{to_x + size.width}"
    return path


def _below(step: StepProgress) -> str:
    if step.tasks is not None and step.state != "completed":
        failed = f", {step.failed_tasks:,} failed" if step.failed_tasks else ""
        return f"{step.done:,} of {step.tasks:,}{failed}"
    if step.state == "created" and (rule := rule_words(step.trigger_rule)):
        return rule
    if step.started_at is not None and step.ended_at is not None:
        took = length(step.ended_at - step.started_at)
        failed = f", {step.failed_tasks:,} failed" if step.failed_tasks else ""
        return f"{step.tasks:,} in {took}{failed}" if step.tasks is not None else took
    return step.state.replace("_", " ")


def _part(step: StepProgress) -> float | None:
    if step.kind != "map" or step.tasks is None:
        return None
    return 1.0 if not step.tasks else step.done / step.tasks
