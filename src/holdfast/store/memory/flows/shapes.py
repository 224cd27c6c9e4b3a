"""The shapes of flows: versions of graphs, each with the hash that the code gave it."""

from __future__ import annotations

import json

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory import details
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.flows.checks import check_shape
from holdfast.store.memory.flows.rows import runs_of
from holdfast.store.memory.rows import ShapeRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import JSON, EnsuredFlow, Event, FlowInfo, FlowShape
from holdfast.values.names import split_name


def ensure_shape(
    tables: Tables, now: int, shape: FlowShape, shape_hash: str, *, replace: bool
) -> EnsuredFlow:
    """Make the shape of this version that of the code, unless there is another."""
    known = tables.shapes.get(shape.handler)
    if known is not None and known.shape_hash == shape_hash:
        return EnsuredFlow("verified")
    check_shape(shape, shape_hash)
    row = ShapeRow(_stored(shape), shape_hash, now)
    if known is None:
        tables.shapes[shape.handler] = row
        return EnsuredFlow("compiled")
    if _by_slug(known.shape) == _by_slug(row.shape):
        known.shape_hash = shape_hash
        return EnsuredFlow("verified")
    if not replace:
        return EnsuredFlow("mismatch", known.shape)
    runs = runs_of(tables, shape.name, shape.version)
    starts = (tables.runs[run_id].created_at for run_id in runs_of(tables, shape.name))
    row.replaced = known
    row.created_at = max(now, 1 + max(starts, default=0), 1 + known.created_at)  # the last of all
    tables.shapes[shape.handler] = row  # before: flows of which these are steps may start more
    event = Event("WorkflowTerminated", None, details.write(reason="its shape was replaced"), now)
    ended, notices = end_from_outside(tables, runs, "terminated", event)
    return EnsuredFlow("replaced", known.shape, len(ended), distinct(notices))


def _stored(shape: FlowShape) -> FlowShape:
    """Return a shape as a database gives it back: dependencies by slug, patterns as jsonb."""
    return msgspec.structs.replace(
        shape,
        steps=tuple(
            msgspec.structs.replace(
                step,
                deps=tuple(sorted(step.deps)),
                required=_stored_pattern(step.required),
                forbidden=_stored_pattern(step.forbidden),
            )
            for step in shape.steps
        ),
    )


def _stored_pattern(text: str | None) -> str | None:
    return None if text is None else json.dumps(_sorted(json.loads(text)), ensure_ascii=False)


def _sorted(value: JSON) -> JSON:
    """Return decoded JSON with its keys in the order of jsonb: by length, then by bytes."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _sorted(value[key]) for key in keys}
    if isinstance(value, list):
        return [_sorted(element) for element in value]
    return value


def _by_slug(shape: FlowShape) -> FlowShape:
    """Return a shape with its steps by slug: their order makes no other shape."""
    steps = tuple(sorted(shape.steps, key=lambda step: step.slug))
    return msgspec.structs.replace(shape, steps=steps)


def find_shape(
    tables: Tables, name: str, version: int | None, created_at: int | None
) -> FlowShape | None:
    """Return a version of a flow, by default the newest; None if there is none."""
    row = newest_shape(tables, name)
    if row is not None and version is not None:
        row = tables.shapes.get(f"{row.shape.name}@{version}")
    if row is not None and created_at is not None:
        row = row.of_runs_from(created_at)
    return None if row is None else row.shape


def newest_shape(tables: Tables, name: str) -> ShapeRow | None:
    """Return the newest version of a flow; None if there is none.

    A name without an app is also that of the only app that has such a flow.
    """
    names = {row.shape.name for row in tables.shapes.values()}
    if "/" not in name and name not in names:
        full = sorted(known for known in names if split_name(known)[1] == name)
        if len(full) > 1:
            raise InvalidInput(f"flow {name} is in several apps: {', '.join(full)}")
        name = full[0] if full else name
    return max(
        (row for row in tables.shapes.values() if row.shape.name == name),
        key=lambda row: row.shape.version,
        default=None,
    )


def list_shapes(tables: Tables) -> list[FlowInfo]:
    """Return every version of every flow, by name and version."""
    rows = sorted(tables.shapes.values(), key=lambda row: (row.shape.name, row.shape.version))
    return [
        FlowInfo(
            name=row.shape.name,
            version=row.shape.version,
            steps=len(row.shape.steps),
            from_code=True,
            created_at=row.created_at,
            open_runs=sum(
                map(tables.is_running, runs_of(tables, row.shape.name, row.shape.version))
            ),
        )
        for row in rows
    ]
