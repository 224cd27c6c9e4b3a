"""`holdfast queue`."""

from __future__ import annotations

from holdfast.cli import exits
from tests.cli.conftest import CommandLine


def test_messages_are_sent_received_and_acknowledged(cli: CommandLine) -> None:
    assert "no message queues" in cli("queue", "list").stderr
    assert cli("queue", "create", "parcels", "--max-receives", "1").stdout == "created parcels\n"
    again = cli("queue", "create", "parcels", "--max-receives", "1", code=exits.FAILED)
    assert "just so" in again.stdout
    differs = cli("queue", "create", "parcels", code=exits.FAILED)
    assert "other settings" in differs.stderr
    sent = cli.json("queue", "send", "parcels", '{"id": 7}', "--header", "from=ann", "--id", "a")
    assert cli.json("queue", "send", "parcels", "1", "--id", "a") == sent
    [message] = cli.json("queue", "receive", "parcels", "--wait", "10s")
    assert (message["message_id"], message["payload"]) == (sent["message_id"], {"id": 7})
    assert message["headers"] == {"from": "ann"}
    assert "in flight" in cli("queue", "show", "parcels").stdout
    assert cli("queue", "ack", message["receipt"]).stdout == "1 acknowledged\n"
    late = cli("queue", "ack", message["receipt"], code=exits.FAILED)
    assert "no longer in flight" in late.stderr
    none = cli("queue", "receive", "parcels", code=exits.FAILED)
    assert "no message is due" in none.stderr
    wrong = cli("queue", "ack", "17", code=exits.USAGE)
    assert "a receipt is what" in wrong.stderr


def test_dead_letters_are_listed_and_moved_back(cli: CommandLine) -> None:
    cli("queue", "create", "parcels", "--max-receives", "1")
    cli("queue", "send", "parcels", '"fragile"')
    [message] = cli.json("queue", "receive", "parcels")
    cli("queue", "nack", message["receipt"], "--error", "no van")
    shown = cli("queue", "dead", "parcels")
    assert "no van" in shown.stdout
    assert "holdfast" in shown.stderr
    [dead] = cli.json("queue", "dead", "parcels")
    assert (dead["payload"], dead["origin"]) == ("fragile", "parcels")
    [row] = [each for each in cli.json("queue", "list") if each["metrics"]["dead"]]
    assert row["settings"]["name"] == "parcels"
    moved = cli("queue", "redrive", "parcels", "--message", str(dead["message_id"]))
    assert moved.stdout == "moved 1 message back to parcels\n"
    assert "fragile" in cli("queue", "receive", "parcels", "--ack").stdout
    cli("queue", "send", "parcels", "--delay", "1h")
    assert "due in" in cli("queue", "show", "parcels").stdout
    assert cli("queue", "purge", "parcels", "--yes").stdout == "deleted 1 message of parcels\n"


def test_queues_are_deleted_and_unknown_ones_named(cli: CommandLine) -> None:
    unknown = cli("queue", "send", "parcels", code=exits.NOT_FOUND)
    assert "there is no message queue 'parcels'" in unknown.stderr
    cli("queue", "create", "parcels", "--fifo")
    refused = cli("queue", "send", "parcels", "1", code=exits.USAGE)
    assert "each message needs a group" in refused.stderr
    assert cli("queue", "delete", "parcels", "--yes").stdout == "deleted\n"
    gone = cli("queue", "delete", "parcels", "--yes", code=exits.FAILED)
    assert "no message queue" in gone.stderr
