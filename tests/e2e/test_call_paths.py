"""Through how many files a call passes: `scripts/trace_calls.py` and its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/trace_calls.py"


def test_no_path_of_a_call_became_longer(database_url: str) -> None:
    command = [sys.executable, str(SCRIPT), "--check", "--files", "--database", database_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([line for line in done.stdout.splitlines() if "at most" in line]) == 6


def test_a_path_that_is_longer_is_found() -> None:
    code = (
        "import trace_calls as t; "
        "f = {name: [str(n) for n in range(limit)] for name, limit in t.LIMITS.items()}; "
        "assert t.longer_than_allowed(f) == []; "
        "f['step'].append('one more'); "
        "assert t.longer_than_allowed(f) == ['step']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SCRIPT.parent)
