"""Finding the seeds that fail, and what of a seed is needed for that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.planted import planted
from tests.simulation.world import run_seed

SEARCHED: Final = 1_000  # seeds, within which each planted fault must be found


def shrink(seed: int, broken: Violation) -> frozenset[str]:
    """Return what a seed can do without and still break the same rule."""
    without: frozenset[str] = frozenset()
    for part in Plan(seed).parts():
        found, _ = run_seed(Plan(seed, without | {part}))
        if found is not None and found.rule == broken.rule:
            without |= {part}
    return without


def find(fault: str, seeds: Iterable[int] = range(SEARCHED)) -> tuple[int, Violation] | None:
    """Return the first seed that finds a planted fault, and what it finds."""
    for seed in seeds:
        with planted(fault):
            broken, _ = run_seed(Plan(seed))
        if broken is not None:
            return seed, broken
    return None
