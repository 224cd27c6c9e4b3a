"""Orders drawn by a seed: calls of the store, ends of steps, and what is due at one moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Final

from holdfast.testing.plan import Plan, whole

SEEDS: Final = 20  # tries, unless a test says otherwise
_LONGEST: Final = 6  # turns of the event loop


class DrawnPlan(Plan):
    """Lets each call and each attempt take a drawn number of turns of the event loop."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self.draw = self._chance.random

    async def pause(self) -> None:
        """Wait for a drawn number of turns."""
        for _ in range(self._chance.randrange(_LONGEST)):
            await asyncio.sleep(0)


class Exploration:
    """The tries of `explore`: one for each seed."""

    name = "explore"

    def __init__(self, seeds: range) -> None:
        self._seeds = seeds

    def plans(self) -> Iterator[DrawnPlan]:
        """Yield the plan of each try."""
        yield from map(DrawnPlan, self._seeds)

    def describe(self, plan: Plan) -> str:
        """Return the seed, and how it is repeated."""
        assert isinstance(plan, DrawnPlan)
        return f"Seed {plan.seed} fails. Repeat it with @pytest.mark.explore(seed={plan.seed})."

    def report(self) -> str:
        """Return the seeds."""
        return f"seeds {self._seeds[0]} to {self._seeds[-1]}"


def exploration(*, seeds: object = SEEDS, seed: object = None) -> Exploration:
    """Return the tries of a mark: of the first seeds, or of one.

    Raises ValueError for a number that cannot be one.
    """
    if seed is None:
        return Exploration(range(whole("seeds", seeds, 1)))
    one = whole("seed", seed, 0)
    return Exploration(range(one, one + 1))
