"""`holdfast runs why` and `runs show`: what a run waits for beyond its own worker."""

from __future__ import annotations

import shlex
from uuid import UUID

from click.testing import CliRunner

from holdfast.cli import exits
from holdfast.cli.root import holdfast
from holdfast.types import Suspend
from holdfast.values.ids import uuid7
from tests.cli.conftest import CommandLine
from tests.cli.hand import Entry, Hand, activity, approval, child
from tests.cli.test_why import why


def test_an_activity_without_a_live_worker_names_the_worker_to_start(
    cli: CommandLine, hand: Hand
) -> None:
    """B7. S7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("resize", queue="gpu"))
    answer = why(cli, run)
    assert answer["because"] == "it waits for 1 activity"
    (detail,) = answer["details"]
    assert detail == (
        "activity resize: due for a worker of queue 'gpu'; "
        "no live worker of that queue has sample/resize"
    )
    assert answer["commands"] == ["holdfast worker MODULE:APP --queue gpu"]
    hand.sign_on(["resize@0"], ["gpu"])
    assert why(cli, run)["details"][0].endswith("; 1 worker could take it")


def test_a_mistyped_activity_or_queue_names_what_is_served(cli: CommandLine, hand: Hand) -> None:
    """B7."""
    run = cli.start("double", "1")
    hand.sign_on(["resize@0", "scan@0", "pack@1"], ["gpu"])
    hand.turn(run, activity("rezise", queue="gpu"), activity("scan", queue="gup"))
    mistyped, elsewhere = why(cli, run)["details"]
    assert mistyped.endswith(
        "has sample/rezise; that queue's workers have sample/resize, sample/scan"
    )
    assert elsewhere.endswith(
        "no live worker of that queue has sample/scan; workers that have it serve 'gpu'"
    )


def test_an_activity_under_way_names_its_worker_and_what_it_said(
    cli: CommandLine, hand: Hand
) -> None:
    """S7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("resize"))
    hand.fail_attempt(hand.lease_activity("resize"))
    hand.say(hand.lease_activity("resize"), '{"page":3}')
    (detail,) = why(cli, run)["details"]
    assert detail == 'activity resize: attempt 2 runs on worker hand; it reported {"page":3}'


def test_an_activity_between_attempts_shows_the_error_and_the_next_try(
    cli: CommandLine, hand: Hand
) -> None:
    """S7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("resize", base_seconds=3600))
    hand.fail_attempt(hand.lease_activity("resize"))
    (detail,) = why(cli, run)["details"]
    assert detail.startswith("activity resize: is tried again in ")
    assert detail.endswith("; attempt 1 failed: ValueError: no luck")


def test_an_activity_that_is_completed_from_outside_says_so(cli: CommandLine, hand: Hand) -> None:
    """S7."""
    run = cli.start("double", "1")
    hand.turn(run, activity("scan"))
    hand.defer(hand.lease_activity("scan"))
    (detail,) = why(cli, run)["details"]
    assert detail == "activity scan: waits to be completed from outside, with its token"


def test_an_attempt_that_is_completed_from_outside_says_how_long_it_may_take(
    cli: CommandLine, hand: Hand
) -> None:
    """S7. Also after one that failed: this is not a pause before a retry."""
    run = cli.start("double", "1")
    hand.turn(run, activity("scan", start_to_close=3600))
    hand.fail_attempt(hand.lease_activity("scan"))
    hand.defer(hand.lease_activity("scan"))
    (detail,) = why(cli, run)["details"]
    outside = "activity scan: waits to be completed from outside, with its token; "
    assert detail.startswith(f"{outside}its attempt ends in ")


def test_an_approval_gives_the_command_that_decides(cli: CommandLine, hand: Hand) -> None:
    """T4."""
    run = cli.start("double", "1")
    hand.turn(run, approval("refund", "Refund order 7?"))
    answer = why(cli, run)
    assert answer["because"] == "it waits for 1 decision"
    assert "'Refund order 7?', asked" in answer["details"][0]
    (command,) = answer["commands"]
    arguments = ["--database", cli.url, *shlex.split(command)[1:]]
    assert CliRunner().invoke(holdfast, arguments).exit_code == exits.OK
    assert cli.json("approvals", "list") == []


def test_a_child_is_named_with_its_state(cli: CommandLine, hand: Hand) -> None:
    run, child_id = cli.start("double", "1"), uuid7()
    hand.turn(run, child("pack", child_id))
    answer = why(cli, run)
    assert answer["because"] == "it waits for 1 child"
    assert answer["details"] == [f"child pack: run {child_id} of sample/pack is queued"]
    assert answer["commands"] == [f"holdfast runs why {child_id}"]


def test_other_things_that_are_awaited_are_named_too(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    awaiting = Suspend(awaiting=(":end", "packed", "update:add"))
    hand.turn(run, activity("a"), activity("b"), approval("c", "Go?"), then=awaiting)
    answer = why(cli, run)
    assert answer["because"] == (
        "it waits for 2 activities and 1 decision, or signal 'packed', or update 'add'"
    )
    assert f"holdfast runs update {run} add '…'" in answer["commands"]


def test_a_paused_run_gives_the_command_that_resumes_it(cli: CommandLine) -> None:
    run = cli.start("double", "1")
    cli("runs", "pause", run, "--reason", "lunch")
    answer = why(cli, run)
    assert answer["because"].startswith("it was paused ")
    assert answer["because"].endswith(" ago (lunch)")
    (command,) = answer["commands"]
    cli(*shlex.split(command)[1:])
    assert cli.state(run) == "queued"


def test_a_paused_run_says_that_its_children_continue(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    hand.turn(run, child("pack", uuid7()))
    cli("runs", "pause", run)
    details = why(cli, run)["details"]
    assert any("1 child run of it not held back: a pause reaches no" in each for each in details)


def test_a_run_of_a_paused_queue_or_workflow_names_the_pause(cli: CommandLine) -> None:
    run = cli.start("double", "1", "--queue", "mail")
    cli("workflows", "pause", "double", "--reason", "wrong prices")
    assert "its workflow 'sample/double' was paused" in why(cli, run)["because"]
    assert "(wrong prices)" in why(cli, run)["because"]
    cli("queues", "pause", "mail")
    answer = why(cli, run)
    assert "its queue 'mail' was paused" in answer["because"]
    assert answer["commands"] == ["holdfast queues resume mail"]


def test_a_run_that_continued_names_the_next(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    newest = hand.continue_as_new(run)
    answer = why(cli, run)
    assert answer["because"].startswith(f"it continued as run {newest}")
    assert answer["commands"] == [f"holdfast runs why {newest}"]


def test_show_draws_the_tree_of_children(cli: CommandLine, hand: Hand) -> None:
    """S17."""
    run, child_id, grandchild_id = cli.start("double", "1"), uuid7(), uuid7()
    hand.turn(run, child("pack", child_id, key="pack#2"))
    hand.turn(str(child_id), child("sleep_long", grandchild_id))
    shown = cli.json("runs", "show", run)
    (below,) = shown["children"]
    assert (below["run_id"], below["name"], below["state"]) == (str(child_id), "pack", "waiting")
    assert [each["run_id"] for each in below["children"]] == [str(grandchild_id)]
    drawn = cli("runs", "show", run).stdout
    assert "↳ pack#2 " in drawn
    assert f"waiting pack#2 sample/pack@1 {child_id}" in drawn
    assert f"sleep_long sample/sleep_long@1 {grandchild_id}" in drawn
    assert f"{run} (pack#2)" in cli("runs", "show", str(child_id)).stdout


def test_messages_that_nothing_waits_for_are_named(cli: CommandLine, hand: Hand) -> None:
    """The sender waits, or has mistyped a name, and the run alone does not show it."""
    run = cli.start("pack", '{"id": 7}')
    ready: Entry = ("ValueSet", "state", {"value": "ready"})
    hand.turn(run, ready, then=Suspend(awaiting=("packed", "update:add")))
    cli("runs", "signal", run, "paked", "1")
    cli("runs", "signal", run, "paked", "2")
    cli("runs", "update", run, "ad", "1", "--timeout", "0.1", code=exits.TIMED_OUT)
    signals, update = why(cli, run)["details"]
    assert signals.startswith("2 signals 'paked' came, the last ")
    assert signals.endswith(" ago: nothing waits for this name now; an unread signal is kept")
    assert update.startswith("update 'ad' came ")
    assert update.endswith(" ago: no handler serves it now: it waits until one does")


def test_messages_that_the_code_may_have_taken_are_not_named(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("pack", '{"id": 7}')
    cli("runs", "signal", run, "early", "1")
    hand.turn(run, activity("resize"), then=Suspend(awaiting=("packed",)))
    (detail,) = why(cli, run)["details"]
    assert detail.startswith("activity resize")


def test_children_beyond_the_first_are_counted(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    children = [child("pack", uuid7(), key=f"pack#{number}") for number in range(25)]
    hand.turn(run, *children)
    assert f"… 5 more: holdfast runs list --parent {run}" in cli("runs", "show", run).stdout
    listed = cli.json("runs", "list", "--parent", run)["runs"]
    assert len({UUID(each["run_id"]) for each in listed}) == 25


def test_a_parent_is_named_as_other_runs_are(cli: CommandLine, hand: Hand) -> None:
    run, child_id = cli.start("double", "1", "--key", "k"), uuid7()
    hand.turn(run, child("pack", child_id))
    for reference in (run, run[:13], run[-8:], "double/k"):
        listed = cli.json("runs", "list", "--parent", reference)["runs"]
        assert [each["run_id"] for each in listed] == [str(child_id)]
    cli("runs", "list", "--parent", "double/other", code=exits.NOT_FOUND)
    assert cli.json("runs", "pause", "--parent", "double/k")["changed"] == 1
    assert cli.state(str(child_id)) == "paused"


def test_show_has_activities_and_approvals_in_the_timeline(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    hand.turn(run, activity("resize"), approval("refund", "Refund order 7?"))
    shown = cli("runs", "show", run).stdout
    assert "⇢ resize" in shown
    assert "☐ Refund order 7?" in shown
