"""The context of a workflow's code, as far as the definitions need to know it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID


class RunContext(Protocol):
    """The context of a run: `holdfast.Context` is one.

    A function whose first parameter is declared as this one can be a workflow.
    """

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        ...

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        ...

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule that started the run, in UTC; None if no schedule did."""
        ...

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        ...

    @property
    def version(self) -> int:
        """The version that the run was started with."""
        ...

    def now(self) -> datetime:
        """Return the run's time, in UTC."""
        ...
