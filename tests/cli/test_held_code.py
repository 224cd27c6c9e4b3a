"""User code that holds the thread of its worker: said, given up, and the process replaced."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psycopg
import pytest

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import Process, gone, running, save, until
from tests.cli.test_dev import children_of

APP = str(Path(__file__).with_name("held.py"))


def worker(cli: CommandLine, *options: str) -> list[str]:
    return ["--database", cli.url, "worker", APP, *options]


def held(process: Process, cli: CommandLine, workflow: str = "spins") -> str:
    """Have workflow code hold the worker; return its run."""
    process.await_text("ready")
    run = cli.start(workflow)
    process.await_text("has held the event loop")
    return run


@pytest.mark.parametrize("workflow", ["spins", "sleeps"])
def test_code_that_never_yields_is_given_up_as_stuck(
    cli: CommandLine, tmp_path: Path, workflow: str
) -> None:
    """Before its first durable call as well as after one. The process ends: it is of no use."""
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        run = held(process, cli, workflow)
        text = process.await_text("is given up as stuck")
        assert f"run {run} ({workflow})" in text
        assert f'File "{APP}"' in text
        assert f", in {workflow}" in text
        assert process.ended() == exits.FAILED
    shown = cli.json("runs", "show", run)
    assert shown["state"] == "stuck"
    assert "has held the worker" in cli("runs", "why", run).stdout
    assert [event["type"] for event in shown["log"]].count("WorkerLost") == 0


def test_other_runs_of_a_blocked_worker_continue(cli: CommandLine, tmp_path: Path) -> None:
    """They are given back, and so is the process's place among the workers."""
    with running(tmp_path / "log", *worker(cli, "--processes", "2", "--grace", "1")) as process:
        process.await_text("ready", times=2)
        runs = [cli.start("neighbour", str(number)) for number in range(10)]
        cli.start("blocks")
        runs += [cli.start("neighbour", str(number)) for number in range(10)]
        for run in runs:
            cli.await_state(run, "completed")
        process.await_text("ended with code 1; another starts")
        process.await_text("ready", times=3)


def test_a_run_that_blocks_does_not_take_all_workers(cli: CommandLine, tmp_path: Path) -> None:
    """Its process ends at once, as no step runs; each try comes later than the last one."""
    with running(tmp_path / "log", *worker(cli, "--processes", "2", "--grace", "1h")) as process:
        process.await_text("ready", times=2)
        run = cli.start("blocks")
        for tries in (1, 2, 3):
            process.await_text("ended with code 1; another starts", times=tries)
            assert cli.start("neighbour", "1", "--wait")
        assert stuck_tries(cli.url, run) >= 3
    log = [event["type"] for event in cli.json("runs", "show", run)["log"]]
    assert log == ["WorkflowStarted"]


def stuck_tries(url: str, run: str) -> int:
    """Return how often in a row a run was stuck."""
    with psycopg.connect(url) as connection:
        query = "select stuck_tries from holdfast.tasks where run_id = %s"
        row = connection.execute(query, [run]).fetchone()
    assert row is not None
    return int(row[0])


def test_a_step_of_another_run_gets_the_grace_period(cli: CommandLine, tmp_path: Path) -> None:
    """Its lease is kept: a step that still runs must not run elsewhere at the same time."""
    path = tmp_path / "go"
    with running(tmp_path / "log", *worker(cli, "--grace", "1h")) as process:
        process.await_text("ready")
        busy = cli.start("busy_neighbour", json.dumps(str(path)))
        until(lambda: list(tmp_path.glob("go-*")) or None, "the step to run")
        run = held(process, cli, "blocks")
        process.await_text("is given up as stuck")
        cli.await_state(run, "stuck")
        with running(tmp_path / "log2", *worker(cli)) as other:
            other.await_text("ready")
            assert cli.start("neighbour", "1", "--wait")
            assert cli.state(busy) == "running"
        process.send(signal.SIGTERM)
        process.await_text("a second signal ends it at once")
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert cli.state(busy) == "queued"


@pytest.mark.parametrize(
    ("workflow", "number", "code"),
    [("spins", signal.SIGINT, exits.INTERRUPTED), ("sleeps", signal.SIGTERM, exits.OK)],
)
def test_a_signal_is_handled_although_code_blocks_the_worker(
    cli: CommandLine, tmp_path: Path, workflow: str, number: signal.Signals, code: int
) -> None:
    """After the grace period, and at once where it is asked again."""
    with running(tmp_path / "log", *worker(cli, "--grace", "1h")) as process:
        process.await_text("ready")
        cli.start("busy_neighbour", json.dumps(str(tmp_path / "go")))
        until(lambda: list(tmp_path.glob("go-*")) or None, "the step to run")
        held(process, cli, workflow)
        process.send(number)
        process.await_text("a second signal ends it at once")
        process.send(number)
        assert process.ended() == code
        assert "gives back all that it holds" in process.text()
    assert cli.json("workers") == []


def test_a_signal_is_handled_although_a_step_blocks_the_event_loop(
    cli: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "blocked"
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        run = cli.start("blocks_in_step", json.dumps(str(path)))
        until(lambda: path.exists() or None, "the step to block")
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert ", in block" in process.text()
    assert cli.state(run) == "queued"


def test_a_signal_is_handled_although_code_blocks_the_worker_while_it_is_closed(
    cli: CommandLine, tmp_path: Path
) -> None:
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        run = cli.start("spins_while_it_closes")
        cli.await_state(run, "waiting")
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert ", in spins_while_it_closes" in process.text()
    assert cli.state(run) == "waiting"


def test_code_in_a_debugger_is_left_alone(cli: CommandLine, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    os.mkfifo(commands)
    with running(tmp_path / "log", *worker(cli, "--grace", "0.1")) as process:
        process.await_text("ready")
        # Open for both, so that the code's own open, which is outside of the debugger, never waits.
        with os.fdopen(os.open(commands, os.O_RDWR), "w") as debugger:
            run = cli.start("debugged", json.dumps(str(commands)))
            cli.await_state(run, "running")
            beats = {cli.json("workers")[0]["heard_at"]}

            def beat() -> bool | None:
                beats.add(cli.json("workers")[0]["heard_at"])
                return len(beats) > 2 or None  # the limits have passed several times

            until(beat, "heartbeats")
            debugger.write("continue\n")
            debugger.flush()
            cli.await_state(run, "completed")
        assert "held the event loop" not in process.text()
        assert "stuck" not in process.text()


FIRST = """
import time

from holdfast import App, Context

app = App("draft")

@app.workflow
async def answer(ctx: Context) -> int:
    time.sleep(3600)
"""
SECOND = FIRST.replace("time.sleep(3600)", "return 2")


def test_dev_reloads_and_ends_although_code_blocks_its_worker(
    cli: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "draft.py").write_text(FIRST)
    arguments = ["--database", cli.url, "dev", "draft.py"]
    with running(tmp_path / "log", *arguments, cwd=folder) as process:
        run = held(process, cli, "answer")
        save(folder / "draft.py", SECOND)
        process.await_text("draft.py changed")
        process.await_text("ready", times=2)
        cli.await_state(run, "completed")
        save(folder / "draft.py", FIRST)
        process.await_text("ready", times=3)
        cli.start("answer")
        process.await_text("has held the event loop", times=2)
        process.send(signal.SIGINT)
        assert process.ended() == exits.INTERRUPTED


@pytest.mark.parametrize("workflow", ["spins", "sleeps", None])
def test_a_worker_ends_when_its_supervisor_was_killed(
    cli: CommandLine, tmp_path: Path, workflow: str | None
) -> None:
    arguments = worker(cli, "--processes", "2", "--grace", "0.1")
    with running(tmp_path / "log", *arguments) as process:
        process.await_text("ready", times=2)
        workers = children_of(process.pid)
        if workflow is not None:
            held(process, cli, workflow)
        process.send(signal.SIGKILL)
        process.popen.wait()
        for pid in workers:
            until(lambda pid=pid: gone(pid), "the worker to end")  # type: ignore[misc]


def test_a_worker_that_does_not_end_is_killed(cli: CommandLine, tmp_path: Path) -> None:
    """One that is stopped hears nothing at all."""
    arguments = worker(cli, "--processes", "2", "--grace", "0.1")
    with running(tmp_path / "log", *arguments) as process:
        process.await_text("ready", times=2)
        first, second = children_of(process.pid)
        os.kill(first, signal.SIGSTOP)
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
        assert f"worker process {first} has not ended" in process.text()
        assert gone(first)
        assert gone(second)
