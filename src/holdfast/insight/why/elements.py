"""Which element of a map it was whose error ended the run of a flow."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.insight.spans import read_details, read_json
from holdfast.insight.wording import shorten
from holdfast.store.port import Store
from holdfast.types import JSON, Event, RunRecord

_COMPLETED = "FlowStepCompleted"
_WIDEST = 200  # characters of an element


async def failed_element(store: Store, run: RunRecord, log: Iterable[Event]) -> str:
    """Return where the element of a map stands that failed, and what it is; empty if none did."""
    error = read_json(run.error) if run.kind == "flow" and run.status == "failed" else None
    place = error.get("task_index") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(place, int):
        return ""
    shape = await store.shape_of_run(run.run_id, run.full_name, run.version, run.created_at)
    if shape is None:  # the flow was deleted
        return ""
    deps = next((each.deps for each in shape.steps if each.slug == error.get("step")), ())
    found = _output(log, deps[0]) if deps else read_json(run.input)
    element = ""
    if isinstance(found, list) and place < len(found):
        element = ": " + shorten(msgspec.json.encode(found[place]).decode(), _WIDEST)
    return f"it is element {place} of {deps[0] if deps else 'the input'}, counted from 0{element}"


def _output(log: Iterable[Event], step: str) -> JSON:
    """Return what a step of a flow returned, None if the log does not have it."""
    for event in log:
        if event.type == _COMPLETED and event.key == step:
            return read_details(event.details).get("output")
    return None
