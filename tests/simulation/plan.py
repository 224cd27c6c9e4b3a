"""What a seed draws: faults, what happens to which worker when, and which scenes are played."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from holdfast.worker import WorkerOptions

CHAOS_SECONDS: Final = 24.0  # then nothing more goes wrong, and all must come to an end
CALL_FAULTS: Final = ("late", "lost", "unanswered", "ghost", "deaf", "doubled")
EVENTS: Final = ("kill", "freeze", "block", "cut", "outage", "stop", "deploy")
OTHER_FAULTS: Final = ("skew", "errors")
SCENES: Final = (
    *("chain", "signals", "relay", "parent", "race", "limited", "queue", "events", "updates"),
    *("flow", "ticks", "paused", "cancelled"),
)
_REPLACED: Final = 0.15  # the part of seeds in which releases replace each other's flow
_RATES: Final = (0.01, 0.03, 0.1)
_MOST_SCENES: Final = 5


@dataclass(frozen=True)
class Blow:
    """Something that happens to a worker, or to all (`outage`). `name` is that of this one."""

    name: str
    kind: str
    at: float
    slot: int
    seconds: float


@dataclass
class Plan:
    """A seed, without what `without` names: shrinking leaves out what does not matter.

    Each thing draws from a source of its own: without one, the others stay as they are.
    """

    seed: int
    without: frozenset[str] = frozenset()
    workers: list[int] = field(init=False)
    rates: dict[str, float] = field(init=False)
    blows: list[Blow] = field(init=False)
    scenes: list[str] = field(init=False)
    options: WorkerOptions = field(init=False)
    skews: bool = field(init=False)
    errors: float = field(init=False)
    pace: float = field(init=False)  # by how much effects take longer

    def __post_init__(self) -> None:
        chance = self.chance("plan")
        slots = chance.choice((2, 2, 3))
        self.workers = [n for n in range(slots) if n == 0 or f"worker{n}" not in self.without]
        rates = {kind: chance.choice((0.0, *_RATES)) for kind in CALL_FAULTS}
        rates["late"] *= chance.choice((1, 3))
        self.rates = {kind: self._kept(kind, rate) for kind, rate in rates.items()}
        self.skews = chance.random() < 0.5 and "skew" not in self.without
        self.errors = self._kept("errors", chance.choice((0.0, 0.1, 0.3)))
        self.pace = chance.choice((1.0, 1.0, 6.0))
        self.options = self._draw_options()
        blows = [self._draw_blow(n, slots) for n in range(chance.choice((0, 1, 2, 4, 6, 8)))]
        self.blows = [each for each in blows if not {each.name, each.kind} & self.without]
        scenes = chance.sample(SCENES, chance.randint(2, _MOST_SCENES))
        # Drawn apart, so that the other scenes of a seed stay as they are.
        scenes += ["replaced"] * (self.chance("replaced").random() < _REPLACED)
        self.scenes = [each for each in scenes if each not in self.without]

    def chance(self, of: str) -> random.Random:
        """Return the source of what is drawn for something."""
        return random.Random(f"{self.seed}:{of}")

    def parts(self) -> list[str]:
        """Return the names of all that can be left out."""
        return [
            *self.scenes,
            *(each.name for each in self.blows),
            *(kind for kind, rate in self.rates.items() if rate),
            *(["skew"] if self.skews else []),
            *(["errors"] if self.errors else []),
            *(f"worker{n}" for n in self.workers if n),
        ]

    def _draw_options(self) -> WorkerOptions:
        chance = self.chance("options")
        return WorkerOptions(
            replace_flows=True,
            concurrency=chance.choice((2, 4, 12)),
            cache=chance.choice((0, 1, 100)),
            lease_seconds=chance.choice((6.0, 9.0)),
            silent_seconds=chance.choice((4.5, 8.0)),
            grace_seconds=chance.choice((0.2, 2.0)),
        )

    def _kept(self, name: str, rate: float) -> float:
        return 0.0 if name in self.without else rate

    def _draw_blow(self, number: int, slots: int) -> Blow:
        chance = self.chance(f"blow{number}")
        kind = chance.choice(EVENTS)
        at = chance.uniform(0.1, CHAOS_SECONDS * 0.8)
        seconds = min(chance.choice((0.5, 3.0, 9.0)) * chance.uniform(0.5, 1.5), CHAOS_SECONDS - at)
        return Blow(f"{kind}{number}", kind, at, chance.randrange(slots), seconds)


def command(seed: int, without: Collection[str] = ()) -> str:
    """Return the command that repeats a history."""
    left_out = f" --without {','.join(sorted(without))}" if without else ""
    return f"python -m tests.simulation --seeds {seed}{left_out}"
