"""The script that makes the table of failures leaves nothing behind, however it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.processes import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other accounts may enter, for PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="failures-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def of_folder(folder: Path) -> list[int]:
    """Return the processes that work in a folder, or are told of it."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            said.append(os.fsencode(os.readlink(entry / "cwd")))
            if any(os.fsencode(folder) in each for each in said):
                found.append(int(entry.name))
    return found


@pytest.mark.crash
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at Linux's /proc")
def test_an_interrupted_script_leaves_no_process_and_no_file(folder: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.failures", "--only", "supervised", "--tries", "9"]
    said = folder / "said"
    with said.open("w") as output:
        script = subprocess.Popen(
            [*command, "--output", str(folder / "results.json")],
            cwd=ROOT,
            stderr=output,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    try:
        until(lambda: "supervised: up" in said.read_text() or script.poll() is not None)
        assert len(of_folder(folder)) > 5
        script.send_signal(signal.SIGINT)
        assert script.wait(60) == 1
    finally:
        script.kill()
        script.wait()
    until(lambda: of_folder(folder) == [])  # one that was killed may be on its way out
    assert {path.name for path in folder.iterdir()} == {"said", "lock"}
    assert said.read_text().endswith("interrupted: all that was started is ended\n")


def test_a_failure_for_which_a_program_is_missing_is_skipped_with_its_name(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.failures", "--only", "patroni-sync"]
    done = subprocess.run(
        [*command, "--output", str(results)],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "patroni-sync: skipped, this machine has no Patroni (apt-get install" in done.stderr
    assert not results.exists()
