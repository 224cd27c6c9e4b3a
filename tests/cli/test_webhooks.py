"""`holdfast runs webhooks`, and what other commands show of a webhook."""

from __future__ import annotations

from holdfast.types import JSON
from tests.cli.conftest import CommandLine
from tests.cli.hand import Entry, Hand

URL = "https://shop.example.com/v1/hooks/" + "a" * 43


def opened(key: str) -> Entry:
    said: JSON = {"webhook_name": "paid", "body": "json", "secret": None, "scheme": "standard"}
    return "WebhookOpened", key, {**said, "digest": key, "url": URL}


def test_the_urls_of_a_run_are_listed_there_and_nowhere_else(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    assert f"run {run} waits for no POST" in cli("runs", "webhooks", run).stderr
    hand.turn(run, opened("paid"), opened("paid#2"), ("WebhookClosed", "paid#2", None))
    assert cli("runs", "webhooks", run).stdout == f"paid  {URL}\n"
    [found] = cli.json("runs", "webhooks", run)
    assert (found["run_id"], found["key"], found["url"]) == (run, "paid", URL)
    for command in (["log"], ["show"], ["log", "--json"], ["show", "--json"], ["why"]):
        shown = cli("runs", command[0], run, *command[1:]).output
        assert "paid" in shown
        assert "a" * 20 not in shown
    assert "waits for a POST" in cli("runs", "show", run, "--all").stdout
    assert "nothing was posted to its URL" in cli("runs", "why", run).stdout
