"""Pausing, resuming, retrying and forking runs; filters; queues and workflows; activities."""

from __future__ import annotations

import json
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.cli import exits
from holdfast.client import bulk
from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres import PostgresStore
from holdfast.types import Finish
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand, activity, child

TERMINATE = PostgresStore.terminate_runs


def states(cli: CommandLine, *filters: str) -> list[str]:
    return sorted(run["state"] for run in cli.json("runs", "list", *filters)["runs"])


def test_a_run_is_paused_and_resumed(cli: CommandLine) -> None:
    run = cli.start("double", "1")
    assert cli("runs", "pause", run, "--reason", "lunch").stdout == f"{run}: paused\n"
    assert cli.state(run) == "paused"
    assert "paused before" in cli("runs", "pause", run, code=exits.FAILED).stdout
    assert cli.json("runs", "resume", run) == [{"run_id": run, "changed": True}]
    assert "neither paused nor stuck" in cli("runs", "resume", run, code=exits.FAILED).stdout
    cli("runs", "terminate", run)
    assert "has ended (terminated)" in cli("runs", "pause", run, code=exits.FAILED).stdout


def test_a_run_is_rescheduled(cli: CommandLine) -> None:
    run = cli.start("double", "1", "--delay", "1h")
    moved = ("runs", "reschedule", run, "--to-queue", "night")
    assert cli(*moved, "--timeout", "2h", "--reason", "slow").stdout == f"{run}: rescheduled\n"
    assert cli.json("runs", "list")["runs"][0]["queue"] == "night"
    assert "was so before" in cli(*moved, code=exits.FAILED).stdout
    assert cli("runs", "reschedule", "--all", "--delay", "0").stdout == "1 run rescheduled\n"
    assert "say what to change" in cli("runs", "reschedule", run, code=exits.USAGE).stderr
    both = ("--delay", "1h", "--start-at", "2h")
    assert "not both" in cli("runs", "reschedule", run, *both, code=exits.USAGE).stderr


def fails_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the database be away from so many calls of `terminate_runs` on."""
    calls = count(1)

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        if next(calls) >= number:
            raise DatabaseUnavailable("it is away")
        return await TERMINATE(self, *args, **options)

    monkeypatch.setattr(PostgresStore, "terminate_runs", call)


def test_what_was_done_before_an_error_is_said(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of named runs which, of a filter how many: who repeats the command knows what it did."""
    runs = [cli.start("double", str(number)) for number in range(3)]
    fails_from(monkeypatch, 3)
    failed = cli("runs", "terminate", *runs, code=exits.DATABASE)
    assert failed.stderr.startswith(f"{runs[0]}: terminated\n{runs[1]}: terminated\n")
    assert failed.stderr.count(runs[2]) == 0
    monkeypatch.setattr(bulk, "PAGE", 1)
    for number in range(2):
        cli.start("double", str(number))
    fails_from(monkeypatch, 2)
    failed = cli("runs", "terminate", "--all", code=exits.DATABASE)
    assert failed.stderr.startswith("at least 1 run terminated; the same command does the rest\n")
    failed = cli("runs", "terminate", "--all", code=exits.DATABASE)
    assert "the same command" not in failed.stderr  # nothing was done
    failed = cli("runs", "terminate", "--all", "--json", code=exits.DATABASE)
    assert list(json.loads(failed.stderr)) == ["error"]


def test_a_named_run_that_is_deleted_meanwhile_does_not_hide_the_others(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [cli.start("double", str(number)) for number in range(3)]

    async def call(self: Any, run_ids: Any, **options: Any) -> Any:
        gone = [uuid4() if str(run_id) == runs[1] else run_id for run_id in run_ids]
        return await TERMINATE(self, gone, **options)

    monkeypatch.setattr(PostgresStore, "terminate_runs", call)
    said = cli("runs", "terminate", *runs, code=exits.FAILED).stdout.splitlines()
    assert said == [
        f"{runs[0]}: terminated",
        f"{runs[1]}: it was deleted meanwhile",
        f"{runs[2]}: terminated",
    ]


def test_all_runs_of_a_filter_are_changed(cli: CommandLine) -> None:
    """S10."""
    for number in range(3):
        cli.start("double", str(number), "--tag", "trial")
    kept = cli.start("double", "9")
    dry = cli("runs", "cancel", "--tag", "trial", "--dry-run")
    assert dry.stdout == "3 runs would be asked to end; nothing was changed\n"
    assert states(cli) == ["queued"] * 4
    assert cli("runs", "pause", "--tag", "trial").stdout == "3 runs paused\n"
    again = cli("runs", "pause", "--workflow", "double")
    assert again.stdout == "1 run paused; 3 left as they were\n"
    assert cli.json("runs", "resume", "--all") == {
        "matched": 4,
        "changed": 4,
        "unchanged": 0,
        "left_to_parents": 0,
        "dry_run": False,
    }
    assert cli("runs", "terminate", "--tag", "trial").stdout == "3 runs terminated\n"
    assert cli.state(kept) == "queued"


@pytest.mark.parametrize("arguments", [(), ("some-run", "--all"), ("--all", "--tag", "a")])
def test_runs_are_named_or_filtered_but_not_both(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    run = cli.start("double", "1", "--tag", "a")
    assert "one of these" in cli("runs", "terminate", *arguments, code=exits.USAGE).stderr
    assert cli.state(run) == "queued"


def test_a_run_that_has_ended_is_reported_once_and_not_changed(
    cli: CommandLine, hand: Hand
) -> None:
    run = cli.start("double", "1")
    hand.fail(run)
    shown = cli("runs", "pause", run, code=exits.FAILED).stdout
    assert shown == f"{run}: it has ended (failed) and cannot be changed\n"


def test_a_run_is_not_retried_after_its_key_has_started_again(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1", "--key", "k")
    hand.fail(run)
    other = cli.start("double", "2", "--key", "k", "--if-ended", "start")
    again = cli("runs", "retry", run, code=exits.FAILED).stdout
    assert f"a run follows it already: {other}, which is running" in again


def test_a_failed_run_is_retried_once(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    assert "only a run that failed" in cli("runs", "retry", run, code=exits.FAILED).stdout
    hand.fail(run)
    (answer,) = cli.json("runs", "retry", run)
    assert cli.state(answer["new_run_id"]) == "queued"
    again = cli("runs", "retry", run, code=exits.FAILED).stdout
    assert f"a run follows it already: {answer['new_run_id']}, which is running" in again
    explained = cli.json("runs", "why", run)
    assert f"retried as run {answer['new_run_id']}, which is queued" in explained["details"][-1]
    assert explained["commands"] == [f"holdfast runs why {answer['new_run_id']}"]
    dry = cli("runs", "retry", "--all", "--dry-run").stdout
    assert dry == "0 runs would be retried; 1 would stay as they are; nothing was changed\n"
    assert cli("runs", "retry", "--all").stdout == "0 runs retried; 1 left as they were\n"


def test_children_are_left_out_of_a_retry_by_filter(cli: CommandLine, hand: Hand) -> None:
    run, other = cli.start("double", "1"), str(uuid4())
    hand.turn(run, child("double", UUID(other)))
    hand.fail(other)
    hand.fail(run)
    left = "\n1 run left out, because other runs started them and were told how they ended"
    dry = cli("runs", "retry", "--since", "2h", "--dry-run").stdout
    assert dry.startswith("1 run would be retried; 1 would stay as they are; nothing was changed")
    retried = cli("runs", "retry", "--since", "2h").stdout
    assert retried.startswith(f"1 run retried; 1 left as they were{left}")
    assert left in dry
    assert cli.json("runs", "retry", "--all")["left_to_parents"] == 1
    assert cli("runs", "retry", "--parent", run).stdout == "1 run retried\n"


def test_a_fork_continues_from_a_step_with_other_values(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    done = {"args": 1, "result": 1}
    hand.turn(run, ("StepCompleted", "reserve", done), ("StepCompleted", "charge", done))
    changes = ("--step", "charge", "--input", "5", "--result", 'reserve="shelf 2"')
    fork = cli("runs", "fork", run, *changes).stdout.strip()
    shown = cli.json("runs", "show", fork)
    assert shown["input"] == 5
    assert [event["key"] for event in shown["log"] if event["key"]] == ["reserve"]
    assert json.loads(json.dumps(shown["log"][1]["details"]))["result"] == "shelf 2"
    assert (
        "there are reserve, charge"
        in cli("runs", "fork", run, "--step", "x", code=exits.FAILED).stderr
    )


def test_queues_are_paused_and_listed(cli: CommandLine, hand: Hand) -> None:
    hand.sign_on(["double@1", "resize@0"], ["default", "mail"])
    assert cli("queues", "pause", "mail", "--reason", "no mail").stdout == "queue mail: paused\n"
    cli("queues", "pause", "mail", code=exits.FAILED)
    cli.start("double", "1", "--queue", "gpu")
    shown = {each["name"]: each for each in cli.json("queues", "list")}
    assert shown.keys() == {"default", "gpu", "mail"}
    assert (shown["mail"]["paused"], shown["mail"]["reason"]) == (True, "no mail")
    assert (shown["gpu"]["workers"], shown["gpu"]["unserved"]) == (0, 1)
    assert "paused" in cli("queues", "list").stdout
    assert cli.json("queues", "resume", "mail") == [{"queue": "mail", "changed": True}]


def test_workflows_are_paused_and_listed_with_their_versions(cli: CommandLine, hand: Hand) -> None:
    """T9."""
    hand.sign_on(["double@1", "double@2", "resize@0"])
    assert cli("workflows", "pause", "pack").stdout == "workflow sample/pack: paused\n"
    shown = {each["name"]: each for each in cli.json("workflows", "list")}
    assert shown.keys() == {"sample/double", "sample/pack"}
    assert (shown["sample/double"]["versions"], shown["sample/double"]["workers"]) == ([1, 2], 1)
    long_name = "n" * 120  # as long as the line: it continues in the next one
    hand.sign_on(["double@1", "double@2", f"{long_name}@1"])
    lines = cli("workflows", "list").stdout.splitlines()
    assert any("paused" in line and "pack" in line for line in lines)
    assert "1, 2" in "".join(lines)
    cli("workflows", "resume", "pack", "double", code=exits.FAILED)


def test_pausing_an_unknown_name_warns(cli: CommandLine, hand: Hand) -> None:
    hand.sign_on(["double@1"])
    cli.start("shop/checkout", "1", "--queue", "gpu")
    shown = cli("queues", "pause", "defualt")
    assert shown.stdout == "queue defualt: paused\n"
    assert "nobody knows queue defualt" in shown.stderr
    assert "did you mean default?" in shown.stderr
    assert "did you mean shop/checkout?" in cli("workflows", "pause", "shop/chekout").stderr
    assert cli("queues", "pause", "default", "gpu").stderr == ""
    assert cli("workflows", "pause", "double", "shop/checkout").stderr == ""
    paused = cli.json("queues", "pause", "gpo", "gpu", code=exits.FAILED)
    assert paused == [
        {"queue": "gpo", "changed": True, "known": False, "similar": ["gpu"]},
        {"queue": "gpu", "changed": False, "known": True, "similar": []},
    ]


def test_an_activity_is_completed_with_its_token(cli: CommandLine, hand: Hand) -> None:
    """S7. Completion from outside by token."""
    run = cli.start("double", "1")
    hand.turn(run, activity("scan"))
    token = hand.lease_activity("scan")
    assert cli("activities", "complete", token, '{"pages": 2}').stdout == "completed\n"
    (event,) = [e for e in cli.json("runs", "show", run)["log"] if e["type"] == "ActivityCompleted"]
    assert event["details"]["result"] == {"pages": 2}
    assert (
        "does not belong to an open attempt"
        in cli("activities", "complete", token, code=exits.NOT_FOUND).stderr
    )


@pytest.mark.parametrize("token", ["nonsense", "nonsense:1:scan", ":::"])
def test_a_text_that_is_not_a_token_is_refused_with_an_example(
    cli: CommandLine, token: str
) -> None:
    for command in ("complete", "fail"):
        refused = cli("activities", command, token, "1", code=exits.NOT_FOUND).stderr
        assert "a token is RUN_ID:LEASE_NO:@BEGAN/KEY" in refused


def test_an_activity_that_fails_is_tried_again_unless_it_is_final(
    cli: CommandLine, hand: Hand
) -> None:
    """S7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("scan"))
    assert "tried again" in cli("activities", "fail", hand.lease_activity("scan"), "dirty").stdout
    final = ("fail", hand.lease_activity("scan"), "broken", "--final")
    assert cli("activities", *final).stdout == "failed; it is not tried again\n"
    types = [event["type"] for event in cli.json("runs", "show", run)["log"]]
    assert types[-2:] == ["ActivityRetryScheduled", "ActivityFailed"]


def test_json_says_why_a_run_was_not_changed(cli: CommandLine) -> None:
    """As the text does."""
    run = cli.start("double", "1")

    def refused(*words: str) -> str:
        told = cli.json("runs", words[0], run, *words[1:], code=exits.FAILED)
        [[reason]] = [[each.pop("reason") for each in told]]
        assert told == [{"run_id": run, "changed": False}]
        assert cli("runs", words[0], run, *words[1:], code=exits.FAILED).output == (
            f"{run}: {reason}\n"
        )
        return str(reason)

    assert refused("resume") == "it was neither paused nor stuck"
    assert refused("retry").startswith("only a run that failed")
    cli("runs", "terminate", run)
    assert refused("cancel") == "it had ended before"
    assert refused("pause") == "it has ended (terminated) and cannot be changed"
    assert "ended" in refused("reschedule", "--no-deadline")


def test_an_update_of_a_run_that_ended_is_refused(cli: CommandLine) -> None:
    run = cli.start("double", "1")
    late = ("runs", "update", run, "add", "1", "--timeout", "10ms")
    assert "had not answered update add" in cli(*late, code=exits.TIMED_OUT).stderr
    cli("runs", "terminate", run)
    assert "has ended" in cli("runs", "update", run, "add", code=exits.FAILED).stderr


def test_signals_and_waits_follow_a_run_that_continued(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    newest = hand.continue_as_new(run)
    cli("runs", "signal", run, "go")
    assert [e["type"] for e in cli.json("runs", "show", newest)["log"]][-1] == "SignalReceived"
    cli("runs", "terminate", run)
    assert cli.json("runs", "wait", run, code=exits.FAILED)["run_id"] == newest


def test_a_dry_run_of_a_retry_names_what_it_repeats(cli: CommandLine, hand: Hand) -> None:
    """A2, C20. Also of a run whose code had handled the failure."""
    run = cli.start("double", "1")
    done, error = (
        {"args": 1, "result": 1, "name": "s", "started_at": 0},
        {"kind": "builtins.ValueError", "message": "no"},
    )
    hand.turn(
        run,
        ("StepCompleted", "reserve", done),
        (
            "StepFailed",
            "charge",
            {"name": "s", "args": 1, "error": error, "started_at": 0, "attempt": 1},
        ),
        ("WorkflowFailed", None, {"calls": [], "seen": 0, "after": [], "handling": []}),
        then=Finish("failed", error=json.dumps(error)),
    )
    dry = cli("runs", "retry", run, "--dry-run").stdout
    assert dry == f"{run}: is failed: nothing done\n  a retry keeps: reserve, charge\n"
    [answer] = cli.json("runs", "retry", run, "--failed-steps", "--dry-run")
    plan = {"kept": ["reserve"], "failed": ["charge"], "after": [], "cancel": False}
    assert answer == {"run_id": run, "changed": False, "plan": plan}
    dry = cli("runs", "retry", run, "--failed-steps", "--dry-run").stdout
    assert "\n  a retry makes again, because it failed: charge\n" in dry
    assert "\n  a call that is made again has a new idempotency key\n" in dry
    assert f"holdfast runs retry {run} --failed-steps" in cli("runs", "why", run).stdout
    refused = cli("runs", "retry", "--all", "--failed-steps", code=exits.USAGE)
    assert "--failed-steps is for runs that are named" in refused.stderr
    (answer,) = cli.json("runs", "retry", run, "--failed-steps")
    log = cli.json("runs", "show", answer["new_run_id"])["log"]
    assert [event["key"] for event in log if event["key"]] == ["reserve"]


def test_show_says_why_a_run_is_stuck_with_the_traceback(cli: CommandLine, hand: Hand) -> None:
    """A4."""
    run = cli.start("double", "1")
    why = "the code raised KeyError: 'oven'\nTraceback (most recent call last):\n  in bake"
    hand.get_stuck(run, why)
    shown = cli("runs", "show", run).stdout
    [row] = [each for each in shown.splitlines() if each.split()[:1] == ["stuck"]]
    assert "the code raised KeyError: 'oven'" in row
    assert "in bake" in shown.partition(row)[2]
    assert cli.json("runs", "show", run)["wait"]["stuck"] == why
