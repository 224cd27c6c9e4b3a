"""`holdfast queue`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from holdfast.cli import exits
from tests.cli.conftest import CommandLine


def test_messages_are_sent_received_and_acknowledged(cli: CommandLine) -> None:
    assert "no message queues" in cli("queue", "list").stderr
    assert cli("queue", "create", "parcels", "--max-receives", "1").stdout == "created parcels\n"
    again = cli("queue", "create", "parcels", "--max-receives", "1", code=exits.FAILED)
    assert "already, with these settings" in again.stdout
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
    for act in ("receive", "pop"):
        none = cli("queue", act, "parcels", code=exits.FAILED)
        assert "no message is due" in none.stderr
    cli("queue", "send", "parcels", "8")
    assert cli("queue", "pop", "parcels", "--wait", "10s").stdout.startswith("8\n")
    assert cli.json("queue", "show", "parcels")["messages"] == []
    for receipt in ("17", f"{message['receipt']}00000"):
        wrong = cli("queue", "ack", receipt, code=exits.USAGE)
        assert "a receipt is what" in wrong.stderr


def test_messages_are_shown_page_by_page(cli: CommandLine) -> None:
    """Those of a queue that shares its dead letters are found behind those of others."""
    for name in ("parcels", "letters"):
        cli("queue", "create", name, "--max-receives", "1", "--dead-letters", "lost")
        for number in range(3):
            cli("queue", "send", name, f'"{name} {number}"')
        for message in cli.json("queue", "receive", name, "--limit", "9"):
            cli("queue", "nack", message["receipt"])
    first = cli.json("queue", "show", "lost", "--limit", "4")
    assert datetime.fromisoformat(first["queue"]["created_at"]) <= datetime.now(UTC)
    rest = cli.json("queue", "show", "lost", "--limit", "4", "--cursor", first["cursor"])
    assert rest["cursor"] is None
    payloads = [each["payload"] for each in first["messages"] + rest["messages"]]
    assert payloads == [f"{name} {n}" for name in ("parcels", "letters") for n in range(3)]
    lines = cli("--json", "queue", "show", "lost", "--all").stdout.splitlines()
    assert [json.loads(line)["payload"] for line in lines] == payloads
    [dead] = cli.json("queue", "dead", "letters", "--limit", "1")
    assert dead["payload"] == "letters 0"
    hint = cli("queue", "dead", "letters", "--limit", "1").stderr
    cursor = hint.partition("more with --cursor ")[2].strip()
    more = cli.json("queue", "dead", "letters", "--cursor", cursor)
    assert [each["payload"] for each in more] == ["letters 1", "letters 2"]
    shown = cli("queue", "dead", "letters", "--all")
    assert [shown.stdout.count(f"letters {n}") for n in range(3)] == [1, 1, 1]
    assert "parcels" not in shown.stdout
    wrong = cli("queue", "show", "lost", "--cursor", "x", code=exits.USAGE)
    assert "is not a cursor" in wrong.stderr


def test_dead_letters_are_listed_and_moved_back(cli: CommandLine) -> None:
    cli("queue", "create", "parcels", "--max-receives", "1")
    cli("queue", "send", "parcels", '"fragile"')
    [message] = cli.json("queue", "receive", "parcels")
    cli("queue", "nack", message["receipt"], "--error", "no van")
    shown = cli("queue", "dead", "parcels")
    assert "no van" in shown.stdout
    assert "receives" in shown.stdout
    assert "attempts" not in shown.stdout  # they begin at 0 again
    assert "a message moves here after 1 receive\n" in shown.stderr
    assert "holdfast" in shown.stderr
    [dead] = cli.json("queue", "dead", "parcels")
    assert (dead["payload"], dead["origin"]) == ("fragile", "parcels")
    whole = ("queue", "message", "parcels.dead", str(dead["message_id"]))
    [failure] = cli.json(*whole)["failures"]
    assert failure["error"] == "no van"
    assert datetime.fromisoformat(failure["failed_at"]) <= datetime.now(UTC)
    assert "ago: no van" in cli(*whole).stdout
    assert dead["headers"] == {"holdfast-receives": "1"}
    why = cli("queue", "why", "parcels.dead", str(dead["message_id"])).stdout
    assert "received before it moved here: 1" in why
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


def test_errors_name_the_queue_that_was_meant_and_the_way_out(cli: CommandLine) -> None:
    cli("queue", "create", "mails", "--fifo", "--max-receives", "3")
    for words in (("send", "mials", "1"), ("show", "mials"), ("purge", "mials"), ("dead", "mials")):
        unknown = cli("queue", *words, code=exits.NOT_FOUND).stderr
        assert "no message queue 'mials' (did you mean mails" in unknown
        assert "queue list` names those" in unknown
    differs = cli("queue", "create", "mails", "--fifo", code=exits.FAILED).stderr
    assert "other settings: max_receives is 3, not None, dead_letters is mails.dead" in differs
    unanswered = cli("queue", "purge", "mails", code=exits.USAGE, stdin="")
    assert "give --yes" in unanswered.stderr
    assert "Did you mean queues pause?" in cli("queue", "pause", "mails", code=exits.USAGE).stderr
    assert "nobody knows" not in cli("queues", "pause", "mails").stderr
    for number, words in enumerate((("--delay", "0.5"), ("--delay", "500ms"))):
        cli("queue", "send", "mails", "1", "--group", str(number), *words)
    lines = cli("doctor").stdout.splitlines()
    assert len({line.index(line.split(None, 2)[1]) for line in lines[1:] if line[0] != " "}) == 1
    assert any("message queues 2 queues" in line for line in lines)


def test_settings_are_changed(cli: CommandLine) -> None:
    cli("queue", "create", "mails", "--max-receives", "3")
    cli("queue", "update", "mails", code=exits.USAGE)
    changed = cli("queue", "update", "mails", "--visibility", "5m", "--max-receives", "0")
    assert changed.stdout == "mails is changed\n"
    [settings] = [each["settings"] for each in cli.json("queue", "list")[:1]]
    assert (settings["visibility_seconds"], settings.get("max_receives")) == (300.0, None)
    assert "already" in cli("queue", "update", "mails", "--visibility", "5m").stdout


def test_why_says_what_a_queue_and_a_message_wait_for(cli: CommandLine) -> None:
    cli("queue", "create", "parcels")
    assert cli("queue", "why", "parcels").stdout == "empty: nothing is in it\n"
    sent = cli.json("queue", "send", "parcels", "1", "--delay", "1h")["message_id"]
    assert cli.json("queue", "why", "parcels", str(sent))["state"] == "delayed"
    assert "nothing in it is due yet" in cli("queue", "why", "parcels").stdout
    cli("queues", "pause", "parcels")
    paused = cli("queue", "why", "parcels", str(sent)).stdout
    assert "paused: " in paused
    assert "queues resume parcels` ends the pause" in paused
    gone = cli("queue", "why", "parcels", "99", code=exits.USAGE)
    assert "has no message 99" in gone.stderr
    assert "no message queue 'parcel'" in cli("queue", "why", "parcel", code=exits.NOT_FOUND).stderr


def test_a_queue_says_what_its_limits_allow(cli: CommandLine) -> None:
    cli("queue", "create", "parcels")
    for most in ("0", "-1", "many"):
        cli("limits", "set", "--queue", "parcels", "--concurrency", most, code=exits.USAGE)
    said = cli("limits", "set", "--queue", "parcels", "--concurrency", "1")
    assert (said.stdout, said.stderr) == ("queue 'parcels' runs 1 at once\n", "")
    for payload in ("7", "8"):
        sent = cli.json("queue", "send", "parcels", payload)["message_id"]
    assert (
        "limit: queue 'parcels' runs 1 at once: 0 in flight\n"
        in cli("queue", "show", "parcels").stdout
    )
    assert len(cli.json("queue", "receive", "parcels", "--limit", "9")) == 1
    assert "at once: 1 in flight, 1 waiting\n" in cli("queue", "show", "parcels").stdout
    [limit] = cli.json("queue", "show", "parcels")["limits"]
    assert (limit["held"], limit["waiting"]) == (1, 1)
    why = cli("queue", "why", "parcels").stdout
    assert why.startswith("limited: 1 message due")
    assert "limits set` changes a limit" in why
    assert cli.json("queue", "why", "parcels", str(sent))["state"] == "limited"
    assert "wait there: 1" in cli("doctor").stdout
    assert "no message is due" in cli("queue", "pop", "parcels", code=exits.FAILED).stderr
    cli("limits", "remove", "concurrency", "--queue", "parcels")
    assert cli("queue", "pop", "parcels").stdout.startswith("8\n")


def test_one_message_is_shown_changed_and_cancelled(cli: CommandLine) -> None:
    cli("queue", "create", "parcels", "--priorities")
    one = str(cli.json("queue", "send", "parcels", '{"id": 7}', "--delay", "1h")["message_id"])
    shown = cli("queue", "message", "parcels", one).stdout
    assert f"message {one}: due in" in shown
    assert shown.endswith('{"id":7}\n')
    changed = cli("queue", "change", "parcels", one, "--payload", "8", "--priority", "0")
    assert changed.stdout == f"message {one} of parcels is changed\n"
    assert cli.json("queue", "message", "parcels", one)["payload"] == 8
    cli("queue", "change", "parcels", one, "--at", "1h")
    cli("queue", "change", "parcels", one, "--delay", "0s")
    cli("queue", "receive", "parcels")
    refused = cli("queue", "cancel", "parcels", one, code=exits.FAILED)
    assert "is in flight" in refused.stderr
    two = str(cli.json("queue", "send", "parcels", "2")["message_id"])
    assert cli.json("queue", "cancel", "parcels", two) == {"cancelled": True}
    cli("queue", "cancel", "parcels", two, code=exits.FAILED)
    gone = cli("queue", "message", "parcels", two, code=exits.NOT_FOUND)
    assert "it was acknowledged or cancelled" in gone.stderr
    nothing = cli("queue", "change", "parcels", one, code=exits.USAGE)
    assert "say what to change" in nothing.stderr
