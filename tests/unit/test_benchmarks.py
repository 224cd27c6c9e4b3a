"""Measurements: two of one checkout never share databases, and peers need no holdfast."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from benchmarks import floors
from benchmarks.quick import BEFORE, NOW, checkout, table
from benchmarks.server import alone
from benchmarks.worker import WorkerProcess, cpu_seconds, several

from tests.cli.processes import gone, until

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from benchmarks.quick import BEFORE, NOW, checkout, table
from benchmarks.server import alone
from benchmarks.worker import cpu_seconds

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


def test_a_figure_is_called_slower_only_if_all_rounds_agree() -> None:
    rounds = [
        {BEFORE: {"E": 100.0, "L": 10.0, "S": 10.0}, NOW: {"E": 110.0, "L": 20.0, "S": 9.0}},
        {BEFORE: {"E": 200.0, "L": 20.0, "S": 10.0}, NOW: {"E": 230.0, "L": 10.0, "S": 8.0}},
        {BEFORE: {"E": 100.0, "L": 10.0, "old": 1.0}, NOW: {"E": 105.0, "L": 20.0}},
    ]
    _, starts, latency, signals = table(rounds).splitlines()
    assert starts.split() == ["E", "100.0", "110.0", "1.100x", "slower"]
    assert latency.split() == ["L", "10.0", "20.0", "2.000x"]
    assert signals.split() == ["S", "10.0", "8.5", "0.850x", "faster"]


def test_a_commit_is_checked_out_beside_and_removed() -> None:
    with checkout("HEAD") as folder:
        assert (folder / "benchmarks" / "micro_turn.py").exists()
    assert not folder.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True)
    assert str(folder) not in listed.stdout


def test_an_unknown_commit_is_refused() -> None:
    with pytest.raises(SystemExit, match="no commit no-such-commit"), checkout("no-such-commit"):
        pass


def test_the_processor_time_of_a_process_counts_its_threads() -> None:
    before = cpu_seconds(process=os.getpid())
    thread = threading.Thread(target=lambda: sum(range(3_000_000)))
    thread.start()
    thread.join(timeout=60)
    assert cpu_seconds(process=os.getpid()) > before


def test_several_processes_of_an_engine_are_one_worker(tmp_path: Path) -> None:
    """They are killed together, and a space in an argument stays there."""
    (folder := tmp_path / "a b").mkdir()
    code = (
        "import os, pathlib, sys, time;"
        "pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(600)"
    )
    command = several([sys.executable, "-c", code, str(folder)], 2)
    with WorkerProcess(command, tmp_path / "log"):
        until(lambda: len(list(folder.iterdir())) == 2, "two processes")
    for found in folder.iterdir():
        until(lambda pid=int(found.name): gone(pid), f"process {found.name} to end")


def test_the_floors_measure_each_part_on_both_event_loops(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "CALLS", 3)
    monkeypatch.setattr(floors, "WARM", 1)
    monkeypatch.setattr(floors, "EXCHANGES", 3)
    monkeypatch.chdir(ROOT)  # from where the process that answers finds its module
    figures = floors.measure(empty_database_url, rounds=1)
    assert list(figures) == [
        "select 1",
        "one insert",
        "three inserts, one function",
        "start_one",
        "Client.start",
        "signal and answer, when idle",
        "signal and answer",
    ]
    assert all(figures[name][loop] > 0 for name in figures for loop in floors.LOOPS)


def test_a_floor_is_shown_as_time_and_as_rate() -> None:
    shown = floors.table({"start_one": {"asyncio": 400.0, "uvloop": 2_000.0}})
    assert shown.splitlines()[1].split() == ["start_one", "400", "(2,500)", "2000", "(500)"]
