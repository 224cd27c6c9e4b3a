"""Runs that are archived before they are deleted."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Value

Restoring: TypeAlias = Literal["restored", "exists"]


class LeasedRun(Value, frozen=True):
    """A run that one sweeper archives and deletes, if it is still the run that ended then.

    `is_written` is True for a run of which a part is deleted already: the archive has it.
    `labels` are those that the archive has; None: not compared.
    """

    run_id: UUID
    completed_at: int
    row_count: int
    is_written: bool = False
    labels: str | None = None


class LeasedRuns(Value, frozen=True):
    """Runs that were leased; `has_more` is True if there may be more that are due."""

    runs: list[LeasedRun]
    has_more: bool


class ExportedRuns(Value, frozen=True):
    """A part of runs, each as a line of JSON.

    The `unfinished` ones have more parts, which begin after what is given; None: at the beginning.
    `labels` tell the tags and attributes in first lines from others: they change after the end.
    """

    lines: dict[UUID, str]
    unfinished: dict[UUID, str | None]
    labels: dict[UUID, str]
