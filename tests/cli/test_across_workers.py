"""One run with an activity, a child, updates and a decision, all from the command line."""

from __future__ import annotations

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import until


def test_a_refund_is_weighed_updated_decided_and_shown(served: CommandLine) -> None:
    """S7. T4."""
    run = served.start("refund", "8")
    until(lambda: served.json("approvals", "list", run) or None, "the run to ask for a decision")
    assert served("runs", "update", run, "add", '"hammer"').stdout == "1\n"
    refused = served("runs", "update", run, "add", '"lead"', code=exits.FAILED)
    assert "ValueError: no lead" in refused.stderr
    misspelt = ("runs", "update", run, "ad", "--timeout", "4s")
    assert "update 'ad' came" in served(*misspelt, code=exits.TIMED_OUT).stderr
    waits = "it waits for 1 decision, or update 'add'"  # once the turn that answered has ended
    until(lambda: served.json("runs", "why", run)["because"] == waits or None, waits)
    served("approvals", "decide", run, "--approve", "--by", "ann", "--set", "amount=12.5")
    assert served.json("runs", "wait", run)["output"] == {
        "weight": 12.0,
        "doubled": 16,
        "by": "ann",
        "amount": 12.5,
        "n": ["hammer"],
    }
    shown = served("runs", "show", run).stdout
    for sign in ("⇢ weigh", "↳ double", "☑ Refund order 8?", "⇄ add"):
        assert sign in shown
    (child,) = served.json("runs", "show", run)["children"]
    assert (child["name"], child["state"], child["parent_run_id"]) == ("double", "completed", run)


def test_a_failed_run_is_retried_and_fails_again(served: CommandLine) -> None:
    run = served.start("fail")
    served.await_state(run, "failed")
    (answer,) = served.json("runs", "retry", run)
    served.await_state(answer["new_run_id"], "failed")
    assert "⑂ forked" in served("runs", "show", answer["new_run_id"]).stdout


def test_a_run_is_forked_with_another_input(served: CommandLine) -> None:
    run = served.json("start", "double", "4", "--wait")["run_id"]
    fork = served("runs", "fork", run, "--index", "1", "--input", "5").stdout.strip()
    assert served.json("runs", "wait", fork)["output"] == 10


def test_a_paused_workflow_continues_when_it_is_resumed(served: CommandLine) -> None:
    served("workflows", "pause", "double")
    run = served.start("double", "4")
    assert "its workflow 'sample/double' was paused" in served.json("runs", "why", run)["because"]
    served("workflows", "resume", "double")
    assert served.json("runs", "wait", run)["output"] == 8
