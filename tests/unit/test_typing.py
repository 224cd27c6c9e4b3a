"""Type checkers see through steps, workflows and flows, and refuse wrong calls."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ["tests/unit/typing_cases.py", "tests/unit/flows/typing_cases.py"]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [["mypy", "--strict"], ["pyright"]], ids=["mypy", "pyright"])
def test_a_checker_infers_what_the_cases_say(checker: list[str]) -> None:
    pytest.importorskip(checker[0])
    done = subprocess.run(
        [sys.executable, "-m", *checker, *CASES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
