"""`holdfast worker --once` as a process: limited work for hosts without a worker (T7, T14)."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import SAMPLE, call, command, running
from tests.cli.test_worker import await_held


def once(cli: CommandLine, *options: str) -> list[str]:
    return ["--database", cli.url, "worker", SAMPLE, "--once", *options]


def swept(cli: CommandLine, *options: str) -> dict[str, object]:
    """Sweep in a process of its own, and return what it says that it did."""
    ended = call(*once(cli, "--json", *options))
    assert ended.returncode == exits.OK, ended.stderr
    said: dict[str, object] = json.loads(ended.stdout)
    return said


def rows(cli: CommandLine, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(cli.url) as connection:
        return connection.execute(query.encode()).fetchall()


LEASES = "select run_id from holdfast.tasks where worker is not null"
WORKERS = "select worker_id from holdfast.workers"
LET_TIME_PASS = """
    update holdfast.workers set heard_at = heard_at - interval '1 hour',
        ends_at = ends_at - interval '1 hour' returning 1
"""


def test_it_does_what_is_due_and_exits(cli: CommandLine) -> None:
    runs = [cli.start("double", str(number)) for number in range(3)]
    done = swept(cli)
    assert (done["runs"], done["ended"], done["remaining"]) == (3, 3, False)
    assert {cli.state(run) for run in runs} == {"completed"}
    assert rows(cli, LEASES) == rows(cli, WORKERS) == []


def test_it_says_in_words_what_it_did(cli: CommandLine) -> None:
    cli.start("double", "1")
    cli.start("double", "2")
    ended = call(*once(cli, "--max-runs", "1"))
    assert ended.stdout.startswith("1 run, 1 turn")
    assert ended.stdout.rstrip().endswith("1 run ended; more is due now")
    assert "1 run ended" in call(*once(cli)).stdout


def test_it_says_so_if_nothing_was_due(cli: CommandLine) -> None:
    assert call(*once(cli)).stdout.startswith("nothing was due in ")


def test_work_of_a_killed_sweep_is_done_by_a_later_one(cli: CommandLine, tmp_path: Path) -> None:
    """S12. Nobody else works on this database who could observe that it is gone."""
    run = cli.start("fatal", json.dumps(str(tmp_path)))
    assert call(*once(cli)).returncode == -signal.SIGKILL
    assert len(rows(cli, LEASES)) == len(rows(cli, WORKERS)) == 1
    assert swept(cli)["runs"] == 0  # as far as it can know, the other one still works
    assert rows(cli, LET_TIME_PASS) == [(1,)]
    assert swept(cli)["ended"] == 1
    shown = cli.json("runs", "show", run)
    assert shown["output"] == "survived"
    assert "WorkerLost" in [event["type"] for event in shown["log"]]
    assert rows(cli, LEASES) == rows(cli, WORKERS) == []


def test_sigterm_ends_it_early(cli: CommandLine, tmp_path: Path) -> None:
    """T14. A host that stops its function sends SIGTERM first."""
    run = cli.start("held", json.dumps(str(tmp_path)))
    with running(tmp_path / "log", *once(cli, "--grace", "50ms")) as process:
        await_held(tmp_path)
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert "1 interrupted: the time was over; more is due now" in process.text()
    log = cli.json("runs", "show", run)["log"]
    assert [event["type"] for event in log] == ["WorkflowStarted", "WorkflowTaskYielded"]
    (tmp_path / "let-go").touch()
    assert swept(cli)["ended"] == 1


def test_a_thread_that_cannot_be_stopped_does_not_keep_the_process(
    cli: CommandLine, tmp_path: Path
) -> None:
    cli.start("held_thread", json.dumps(str(tmp_path)))
    with running(tmp_path / "log", *once(cli, "--grace", "50ms")) as process:
        await_held(tmp_path)
        process.send(signal.SIGTERM)  # or its time is over
        assert process.ended() == exits.OK
        assert "1 interrupted" in process.text()
    assert rows(cli, LEASES) == rows(cli, WORKERS) == []


@pytest.mark.slow
def test_sweeps_work_beside_each_other_and_beside_a_worker(served: CommandLine) -> None:
    """T7. Each run is done once, by one of them."""
    runs = [served.start("double", str(number)) for number in range(40)]
    arguments = once(served, "--json", "--max-runs", "10")
    sweeps = [
        subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for each in sweeps:
        out, err = each.communicate(timeout=60)
        assert json.loads(out)["interrupted"] == 0, err
    for run in runs:
        served.await_state(run, "completed")
        log = served.json("runs", "show", run)["log"]
        assert [event["type"] for event in log].count("WorkflowCompleted") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-runs", "3"], "--max-runs is for --once"),
        (["--max-duration", "3s"], "--max-duration is for --once"),
        (["--once", "--processes", "2"], "--once is for one process"),
        (["--once", "--max-duration", "0s"], "max_duration must be more than 0"),
        (["--once", "--max-runs", "0"], "0 is not in the range x>=1"),
        (["--once", "--grace", "1m"], "leaves no time of max_duration"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    cli: CommandLine, options: list[str], message: str
) -> None:
    result = cli("worker", SAMPLE, *options, code=exits.USAGE)
    assert message in result.output
