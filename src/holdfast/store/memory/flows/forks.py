"""Forks of runs of flows: new runs that begin with what others have, with other values."""

from __future__ import annotations

import json

from holdfast.errors import InvalidInput
from holdfast.store.memory.flows.judging import json_type
from holdfast.store.memory.flows.retries import continue_flow
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import ShapeRow
from holdfast.store.memory.tables import Tables
from holdfast.types import FlowFork, FlowForking, Notice
from holdfast.values.texts import check_text


def fork_flow(tables: Tables, now: int, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
    """Start a new run that begins with what another has; see `FlowStore.fork_flow`."""
    _check(fork)
    origin = tables.runs.get(fork.run_id)
    if origin is not None and not origin.is_flow:
        raise InvalidInput(f"run {fork.run_id} is not one of a flow: fork it with fork_run")
    if fork.new_run_id in tables.runs:
        return "exists", []
    shape = None if origin is None else tables.shapes.get(origin.handler)
    if origin is None or shape is None:
        return "missing", []
    named = fork.results.keys() | ({fork.from_step} - {None})
    if not named <= shape.steps.keys():
        return "unknown_key", []
    _check_results(shape, fork)
    return "forked", continue_flow(tables, now, origin, shape, fork)


def _check(fork: FlowFork) -> None:
    """Raise InvalidInput if a fork has a value that is not allowed."""
    if fork.input is not None:
        check_json("input", fork.input)
    for slug, text in fork.results.items():
        check_text("step", slug)
        check_json("result", text)


def _check_results(shape: ShapeRow, fork: FlowFork) -> None:
    """Raise InvalidInput if the result of a map is not an array."""
    for slug, text in sorted(fork.results.items()):
        found = json_type(json.loads(text))
        if shape.steps[slug].kind == "map" and found != "array":
            raise InvalidInput(
                f"step {slug} is a map: its result is an array of the results of its elements, "
                f"not {found}"
            )
