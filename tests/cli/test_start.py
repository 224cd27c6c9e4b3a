"""`holdfast start`."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand
from tests.cli.processes import SAMPLE, call, command, environment, running


def test_the_id_alone_is_on_stdout(cli: CommandLine) -> None:
    run = cli.start("double", "21")
    assert cli.json("runs", "show", run)["run_id"] == run


@pytest.mark.parametrize("argument", ["@{file}", "-"])
def test_input_comes_from_a_file_or_stdin(cli: CommandLine, tmp_path: Path, argument: str) -> None:
    text = '{"id": 7, "boxes": 1e300}'
    file = tmp_path / "order.json"
    file.write_text(text)
    started = cli("start", "pack", argument.format(file=file), stdin=text).stdout.strip()
    assert cli.json("runs", "show", started)["input"] == {"id": 7, "boxes": 1e300}


def test_stdin_is_read_only_for_a_dash(cli: CommandLine) -> None:
    """Else the command would eat the lines of a `while read` loop around it."""
    done = call("--database", cli.url, "start", "double", stdin="21")
    assert cli.json("runs", "show", done.stdout.strip())["input"] is None


def test_without_input_it_is_null(cli: CommandLine) -> None:
    done = call("--database", cli.url, "start", "double")
    assert cli.json("runs", "show", done.stdout.strip())["input"] is None


def test_a_paused_queue_or_workflow_is_named(cli: CommandLine) -> None:
    cli("queues", "pause", "mail", "--reason", "no mail today")
    cli("workflows", "pause", "double")
    said = cli("start", "double", "1", "--queue", "mail").stderr
    assert "queue 'mail' was paused" in said
    assert "(no mail today): the run waits for `holdfast queues resume mail`" in said
    assert "the run waits for `holdfast workflows resume sample/double`" in said
    assert "paused" not in cli("start", "pack", '{"id": 1}').stderr


def test_input_that_is_not_json_is_refused_with_a_hint(cli: CommandLine) -> None:
    result = cli("start", "double", "hello", code=exits.USAGE)
    assert """'"hello"'""" in result.stderr


@pytest.mark.parametrize("option", ["--key", "--database", "--schema"])
def test_a_variable_that_was_never_set_is_refused(cli: CommandLine, option: str) -> None:
    result = cli("start", "double", "1", option, "", code=exits.USAGE)
    assert f"Invalid value for '{option}': it is empty" in result.stderr


def test_an_empty_input_is_not_taken_for_null(cli: CommandLine) -> None:
    assert "the input is not JSON" in cli("start", "double", "", code=exits.USAGE).stderr


@pytest.mark.parametrize("arguments", [["double", '"\udce9"'], ["double", "-"]])
def test_input_that_is_not_utf_8_is_refused(cli: CommandLine, arguments: list[str]) -> None:
    done = subprocess.run(
        command("--database", cli.url, "start", *arguments),
        env=environment({"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"}),
        input=b'"\xe9"',
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exits.USAGE
    assert b"Traceback" not in done.stderr


def test_an_app_checks_the_input_before_a_run_exists(cli: CommandLine) -> None:
    result = cli("start", "pack", '{"id": "x"}', "--app", SAMPLE, code=exits.USAGE)
    assert "input of pack" in result.stderr
    assert cli.json("runs", "list")["runs"] == []


def test_an_app_refuses_an_input_that_its_workflow_does_not_take(cli: CommandLine) -> None:
    refused = ("start", "sleep_long", "3", "--app", SAMPLE)
    assert "sleep_long takes no input" in cli(*refused, code=exits.USAGE).stderr
    assert cli.json("runs", "list")["runs"] == []
    cli("start", "sleep_long", "--app", SAMPLE)


def test_without_an_app_an_input_that_does_not_fit_fails_its_run(served: CommandLine) -> None:
    ended = served("start", "hash_seed", "3", "--wait", code=exits.FAILED)
    assert "hash_seed takes no input" in ended.stderr


def test_an_app_refuses_a_workflow_that_it_does_not_have(cli: CommandLine) -> None:
    result = cli("start", "unpack", "1", "--app", SAMPLE, code=exits.USAGE)
    assert "app sample has no workflow unpack; it has speak@1, double@1, pack@1" in result.stderr


def test_a_used_key_does_what_the_start_says(cli: CommandLine) -> None:
    run = cli.start("double", "1", "--key", "again")
    cli("runs", "terminate", run)
    started = ("double", "1", "--key", "again", "--if-ended")
    assert "has ended" in cli("start", *started, "refuse", code=exits.FAILED).stderr
    assert cli.start(*started, "return") == run
    assert cli.start(*started, "start") != run


def test_a_key_finds_the_same_run(cli: CommandLine) -> None:
    first = cli("start", "double", "1", "--key", "a")
    second = cli("start", "double", "2", "--key", "a")
    assert second.stdout == first.stdout
    assert "started before" in second.stderr
    assert cli.json("start", "double", "3", "--key", "a")["created"] is False


def test_options_reach_the_run(cli: CommandLine) -> None:
    options = ["--priority", "0", "--queue", "fast", "--workflow-version", "3"]
    options += ["--tag", "a", "--tag", "b", "--timeout", "1h", "--delay", "30m"]
    run = cli.json("runs", "show", cli.start("double", "1", *options))
    assert (run["priority"], run["queue"], run["version"]) == (0, "fast", 3)
    assert (run["tags"], run["state"]) == (["a", "b"], "waiting")
    assert run["deadline_at"] is not None
    due, created = (
        datetime.fromisoformat(each) for each in (run["wait"]["visible_at"], run["created_at"])
    )
    assert created.utcoffset() == timedelta(0)
    assert due - created == timedelta(minutes=30)


def test_at_takes_a_moment_in_a_time_zone(cli: CommandLine) -> None:
    asked = cli("start", "double", "1", "--at", "2100-01-01T00:00:00+00:00")
    shown = cli.json("runs", "show", asked.stdout.strip())
    assert shown["wait"]["visible_at"] == "2100-01-01T00:00:00Z"
    assert "time zone" not in asked.stderr


def test_at_without_a_time_zone_says_which_moment_it_means(cli: CommandLine) -> None:
    local = datetime(2100, 1, 1, 9).astimezone()
    asked = cli("start", "double", "1", "--at", "2100-01-01T09:00")
    assert f"2100-01-01T09:00 has no time zone: read as {local.isoformat()}" in asked.stderr
    started = cli.json("start", "double", "1", "--at", "2100-01-01T09:00")
    assert datetime.fromisoformat(started["start_at"]) == local
    assert started["wait"]["visible_at"] == started["start_at"]


def test_wait_writes_the_output_and_shows_what_happens(served: CommandLine) -> None:
    result = served("start", "double", "21", "--wait")
    assert result.stdout == "42\n"
    assert "WorkflowCompleted" in result.stderr


def test_wait_with_json_writes_one_object(served: CommandLine) -> None:
    run = served.json("start", "double", "21", "--wait")
    assert (run["status"], run["output"]) == ("completed", 42)


def test_a_failed_run_is_code_1(served: CommandLine) -> None:
    result = served("start", "fail", "null", "--wait", code=exits.FAILED)
    assert result.stdout == ""
    assert "broken for good" in result.stderr


def test_a_start_without_a_live_worker_warns(cli: CommandLine) -> None:
    result = cli("start", "sample/duoble", "1")
    assert "no live worker serves sample/duoble@1 on queue 'default'" in result.stderr
    assert "(did you mean sample/double?)" in result.stderr
    assert result.stdout.count("\n") == 1


def test_a_name_of_an_unknown_app_is_refused(cli: CommandLine) -> None:
    refused = cli("start", "duoble", "1", code=exits.USAGE).stderr
    assert "no app with a workflow 'duoble' has ever had a worker on this database" in refused
    assert "APP/duoble" in refused
    for words in (["workflows", "pause", "duoble"], ["runs", "signal", "duoble/k", "go"]):
        refused = cli(*words, code=exits.USAGE).stderr
        assert "(did you mean sample/double?)" in refused


def test_a_name_of_two_apps_is_not_guessed(cli: CommandLine, hand: Hand) -> None:
    hand.known("shop")
    refused = cli("start", "double", "1", code=exits.USAGE).stderr
    assert "name the app as well, as in sample/double or shop/double" in refused
    run = cli.start("shop/double", "1", "--key", "a/7")
    assert cli.json("runs", "show", "shop/double/a/7")["run_id"] == run
    assert cli.json("runs", "list", "--workflow", "shop/double")["runs"][0]["app"] == "shop"


def test_waiting_without_a_worker_says_which_one_is_missing(cli: CommandLine) -> None:
    result = cli("start", "double", "1", "--wait-timeout", "50ms", code=exits.TIMED_OUT)
    assert "no live worker serves sample/double@1 on queue 'default'" in result.stderr
    other = cli("start", "double", "1", "--queue", "gpu").stderr
    assert "worker MODULE:APP --queue gpu` starts one" in other


def test_ctrl_c_while_waiting_is_130_and_the_run_continues(
    cli: CommandLine, tmp_path: Path
) -> None:
    options = ["start", "double", "1", "--wait"]
    with running(tmp_path / "log", "--database", cli.url, *options) as process:
        process.await_text("WorkflowStarted")
        process.send(signal.SIGINT)
        assert process.ended() == exits.INTERRUPTED
        assert "the run continues" in process.text()
        assert "Traceback" not in process.text()
    assert [run["state"] for run in cli.json("runs", "list")["runs"]] == ["queued"]


def test_on_a_terminal_the_timeline_grows(served: CommandLine) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command("--database", served.url, "start", "fail", "null", "--wait"),
        env=environment({"TERM": "xterm", "COLUMNS": "120"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert done.returncode == exits.FAILED
    assert "break_down" in shown
    assert "━" in shown
