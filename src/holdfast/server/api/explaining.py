"""Operations that explain a run: why it waits, its children, values, graph and payloads."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.codec import unread_reference
from holdfast.errors import ObjectsUnavailable, UnknownFlow
from holdfast.insight.actions import Action
from holdfast.insight.shapes import RunHead, run_head
from holdfast.insight.tree import Children, read_children
from holdfast.insight.why import Explanation
from holdfast.server.operations import Call, ForAgents, Nothing, Operation
from holdfast.server.run_logs import logs_of
from holdfast.types import StepShape as FlowStep


class Why(msgspec.Struct, frozen=True):
    """What a run does or waits for, and the actions that would move it."""

    run_id: str
    state: str
    because: str
    details: tuple[str, ...]
    actions: tuple[Action, ...]
    traceback: str


class ChildShape(msgspec.Struct, frozen=True):
    """A child: the key of the call that started it, its newest run, and its own children."""

    key: str
    run: RunHead
    children: ChildList


class ChildList(msgspec.Struct, frozen=True):
    """Children of a run, open ones first; `more` counts those that are left out."""

    shown: list[ChildShape]
    more: int


class Values(msgspec.Struct, frozen=True):
    """The newest value of each name that a run has set."""

    values: dict[str, Any]


class Graph(msgspec.Struct, frozen=True):
    """The steps of a flow's run, each with those that it depends on."""

    flow: str
    version: int
    steps: tuple[FlowStep, ...]


async def explain_run(call: Call[Nothing, None]) -> Why:
    """Say why a run waits, and what would move it."""
    found: Explanation = await call.site.reader.why(call.run_id)
    return Why(
        str(found.run_id), found.state, found.because, found.details, found.actions, found.traceback
    )


async def list_children(call: Call[Nothing, None]) -> ChildList:
    """Return the runs that a run has started, and theirs, down to a depth."""
    log = await logs_of(call.site).read(call.run_id)
    return _children(await read_children(call.site.store, log.spans))


async def get_values(call: Call[Nothing, None]) -> Values:
    """Return what a run has set with `ctx.set_value`."""
    found = await call.site.reader.runs.values(call.run_id)
    return Values(dict(found))


async def get_graph(call: Call[Nothing, None]) -> Graph:
    """Return the graph of a flow's run; `steps` has how far each step is."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    if run.kind != "flow":
        raise UnknownFlow(f"run {run.run_id} is one of a workflow, which has no graph")
    name, version = run.full_name, run.version
    shape = await call.site.store.shape_of_run(run.run_id, name, version, run.created_at)
    if shape is None:
        shape = await call.site.reader.flows.get(name, version)  # raises UnknownFlow
    return Graph(shape.name, shape.version, shape.steps)


async def get_input(call: Call[Nothing, None]) -> Response:
    """Return a run's input whole, as a file."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    return _attachment(run.input, f"{run.run_id}-input.json")


async def get_output(call: Call[Nothing, None]) -> Response:
    """Return a run's output whole, as a file; null while there is none."""
    run = (await call.site.reader.runs.get(call.run_id)).record
    return _attachment(run.output, f"{run.run_id}-output.json")


def _attachment(text: str | None, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(whole(text or "null"), headers=headers, media_type="application/json")


def whole(text: str) -> str:
    """Return JSON text that has all of its payloads, as it is.

    Raises ObjectsUnavailable if a reference stands in the place of one that cannot be read now.
    """
    if (unread := unread_reference(text)) is not None:
        reference, reason = unread
        raise ObjectsUnavailable(reference.url, reason)
    return text


def _children(children: Children) -> ChildList:
    shown = [
        ChildShape(each.key, run_head(each.run), _children(each.children))
        for each in children.shown
    ]
    return ChildList(shown, children.more)


def _read(path: str, handler: Any, *answers: Any, tool: ForAgents | None = None) -> Operation:
    return Operation(f"GET /v1/runs/{{run}}/{path}", "read", handler, answers=answers, tool=tool)


OPERATIONS: Final = (
    _read(
        "why",
        explain_run,
        tool=ForAgents(name="why_run", about="Say why a run waits, and what would move it."),
    ),
    _read("children", list_children),
    _read("values", get_values),
    _read("graph", get_graph),
    _read("input", get_input, Any),
    _read("output", get_output, Any),
)
