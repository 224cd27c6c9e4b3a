"""State machines whose steps are drawn by plain seeds.

With fixed examples hypothesis mostly repeats and varies the first ones; these are all different.
A failure names its seed and its steps. HOLDFAST_TEST_SEEDS asks for others: `5`, or `100-300`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from agreement import TwoStores, two_stores

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])
Options = Sequence[Any] | Callable[[random.Random], Any]  # of an argument


def act(when: str = "", weight: int = 1, **drawn: Options) -> Callable[[AnyMethod], AnyMethod]:
    """Declare a method as a step. `when` names a field without which it is not possible."""

    def declare(method: AnyMethod) -> AnyMethod:
        method.__dict__["act"] = (when, weight, drawn)
        return method

    return declare


def some(options: Sequence[Any], least: int, most: int) -> Callable[[random.Random], list[Any]]:
    """Draw a list."""
    return lambda chance: chance.choices(options, k=chance.randint(least, most))


class SeededMachine(TwoStores):
    """Two stores that are asked the same; subclasses have methods that are steps."""

    def begin(self, chance: random.Random) -> None:
        """Prepare what all steps need."""

    def check(self) -> None:
        """Compare the stores after each step."""
        self.every_run_and_every_log_is_the_same()

    def end(self) -> None:
        """Check what must hold at the end."""

    def acts(self) -> list[Callable[..., None]]:
        """Return the methods that are steps, each as often as it weighs."""
        found = [getattr(self, name) for name in sorted(dir(type(self)))]
        return [each for each in found if hasattr(each, "act") for _ in range(each.act[1])]

    def step(self, chance: random.Random, acts: Sequence[Callable[..., None]]) -> str:
        """Make a step that is possible; return how it was called, for people."""
        each: Any = chance.choice([one for one in acts if self.is_possible(one)])
        drawn = {
            name: options(chance) if callable(options) else chance.choice(options)
            for name, options in each.act[2].items()
        }
        said = f"{each.__name__}({', '.join(f'{name}={value!r}' for name, value in drawn.items())})"
        try:
            each(**drawn)
            self.check()
        except Exception as error:
            error.add_note(said)
            raise
        return said

    def is_possible(self, method: Any) -> bool:
        """Return True if the machine has what a step needs."""
        return not method.act[0] or bool(getattr(self, method.act[0]))


def run_seeds(machine: type[SeededMachine], url: str, *, seeds: int, steps: int) -> None:
    """Run a machine with so many seeds, or with those that the environment asks for."""
    with two_stores(url):
        for seed in asked_seeds() or range(seeds):
            chance, stores, done = random.Random(seed), machine(), list[str]()
            try:
                stores.begin(chance)
                acts = stores.acts()
                for _ in range(steps):
                    done.append(stores.step(chance, acts))
                stores.end()
            except Exception as error:
                error.add_note("\n".join([f"HOLDFAST_TEST_SEEDS={seed}, after:", *done]))
                raise


def asked_seeds() -> Iterable[int]:
    """Return the seeds that HOLDFAST_TEST_SEEDS names."""
    asked = os.environ.get("HOLDFAST_TEST_SEEDS", "")
    first, _, last = asked.partition("-")
    return range(int(first), int(last or first) + 1) if asked else ()
