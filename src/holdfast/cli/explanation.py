"""The answer to "why"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is so, details, and the commands that would move the run."""

    state: str
    because: str
    details: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
