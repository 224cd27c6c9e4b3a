"""The whole engine in one seed: what a seed does, that it holds, and what it must find."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.plan import Plan, command
from tests.simulation.planted import FOUND_BY, planted
from tests.simulation.search import shrink
from tests.simulation.world import run_seed

SEEDS = 300
_AT_ONCE = 30
_MOST = 1000  # seeds in which a fault must be found


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_nothing_is_lost_repeated_mixed_up_or_left_waiting(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        broken, _ = run_seed(Plan(seed))
        if broken is not None:
            pytest.fail(f"seed {seed}: {broken}\n{command(seed, shrink(seed, broken))} -v")


def test_a_seed_is_one_history_in_every_process() -> None:
    arguments = ["-m", "tests.simulation", "--seeds", "100-109", "--jobs", "1"]
    said = [
        subprocess.run(
            [sys.executable, *arguments],
            env={"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    digests = [text.rpartition("digest ")[2] for text in said]
    assert len(digests[0]) > 30
    assert digests[0] == digests[1]


def _first_seed_that_finds(fault: str) -> int:
    """Return it; a change of the engine changes histories, so the noted seed may find no more."""
    noted, rule = FOUND_BY[fault]
    for seed in range(noted, noted + _MOST):
        with planted(fault):
            broken, _ = run_seed(Plan(seed))
        if broken is not None and broken.rule == rule:
            return seed
    pytest.fail(f"{_MOST} seeds from {noted} do not find that {fault}")


@pytest.mark.parametrize("fault", sorted(FOUND_BY))
def test_a_planted_fault_is_found(fault: str) -> None:
    seed = _first_seed_that_finds(fault)
    broken, _ = run_seed(Plan(seed))
    assert broken is None, "without the fault nothing is wrong"


def test_a_failing_seed_is_shrunk_to_what_it_needs() -> None:
    fault = "a deduplication id is forgotten"
    seed = _first_seed_that_finds(fault)
    with planted(fault):
        broken, _ = run_seed(Plan(seed))
        assert broken is not None
        without = shrink(seed, broken)
        again, _ = run_seed(Plan(seed, without))
    assert again is not None
    assert again.rule == broken.rule
    assert set(Plan(seed, without).scenes) == {"queue"}
