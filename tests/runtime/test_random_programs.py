"""Random workflow programs in a random world: live execution, replay, conflict and hand-over agree.

S6. Trap 18. Trap 19. Trap 29. Trap 30.
"""

from __future__ import annotations

import gc
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.checks import check
from tests.runtime.programs import Program, programs, programs_with_events, workflow
from tests.runtime.world import World

pytestmark = pytest.mark.filterwarnings(
    # Programs leave coroutines unawaited when they are closed half-way.
    "ignore::RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
EXAMPLES = 300


def explore(program: Program, chance: random.Random, seen: Counter[str]) -> None:
    """Run a program in a world of chance, and check it."""
    code = workflow(program)
    world = World(lambda: code, chance.randrange)
    try:
        end = world.run()
        if end is not None:
            check(world)
        seen[str(end)] += 1
        seen.update(world.seen)
    finally:
        world.close()


@pytest.mark.timeout(600)
def test_every_way_to_read_a_log_agrees() -> None:
    """The world must have shown each of its dangers for the agreement to mean something."""
    seen: Counter[str] = Counter()

    @given(programs, st.randoms(use_true_random=False))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def run(program: Program, chance: random.Random) -> None:
        explore(program, chance, seen)

    run()
    gc.collect()  # what programs left behind is reported here, not in a later test
    for danger in (
        *("crashes", "rebuilds", "tails", "handovers", "resumes", "retries", "steals"),
        *("ends", "updates", "pauses", "overtaken", "behind"),
    ):
        assert seen[danger] > EXAMPLES // 20, seen
    assert seen["completed"] > EXAMPLES // 2, seen
    assert seen["cancelled"] > 0
    assert seen["logs"] > 0
    assert seen["None"] < EXAMPLES // 10


@pytest.mark.timeout(600)
def test_programs_that_wait_for_events_agree() -> None:
    """B14, edge case 22. As above, with subscriptions among the calls."""
    seen: Counter[str] = Counter()

    @given(programs_with_events, st.randoms(use_true_random=False))
    @settings(
        max_examples=EXAMPLES // 6,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def run(program: Program, chance: random.Random) -> None:
        explore(program, chance, seen)

    run()
    gc.collect()
    for danger in ("crashes", "tails", "handovers", "events"):
        assert seen[danger] > EXAMPLES // 60, seen
    assert seen["completed"] > EXAMPLES // 12, seen
