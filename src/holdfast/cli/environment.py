"""What the environment says to processes that others of holdfast's have started."""

from __future__ import annotations

import os
from dataclasses import dataclass

PARENT_VARIABLE = "HOLDFAST_SUPERVISOR"


@dataclass(frozen=True, slots=True)
class Starter:
    """The process that started this one: its number, and a pipe that ends when it is gone."""

    pid: int
    pipe: int

    def variable(self) -> dict[str, str]:
        """Return what tells a child of it."""
        return {PARENT_VARIABLE: f"{self.pid}:{self.pipe}"}


def find_starter() -> Starter | None:
    """Return who started this process, None if it was not a supervisor.

    The variable is taken away: what this process starts is not a child of that supervisor.
    """
    pid, _, pipe = os.environ.pop(PARENT_VARIABLE, "").partition(":")
    return Starter(int(pid), int(pipe)) if pid.isdecimal() and pipe.isdecimal() else None
