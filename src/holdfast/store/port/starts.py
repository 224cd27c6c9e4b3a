"""The part of the port for starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.types import NewRun, Notice, StartedRun


class StartStore(Protocol):
    """Starts runs."""

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; a run that exists already is left as it is and reported with its status.

        Each start writes the run, its WorkflowStarted event and its first task. The answers are
        in the order of `runs`; the same id twice in one call is one run, created once.
        """
        ...
