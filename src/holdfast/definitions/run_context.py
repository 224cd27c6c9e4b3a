"""What the definitions know of the context that a workflow's code is given."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID


class RunContext(Protocol):
    """The context of a run: `holdfast.Context` is one.

    It tells a function that can be a workflow from one that takes data first.
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
