"""Runs of flows on the command line."""

from __future__ import annotations

import os
import pty
import subprocess

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import command, environment


def test_show_draws_the_steps_of_a_run(served: CommandLine) -> None:
    run = served.start("trip", "[1, 2, 3]", "--wait")
    assert run == '{"total":12}'
    [shown] = served.json("runs", "list", "--workflow", "trip", "--limit", "1")["runs"]
    assert shown["kind"] == "flow"
    lines = served("runs", "show", shown["run_id"]).stdout.splitlines()
    assert lines[1].split() == ["flow", "sample/trip@1"]
    steps = [" ".join(line.split()) for line in lines]
    assert any(line.startswith("1 ✓ site completed") for line in steps)
    assert any(
        line.startswith("2 ✓ page[] completed ██████████ 3/3") and "← each of site" in line
        for line in steps
    )
    assert any("↷ rare skipped" in line and "condition was not met" in line for line in steps)
    assert any(line.startswith("3 ✓ total completed") for line in steps)


def test_show_answers_with_the_steps_in_json(served: CommandLine) -> None:
    served("start", "trip", "[1]", "--key", "json", "--wait")
    steps = {step["step"]: step for step in served.json("runs", "show", "trip/json")["steps"]}
    assert list(steps) == ["site", "page", "rare", "total"]
    page, rare = steps["page"], steps["rare"]
    assert (page["state"], page["kind"], page["deps"]) == ("completed", "map", ["site"])
    assert (page["tasks"], page["done"], page["output"]) == (1, 1, [2])
    assert page["started_at"] <= page["ended_at"]
    assert (rare["state"], rare["skip_reason"]) == ("skipped", "condition_unmet")


def test_a_run_of_a_workflow_has_no_steps_of_a_flow(served: CommandLine) -> None:
    served("start", "double", "1", "--key", "plain", "--wait")
    shown = served.json("runs", "show", "double/plain")
    assert "steps" not in shown
    assert shown["kind"] == "workflow"


def test_a_failed_step_shows_its_error_and_its_attempts(served: CommandLine) -> None:
    served("start", "trip", "[1, -1]", "--key", "bad", "--wait", code=exits.FAILED)
    shown = " ".join(served("runs", "show", "trip/bad").stdout.split())
    assert "✗ page[] failed" in shown
    assert "ValueError: no page -1" in shown
    assert "· total not begun" in shown
    said = served("runs", "why", "trip/bad").stdout
    assert "step page failed after 2 attempts: ValueError: no page -1" in said
    assert "holdfast runs retry" in said


def test_a_wait_without_a_terminal_writes_a_line_for_each_change(served: CommandLine) -> None:
    said = served("start", "trip", "[1, 2]", "--wait")
    assert said.stdout.strip() == '{"total":6}'
    lines = [line.split()[2:] for line in said.stderr.splitlines() if line.startswith("+")]
    words = [" ".join(line) for line in lines]
    assert any("site completed after" in line for line in words)
    assert any("page[] completed" in line and "2/2" in line for line in words)
    assert any("rare skipped its condition was not met" in line for line in words)
    assert any("total completed after" in line for line in words)


def test_a_wait_on_a_terminal_draws_the_steps(served: CommandLine) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command("--database", served.url, "start", "trip", "[5]", "--wait"),
        env=environment({"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}),
        stderr=theirs,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    assert done.stdout.strip() == b'{"total":10}'
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "✓" in drawn
    assert "page[]" in drawn
    assert "← each of site" in drawn


def test_why_says_that_no_worker_serves_a_step(cli: CommandLine, served: CommandLine) -> None:
    served("start", "trip", "[1]", "--queue", "nobody", "--key", "lost")
    said = served("runs", "why", "trip/lost").stdout
    assert "step site has been due for" in said
    assert "no live worker serves sample/trip@1 on queue 'nobody'" in said
    assert "holdfast worker MODULE:APP --queue nobody" in said


def test_a_completed_run_is_retried_from_a_step(served: CommandLine) -> None:
    served("start", "trip", "[4]", "--key", "done", "--wait")
    refused = served("runs", "retry", "trip/done", code=exits.FAILED).stdout
    assert "give a step from which it is to run again" in refused
    [answer] = served.json("runs", "retry", "trip/done", "--from-step", "total")
    served.await_state(answer["new_run_id"], "completed")
    shown = served.json("runs", "show", answer["new_run_id"])
    assert shown["output"] == {"total": 8}
    assert [entry["key"] for entry in shown["log"] if entry["type"] == "FlowStepCompleted"][-1] == (
        "total"
    )


def test_a_step_is_given_for_named_runs_only(cli: CommandLine) -> None:
    said = cli("runs", "retry", "--workflow", "trip", "--from-step", "total", code=exits.USAGE)
    assert "--from-step is for runs that are named" in said.stderr
