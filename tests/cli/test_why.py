"""`holdfast runs why`: each thing that a run can be doing or waiting for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from click.testing import CliRunner

from holdfast.cli import exits
from holdfast.cli.root import holdfast
from tests.cli.conftest import CommandLine
from tests.cli.processes import SAMPLE, running, until


def why(cli: CommandLine, run: str) -> dict[str, Any]:
    answer: dict[str, Any] = cli.json("runs", "why", run)
    shown = cli("runs", "why", run).stdout
    assert answer["state"].replace("_", " ") in shown
    for command in answer["commands"]:
        assert command in shown
    return answer


def test_a_run_without_a_worker_names_the_one_to_start(cli: CommandLine) -> None:
    """Trap 25. What no live worker can run is said to be so, with the way out. B7."""
    answer = why(cli, cli.start("double", "1", "--queue", "gpu"))
    assert "no worker can run this: no live worker serves sample/double@1" in answer["because"]
    assert answer["commands"] == ["holdfast worker MODULE:APP --queue gpu"]


def test_a_run_of_another_version_names_those_that_are_served(served: CommandLine) -> None:
    """Trap 25. A version that no worker has is never claimed."""
    answer = why(served, served.start("double", "1", "--workflow-version", "3"))
    assert "serves sample/double@3" in answer["because"]
    assert answer["details"] == ["workers serve sample/double@1"]


def test_a_run_of_a_mistyped_workflow_names_what_is_served(served: CommandLine) -> None:
    answer = why(served, served.start("sample/duoble", "1"))
    assert "serves sample/duoble@1" in answer["because"]
    assert answer["details"][0].startswith("workers on queue 'default' serve ")
    assert "double@1" in answer["details"][0]


def test_a_run_of_another_queue_names_the_workers_that_have_its_code(served: CommandLine) -> None:
    run = served.start("double", "1", "--queue", "gpu")
    answer = why(served, run)
    assert "for other queues: default" in answer["details"][0]
    move = f"holdfast runs reschedule {run} --to-queue default"
    assert answer["commands"][0] == move
    served(*move.split()[1:])
    until(lambda: served.state(run) == "completed" or None)


def test_a_run_whose_input_does_not_fit_leads_to_one_with_another(served: CommandLine) -> None:
    run = served.start("double", '"one"')
    until(lambda: served.state(run) == "failed" or None)
    answer = why(served, run)
    assert "holdfast.errors.InvalidInput: input of double" in answer["because"]
    assert answer["commands"] == [f"holdfast runs fork {run} --index 1 --input '…'"]
    assert served("runs", "why", run).output.count("input of double") == 1, "it was there twice"


def test_an_unread_signal_does_not_hide_that_the_input_does_not_fit(served: CommandLine) -> None:
    run = served.start("double", '"one"', "--delay", "1h")
    served("runs", "signal", run, "go")
    served("runs", "reschedule", run, "--delay", "0s")
    until(lambda: served.state(run) == "failed" or None)
    assert why(served, run)["commands"] == [f"holdfast runs fork {run} --index 1 --input '…'"]


def test_a_delayed_run_names_its_start(cli: CommandLine) -> None:
    answer = why(cli, cli.start("double", "1", "--delay", "2h"))
    assert answer["because"].startswith("its start is delayed until")


def test_a_run_that_waits_for_a_signal_gives_the_command_that_sends_it(served: CommandLine) -> None:
    run = served.start("pack", '{"id": 7}')
    served.await_state(run, "waiting")
    answer = why(served, run)
    assert answer["because"] == "it waits for signal 'packed'"
    (command,) = answer["commands"]
    arguments = ["--database", served.url, *shlex.split(command)[1:]]
    unfilled = CliRunner().invoke(holdfast, arguments)
    assert unfilled.exit_code == exits.USAGE, "no payload is guessed: the code may not accept it"
    arguments = ["{}" if each == "…" else each for each in arguments]
    assert CliRunner().invoke(holdfast, arguments).exit_code == 0
    served.await_state(run, "completed")


def test_a_sleeping_run_names_its_timer(served: CommandLine) -> None:
    run = served.start("sleep_long")
    served.await_state(run, "waiting")
    because = why(served, run)["because"]
    assert because.startswith("it sleeps until")
    assert because.endswith(" (timer)")


def test_a_step_in_backoff_shows_the_last_error_and_the_next_try(served: CommandLine) -> None:
    run = served.start("back_off")
    served.await_state(run, "waiting")
    because = why(served, run)["because"]
    assert because.startswith("step refuse is tried again in ")
    assert because.endswith("attempt 1 failed: ValueError: not today")


def test_a_stuck_run_shows_the_divergence_and_when_it_is_tried_again(served: CommandLine) -> None:
    run = served.start("get_stuck")
    served.await_state(run, "stuck")
    answer = why(served, run)
    assert "a replay could not repeat it" in answer["because"]
    assert "it is tried again" in answer["details"][0]


def test_a_fork_that_is_stuck_because_of_its_input_names_another_fork(
    served: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "let-go").touch()
    run = served.start("held", f'"{tmp_path}"')
    served.await_state(run, "completed")
    fork = served("runs", "fork", run, "--input", '"elsewhere"').stdout.strip()
    served.await_state(fork, "stuck")
    answer = why(served, fork)
    assert "with what was changed in this fork, the code does not follow" in answer["because"]
    assert "the code has changed under this run" not in answer["because"]
    assert f"a fork of run {run}: if its changed input makes" in answer["details"][1]
    assert answer["commands"][0] == f"holdfast runs fork {run} --index 1 --input '…'"
    other = served("runs", "fork", run, "--index", "1", "--input", f'"{tmp_path}"').stdout.strip()
    served.await_state(other, "completed")
    served("runs", "terminate", fork)


def test_a_running_run_names_its_worker(served: CommandLine, tmp_path: Path) -> None:
    run = served.start("held", f'"{tmp_path}"')
    until(lambda: list(tmp_path.glob("held-*")) or None, "the step to run")
    (worker,) = served.json("workers")
    assert f"it runs on worker {worker['worker_id']}" in why(served, run)["because"]
    (tmp_path / "let-go").touch()
    served.await_state(run, "completed")


def test_why_names_a_silent_worker(cli: CommandLine, tmp_path: Path) -> None:
    with running(tmp_path / "log", "--database", cli.url, "worker", SAMPLE) as worker:
        worker.await_text("ready")
        run = cli.start("held", f'"{tmp_path}"')
        until(lambda: list(tmp_path.glob("held-*")) or None, "the step to run")
        worker.popen.kill()
        worker.ended()
    with psycopg.connect(cli.url) as connection:
        connection.execute("update holdfast.workers set heard_at = now() - interval '25 hours'")
    answer = why(cli, run)
    assert "holds it and was heard 1 d 1 h ago" in answer["because"]


def test_a_run_of_a_dead_worker_waits_for_room_of_others(cli: CommandLine, tmp_path: Path) -> None:
    starts = ("--database", cli.url, "worker", SAMPLE, "--concurrency", "1")
    with running(tmp_path / "log", *starts) as worker:
        worker.await_text("ready")
        held = cli.start("held", f'"{tmp_path}"')
        until(lambda: list(tmp_path.glob("held-*")) or None, "the step to run")
        run = cli.start("double", "21")
        with psycopg.connect(cli.url) as connection:
            connection.execute(
                "update holdfast.tasks set worker = 'gone', lease_no = 1, "
                "visible_at = now() - interval '50 s' where run_id = %s",
                [run],
            )
        answer = why(cli, run)
        (live,) = cli.json("workers")
        assert answer["because"] == "worker gone holds it and is not signed on"
        room, worker_text = answer["details"]
        assert room.startswith("it has been due for 5")
        assert room.endswith("and 1 worker could take it: it waits for room")
        assert worker_text == f"{live['worker_id']} takes 1 runs at once"
        (tmp_path / "let-go").touch()
        cli.await_state(run, "completed")
        cli.await_state(held, "completed")


def test_a_run_that_lost_its_workers_is_not_told_to_correct_its_code(served: CommandLine) -> None:
    run = served.start("fail")
    served.await_state(run, "failed")
    poisoned = '{"kind": "holdfast.PoisonedRun", "message": "the run lost 5 workers"}'
    with psycopg.connect(served.url) as connection:
        connection.execute("update holdfast.runs set error = %s where run_id = %s", [poisoned, run])
        connection.execute(
            "update holdfast.events set details = %s "
            "where event_type = 'WorkflowFailed' and run_id = %s",
            [poisoned, run],
        )
    answer = why(served, run)
    assert "the run lost 5 workers" in answer["because"]
    assert answer["details"] == [
        "its workers died, its code did not fail: a retry continues where it stopped"
    ]
    assert answer["commands"] == [f"holdfast runs retry {run}"]


def test_why_says_that_a_run_which_lost_workers_waits_for_others(
    served: CommandLine, tmp_path: Path
) -> None:
    run = served.start("held", f'"{tmp_path}"')
    until(lambda: list(tmp_path.glob("held-*")) or None, "the step to run")
    with psycopg.connect(served.url) as connection:
        connection.execute(
            "update holdfast.tasks set worker = 'gone', attempts = 3 where run_id = %s", [run]
        )
    answer = why(served, run)
    assert "worker gone holds it and is not signed on" in answer["because"]
    assert "until a worker has no other such run" in answer["details"][0]
    served("runs", "terminate", run)


@pytest.mark.parametrize(
    ("workflow", "input", "because"),
    [("double", "21", "it completed"), ("fail", "null", "it failed")],
)
def test_an_ended_run_says_how_it_ended(
    served: CommandLine, workflow: str, input: str, because: str
) -> None:
    run = served.start(workflow, input)
    until(lambda: served.state(run) in ("completed", "failed") or None)
    answer = why(served, run)
    assert answer["because"].startswith(because)
    assert answer["details"] in (["output: 42"], ["step break_down failed after 1 attempt"])
    if workflow == "fail":  # the error is said once
        assert answer["because"].endswith("ValueError: broken for good")


def ended_badly(served: CommandLine, workflow: str) -> str:
    run = served.start(workflow)
    until(lambda: served.state(run) == "failed" or None)
    return run


def test_a_failed_run_shows_the_frames_of_the_users_code(served: CommandLine) -> None:
    run = ended_badly(served, "fail")
    assert 'raise ValueError("broken for good")' in why(served, run)["traceback"]
    for command in ("why", "show"):
        assert 'raise ValueError("broken for good")' in served("runs", command, run).stdout


def test_a_handled_failure_is_not_named_as_a_cause(served: CommandLine) -> None:
    answer = why(served, ended_badly(served, "fail_later"))
    assert "a bug behind it" in answer["because"]
    assert answer["details"] == []


def test_a_step_that_is_tried_again_shows_the_frames_of_its_last_failure(
    served: CommandLine,
) -> None:
    run = served.start("back_off")
    served.await_state(run, "waiting")
    assert 'raise ValueError("not today")' in why(served, run)["traceback"]


def test_numbers_beyond_floats_are_shown_as_they_are(cli: CommandLine) -> None:
    """Programs that speak SQL may send them, and long whole numbers: all is JSON."""
    long = "9" * 5_000
    with psycopg.connect(cli.url) as connection:
        found = connection.execute(
            "select s.* from holdfast.start_one(gen_random_uuid(), 'sample/double', "
            "p_input => %s::json) as s",
            (f'{{"a": [-1e400, {long}]}}',),
        ).fetchone()
        assert found is not None
        run = next(str(each) for each in found if isinstance(each, UUID))
        connection.execute(
            "select holdfast.signal_runs(array[%s::uuid], '{go}', "
            "array['[1e400, 1.50]'::json], '{one}')",
            (run,),
        )
    answer = why(cli, run)
    assert answer["state"] == "queued"
    for arguments in (["show", run], ["show", run, "--all"]):
        assert cli("runs", *arguments).stdout
    assert "[1e400,1.5]" in cli("runs", "show", run).stdout
