"""`holdfast topics`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from holdfast.cli import exits
from holdfast.types import Suspend
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand


def test_events_are_published_and_subscribed_to(cli: CommandLine, tmp_path: Path) -> None:
    """B14."""
    assert "no subscriptions" in cli("topics", "list").stderr
    assert "nothing is subscribed" in cli("topics", "publish", "orders.1").stdout
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    one = cli(
        *("topics", "subscribe", "orders.*", "--workflow", "shop/ship", "--match", '{"a": 1}')
    ).stdout.strip()
    url = ("topics", "subscribe", "orders.#", "--url", "https://example.org/events")
    assert "--secret-file" in cli(*url, code=exits.USAGE).stderr
    other = cli(*url, "--secret-file", str(secret)).stdout.strip()
    published = cli("topics", "publish", "orders.1", '{"a": 1}', "--id", "e-1").stdout
    assert published == "event e-1: 1 workflow, 1 URL\n"
    again = cli("topics", "publish", "orders.1", "--id", "e-1", code=exits.FAILED)
    assert "was published before" in again.stderr
    listed = cli("topics", "list").stdout
    assert "workflow shop/ship" in listed
    assert "https://example.org/events" in listed
    shown = cli.json("topics", "show", "orders.1")
    assert [str(each["subscription_id"]) for each in shown["subscriptions"]] == [one, other]
    assert "whsec_" not in str(shown) + listed
    assert [each["target"]["type"] for each in shown["subscriptions"]] == ["run", "url"]
    assert cli.json("topics", "list") == shown["subscriptions"]
    now = datetime.now(UTC)
    assert all(datetime.fromisoformat(each["created_at"]) <= now for each in shown["subscriptions"])
    assert "no subscriptions" in cli("topics", "show", "invoices.1").stderr
    [delivery] = cli.json("topics", "deliveries")
    assert (delivery["event_id"], delivery["dead_at"]) == ("e-1", None)
    assert datetime.fromisoformat(delivery["published_at"]) <= now
    assert "open" in cli("topics", "deliveries").stdout
    assert "no deliveries" in cli("topics", "deliveries", "--dead").stderr
    assert "there are no dead deliveries" in cli("topics", "redrive", code=exits.FAILED).stderr
    none = cli("topics", "discard", "1", code=exits.FAILED).stderr
    assert "none of these is a dead delivery" in none
    assert cli("topics", "unsubscribe", one).stdout == "removed\n"
    assert "there is no subscription" in cli("topics", "unsubscribe", one, code=exits.FAILED).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish", "orders..1"), "is not a topic"),
        (("publish", "orders", "{"), "PAYLOAD"),
        (("subscribe", "a*", "--workflow", "shop/a"), "is not a pattern"),
        (("subscribe", "a"), "give one of them"),
    ],
)
def test_what_cannot_be_is_refused(
    cli: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    shown = cli("topics", *arguments, code=exits.USAGE)
    assert message in shown.stderr


def test_a_queue_that_does_not_exist_is_not_subscribed(cli: CommandLine) -> None:
    shown = cli("topics", "subscribe", "a", "--queue", "never", code=exits.NOT_FOUND)
    assert "there is no message queue 'never'" in shown.stderr


def test_why_names_the_event_that_a_run_waits_for(cli: CommandLine, hand: Hand) -> None:
    """B14."""
    run = cli.start("double", "1")
    asked = ("EventSubscribed", "event:orders.*.paid", {"pattern": "orders.*.paid", "match": None})
    hand.turn(run, asked, then=Suspend(awaiting=("event:orders.*.paid",)))
    shown = cli("runs", "why", run).stdout
    assert "it waits for event 'orders.*.paid'" in shown
    assert "runs signal" not in shown
    assert "1 subscription(s) of runs that wait" in cli("topics", "show", "orders.1.paid").stdout
    assert cli.json("topics", "list", "--kind", "run")[0]["run_id"] == run


def test_dead_deliveries_are_found_by_the_doctor(cli: CommandLine, tmp_path: Path) -> None:
    """B14."""
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    url = ("--url", "https://example.org/", "--secret-file", str(secret))
    cli("topics", "subscribe", "a", *url)
    cli("topics", "publish", "a", "--id", "e-1")
    with psycopg.connect(cli.url) as connection:
        connection.execute(
            "update holdfast.http_deliveries set attempts = 5, visible_at = 'infinity', "
            "dead_at = now(), status = 500, error = 'the answer is 500'"
        )
    found = {each["check"]: each for each in cli.json("doctor")}["deliveries"]
    assert found["level"] == "warn"
    assert "event e-1 of topic a" in found["message"]
    assert "the answer is 500" in cli("topics", "deliveries", "--dead").stdout
    assert cli("topics", "redrive").stdout == "redriven: 1\n"
    assert "no deliveries" in cli("topics", "deliveries", "--dead").stderr
