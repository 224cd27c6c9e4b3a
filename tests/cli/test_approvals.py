"""`holdfast approvals`: list, decide; the form's values on the command line."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import exits
from holdfast.cli.commands import approvals
from holdfast.cli.forms import ask_for_values, read_values
from holdfast.cli.root import holdfast
from holdfast.errors import InvalidInput
from holdfast.types import JSON, FormField
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand, approval

AMOUNT: JSON = {"name": "amount", "type": "number", "required": True, "label": "How much?"}
VIA: JSON = {"name": "via", "type": "choice", "required": True, "choices": ["mail", "van"]}
NOTE: JSON = {"name": "note", "type": "text", "required": False}


@pytest.fixture
def run(cli: CommandLine, hand: Hand) -> str:
    """A run that waits for two decisions."""
    run = cli.start("double", "1")
    hand.turn(run, approval("refund", "Refund order 7?", AMOUNT, VIA, NOTE), approval("b", "Ship?"))
    return run


def resolution(cli: CommandLine, run: str, key: str) -> Any:
    log = cli.json("runs", "show", run)["log"]
    (event,) = [e for e in log if (e["type"], e["key"]) == ("ApprovalResolved", key)]
    return event["details"]


def test_without_an_open_approval_the_list_says_so(cli: CommandLine) -> None:
    assert "no approval waits" in cli("approvals").stderr
    assert cli.json("approvals", "list") == []


def test_the_list_has_the_command_that_decides(cli: CommandLine, run: str) -> None:
    """T4."""
    shown = cli("approvals").stdout
    assert "Refund order 7?" in shown
    assert "amount: number How much?" in shown
    assert "via: mail | van" in shown
    (command,) = [line for line in shown.splitlines() if f"{run} refund --approve" in line]
    arguments = ["--database", cli.url, *shlex.split(command)[1:]]
    assert CliRunner().invoke(holdfast, arguments).exit_code == exits.OK
    assert resolution(cli, run, "refund")["values"] == {"amount": 0, "via": "mail"}
    assert [each["key"] for each in cli.json("approvals", "list", run)] == ["b"]


def test_approve_and_reject_together_are_refused(cli: CommandLine, run: str) -> None:
    refused = cli("approvals", "decide", run, "b", "--approve", "--reject", code=exits.USAGE)
    assert "not both" in refused.stderr
    assert "b" in [each["key"] for each in cli.json("approvals", "list", run)]


def test_a_decision_says_who_and_why(cli: CommandLine, run: str) -> None:
    """T4."""
    shown = cli("approvals", "decide", run, "b", "--reject", "--by", "ann", "--feedback", "no")
    assert shown.stdout == f"b of run {run} is rejected\n"
    details = resolution(cli, run, "b")
    assert (details["approved"], details["by"], details["feedback"]) == (False, "ann", "no")


def test_the_first_decision_wins(cli: CommandLine, run: str) -> None:
    """T4. The same decision id again is a no-op, another decision is told who was first."""
    decide = ("approvals", "decide", run, "b", "--by", "ann")
    assert cli.json(*decide, "--approve", "--id", "d-1")["changed"]
    assert not cli.json(*decide, "--approve", "--id", "d-1")["changed"]
    other = cli(*decide, "--reject", code=exits.FAILED)
    assert "was approved by ann before" in other.stderr


def test_the_only_open_approval_needs_no_key(cli: CommandLine, run: str) -> None:
    several = cli("approvals", "decide", run, "--approve", code=exits.USAGE)
    assert "add one of b, refund" in several.stderr or "add one of refund, b" in several.stderr
    cli("approvals", "decide", run, "refund", "--reject")
    cli("approvals", "decide", run, "--approve")
    assert (
        "does not wait for a decision"
        in cli("approvals", "decide", run, code=exits.NOT_FOUND).stderr
    )


def test_keys_of_tasks_are_named_as_a_shell_takes_them(cli: CommandLine, hand: Hand) -> None:
    """As those of agents, which call several tools at once."""
    run = cli.start("double", "1")
    keys = ["~/approve", "tools#2/support.approve.refund#2"]
    hand.turn(run, *(approval(key, key) for key in keys))
    several = cli("approvals", "decide", run, "--approve", code=exits.USAGE)
    assert all(shlex.quote(key) in several.stderr for key in keys)
    for line in cli("approvals", "list", run).stdout.splitlines():
        if "--approve" in line:
            arguments = ["--database", cli.url, *shlex.split(line)[1:]]
            assert CliRunner().invoke(holdfast, arguments).exit_code == exits.OK
    assert cli.json("approvals", "list", run) == []


def test_an_approval_that_was_never_requested_is_code_4(cli: CommandLine, run: str) -> None:
    cli("approvals", "decide", run, "nothing", "--approve", code=exits.NOT_FOUND)


def test_a_missing_value_names_its_field(cli: CommandLine, run: str) -> None:
    result = cli("approvals", "decide", run, "refund", "--approve", code=exits.USAGE)
    assert "field 'amount' is required" in result.stderr
    wrong = ("--approve", "--set", "amount=lots")
    result = cli("approvals", "decide", run, "refund", *wrong, code=exits.USAGE)
    assert "field 'amount' takes a number" in result.stderr


def test_without_a_terminal_the_decision_must_be_given(cli: CommandLine, run: str) -> None:
    assert "--approve or --reject" in cli("approvals", "decide", run, "b", code=exits.USAGE).stderr


def test_on_a_terminal_the_form_is_asked_for(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4."""
    monkeypatch.setattr(approvals, "_can_ask", lambda: True)
    answers = "y\nlots\n12.5\nvan\n\n"
    shown = cli("approvals", "decide", run, "refund", stdin=answers)
    assert "takes a number" in shown.output
    assert resolution(cli, run, "refund")["values"] == {"amount": 12.5, "via": "van"}


def test_a_prompt_that_is_cancelled_decides_nothing(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_can_ask", lambda: True)
    cli("approvals", "decide", run, "refund", stdin="", code=exits.INTERRUPTED)
    assert len(cli.json("approvals", "list", run)) == 2


def test_an_empty_answer_decides_nothing(
    cli: CommandLine, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_can_ask", lambda: True)
    shown = cli("approvals", "decide", run, "refund", stdin="\n", code=exits.INTERRUPTED)
    assert "[y/n]" in shown.output
    assert len(cli.json("approvals", "list", run)) == 2


def test_a_default_is_taken_for_an_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [
        FormField("rush", "boolean", required=True, default=True),
        FormField("count", "number", required=False, default=3),
    ]
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "")
    assert ask_for_values(fields, {}) == {"rush": True, "count": 3}


def test_values_are_read_by_the_types_of_their_fields() -> None:
    fields = [
        FormField("text", "text", required=False),
        FormField("count", "number", required=False),
        FormField("rush", "boolean", required=False),
        FormField("level", "choice", required=False, choices=(1, 2, "high")),
    ]
    texts = ["text=7", "count=7", "rush=No", "level=2"]
    assert read_values(fields, texts) == {"text": "7", "count": 7, "rush": False, "level": 2}
    for wrong in ("rush=maybe", "level=3", "count=x", "count"):
        with pytest.raises(InvalidInput):
            read_values(fields, [wrong])


def test_the_list_in_json_has_the_form(cli: CommandLine, run: str) -> None:
    listed = json.loads(cli("approvals", "list", "--json").stdout)
    (refund,) = [each for each in listed if each["key"] == "refund"]
    assert [field["name"] for field in refund["fields"]] == ["amount", "via", "note"]
