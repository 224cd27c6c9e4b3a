"""Type checkers read the programs of the skill.

That they see through steps, workflows and flows, and refuse wrong calls, is in the files
`typing_cases.py`, which `make mypy` and `make pyright` read with the package: to read the package
once more takes them as long as all of this.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker",
    [["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]],
    ids=["mypy", "pyright"],
)
def test_the_programs_of_the_skill_have_right_types(
    checker: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip(checker[0])
    if checker[0] == "mypy":
        checker = [*checker, "--cache-dir", request.getfixturevalue("mypy_cache")]
    programs = [each for each in read_blocks(ROOT / "docs" / "skill.md") if each.file is not None]
    for each in programs:
        (tmp_path / str(each.file)).write_text(each.text)
    files = [str(each.file) for each in programs]
    assert "shop.py" in files
    done = subprocess.run(
        [sys.executable, "-m", *checker, *files],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
