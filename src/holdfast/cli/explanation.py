"""The answer to "why"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is so, details, and the commands that would move the run.

    `traceback` is that of the error that the run failed with or is held up by.
    """

    state: str
    because: str
    details: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    traceback: str = ""
