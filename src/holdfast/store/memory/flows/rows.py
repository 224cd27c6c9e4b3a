"""The rows of a run of a flow: its shape, its steps, and the keys of their tasks."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from holdfast.store.memory.rows import ShapeRow, StepRow, TaskRow
from holdfast.store.memory.tables import Tables

Place: TypeAlias = tuple[UUID, str]  # a step of a run


def shape_of(tables: Tables, run_id: UUID) -> ShapeRow:
    """Return the shape that an open run of a flow has."""
    return tables.shapes[tables.runs[run_id].handler]


def shape_had(tables: Tables, run_id: UUID) -> ShapeRow:
    """Return the shape that a run of a flow has or had: another may have replaced it since."""
    run, row = tables.runs[run_id], shape_of(tables, run_id)
    return row if run.status == "running" else row.of_runs_from(run.created_at)


def runs_of(tables: Tables, name: str, version: int | None = None) -> list[UUID]:
    """Return the runs of a flow, by default of all its versions."""
    return [
        run_id
        for run_id, run in tables.runs.items()
        if run.is_flow and run.new.name == name and version in (None, run.new.version)
    ]


def known_step(tables: Tables, place: Place) -> StepRow | None:
    """Return what is known of a step; None: it has neither begun nor ended."""
    run_id, slug = place
    return tables.steps[run_id].get(slug) if run_id in tables.steps else None


def step_row(tables: Tables, place: Place) -> StepRow:
    """Return the row of a step, which is written if there is none."""
    run_id, slug = place
    return tables.steps[run_id].setdefault(slug, StepRow())


def element_key(slug: str, index: int) -> str:
    """Return the key of the task of a map's element."""
    return f"{slug}:{index}"


def split_key(key: str) -> tuple[str, int | None]:
    """Return the step of a task, and for a map's element its index.

    >>> split_key("fetch"), split_key("fetch:12")
    (('fetch', None), ('fetch', 12))
    """
    slug, colon, index = key.partition(":")
    return slug, int(index) if colon else None


def place_of(task: TaskRow) -> Place:
    """Return the step that a task belongs to."""
    return task.run_id, split_key(task.key)[0]
