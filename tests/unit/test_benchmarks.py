"""Measurements: two of one checkout never share databases, and peers need no holdfast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.server import alone

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from benchmarks.server import alone

with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_measurement_refuses_until_the_first_has_died(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    first = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(SystemExit, match="another measurement runs"), alone(tmp_path):
            pass
    finally:
        first.kill()
        first.communicate()
    with alone(tmp_path):
        pass


def test_the_process_that_drives_a_peer_needs_no_holdfast() -> None:
    """Each peer has an environment of its own, in which holdfast is not installed."""
    without = "import sys; sys.modules['holdfast'] = None; import benchmarks.drive"
    done = subprocess.run([sys.executable, "-c", without], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
