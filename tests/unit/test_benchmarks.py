"""Measurements: two of one checkout never share databases, and peers need no holdfast."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from benchmarks import floors
from benchmarks.curves_document import bound, picture, section
from benchmarks.quick import checkout, table
from benchmarks.server import alone
from benchmarks.worker import WorkerProcess, cpu_seconds, several

from tests.cli.processes import gone, until

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
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


def shown(name: str, before: list[float], now: list[float]) -> list[str]:
    """Return the line of a figure without its name: `before` has one side more."""
    lines = table([{name: each} for each in before], [{name: each} for each in now]).splitlines()
    return lines[1].split()[1:] if lines[1:] else []


def test_a_figure_is_compared_with_the_sides_before_and_after_it() -> None:
    """A machine that becomes slower from side to side does not count."""
    drifting = shown("E", [100.0, 120.0, 140.0], [110.0, 130.0])
    assert drifting == ["120.0", "120.0", "1.000x", "20.0%"]


def test_a_figure_is_called_slower_only_if_all_rounds_agree() -> None:
    assert shown("E", [100.0] * 4, [110.0, 105.0, 120.0])[2:] == ["1.100x", "0.0%", "slower"]
    assert shown("E", [100.0] * 4, [90.0, 95.0, 80.0])[2:] == ["0.900x", "0.0%", "faster"]
    assert shown("E", [100.0] * 4, [110.0, 99.0, 120.0])[2:] == ["1.100x", "0.0%"]
    assert shown("E", [100.0] * 4, [102.0, 101.0, 103.0])[2:] == ["1.020x", "0.0%"]


@pytest.mark.parametrize(
    ("now", "word"),
    [
        ([113.0, 113.0, 113.0], []),
        ([130.0, 130.0, 113.0], []),
        ([130.0, 130.0, 120.0], ["slower"]),
        ([89.0, 89.0, 89.0], []),
        ([80.0, 80.0, 89.0], []),
        ([80.0, 80.0, 80.0], ["faster"]),
    ],
)
def test_a_figure_is_called_only_if_it_differs_more_than_the_same_code_from_itself(
    now: list[float], word: list[str]
) -> None:
    assert shown("E", [100.0, 114.0, 100.0, 100.0], now)[3:] == ["14.0%", *word]


def test_a_figure_that_one_side_lacks_is_not_shown() -> None:
    assert shown("E", [100.0, 0.0], [100.0]) == []
    assert table([{"old": 1.0}, {"old": 1.0}], [{"new": 1.0}]).splitlines()[1:] == []


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


def point(used: dict[str, float], waits: dict[str, float], processes: int = 1) -> dict[str, object]:
    """Return a point of a curve."""
    cores = dict.fromkeys(("workers", "server", "client", "others"), 0.0) | used
    curve = {"curve": "W1", "processes": processes, "value": 5.0}
    return {**curve, "cores": cores, "waits": waits}


@pytest.mark.parametrize(
    ("used", "waits", "expected"),
    [
        ({"workers": 1.0, "server": 0.9}, {}, "all 2 cores, most of them by workers"),
        ({"workers": 0.3, "others": 1.6}, {}, "all 2 cores, most of them by others"),
        ({"workers": 0.95}, {"on a processor": 0.2}, "the interpreter of each process"),
        (
            {"workers": 0.5},
            {"on a processor": 0.6, "IO:WalSync": 0.4, "LWLock:WALWrite": 0.3},
            "the disk: commits wait for the log",
        ),
        ({"workers": 0.5}, {"Lock:tuple": 2.0, "on a processor": 0.5}, "Lock:tuple"),
        ({"workers": 0.5}, {"on a processor": 0.5}, "round trips: nothing is busy all the time"),
        ({}, {}, "round trips: nothing is busy all the time"),
    ],
)
def test_a_point_of_a_curve_says_what_bounded_it(
    used: dict[str, float], waits: dict[str, float], expected: str
) -> None:
    assert bound(point(used, waits), 2) == expected


def test_curves_of_two_machines_are_tables_and_lines_of_one_picture() -> None:
    on = {"cores": 2, "processor": "P", "memory": "4 GiB", "fsync of 8 kB, p50": "1 ms"}
    about = {
        "machine": {**on, "python": "3.11", "load before": "0.1"},
        "postgresql": {"server_version": "18"},
        **dict.fromkeys(("holdfast", "date", "rounds"), 1),
    }
    points = [point({"workers": 0.5}, {"on a processor": 0.5}, n) for n in (1, 2)]
    points.append(points[1] | {"shards": 2, "value": 7.0})  # the picture leaves it out
    one = {"about": about, "curves": {"W1": ["runs", "runs/s"]}, "points": points}
    lines = list(section({"here": one, "there": one}))
    rows = [line.split(" | ")[2:5] for line in lines if line.startswith("| W1 |")]
    assert rows == [["1", "1", "5"], ["2", "1", "5"], ["2", "2", "7"]] * 2
    assert "W1 1: 5, 2: 5;" in picture({"here": one, "there": one})
    assert picture({"here": one, "there": one}).count('style="stroke:') == 2
