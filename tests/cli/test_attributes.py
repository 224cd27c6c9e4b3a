"""Attributes and tags on the command line."""

from __future__ import annotations

from holdfast.cli import exits
from tests.cli.conftest import CommandLine


def test_runs_are_started_found_and_counted_by_attributes(cli: CommandLine) -> None:
    acme = cli.start("double", "1", "--attribute", "customer=acme", "--attribute", "seats=7")
    bob = cli.start("double", "2", "--attribute", "customer=bob b", "--attribute", 'seats="7"')
    shown = cli.json("runs", "show", acme)
    assert shown["attributes"] == {"customer": "acme", "seats": 7}
    assert cli.json("runs", "show", bob)["attributes"] == {"customer": "bob b", "seats": "7"}
    assert "customer=acme, seats=7" in cli("runs", "show", acme).stdout
    assert 'customer="bob b"' in cli("runs", "show", bob).stdout

    def listed(*where: str) -> set[str]:
        found = cli.json("runs", "list", *(word for each in where for word in ("--where", each)))
        return {run["run_id"] for run in found["runs"]}

    assert listed("customer=acme") == {acme}
    assert listed("seats=7") == {acme, bob}
    assert listed("seats=7", "customer=bob b") == {bob}
    counted = cli.json("runs", "count", "--by", "customer")
    assert counted["counts"] == {"acme": 1, "bob b": 1}
    assert "1  acme" in cli("runs", "count", "--by", "customer").stdout
    cli("runs", "cancel", "--where", "customer=acme")
    assert cli.state(acme) == "cancelled"


def test_attributes_and_tags_are_changed(cli: CommandLine) -> None:
    run = cli.start("double", "1", "--tag", "new", "--attribute", "trial=true")
    said = cli("runs", "set-attributes", run, "customer=acme", "seats=2", "--remove", "trial")
    assert said.stdout.strip() == f"run {run}: customer=acme, seats=2"
    found = cli.json("runs", "set-tags", run, "--add", "seen", "--remove", "new")
    assert found == {"run_id": run, "tags": ["seen"]}
    assert cli("runs", "set-tags", run, "a", "b").stdout.strip() == f"run {run}: a, b"
    assert cli.json("runs", "show", run)["attributes"] == {"customer": "acme", "seats": 2}


def test_what_cannot_be_an_attribute_is_refused(cli: CommandLine) -> None:
    run = cli.start("double", "1")
    result = cli("runs", "set-attributes", run, "acme", code=exits.USAGE)
    assert "'acme' is not NAME=VALUE, such as customer=acme" in result.stderr
    cli("runs", "set-attributes", run, code=exits.USAGE)
    cli("runs", "set-tags", run, code=exits.USAGE)
    result = cli("runs", "list", "--where", "a b=1", code=exits.USAGE)
    assert "'a b' is not a name for an attribute" in result.stderr


def test_a_schedule_gives_its_runs_attributes(cli: CommandLine) -> None:
    created = ("schedules", "create", "nightly", "sample/double", "--cron", "@daily")
    cli(*created, "--attribute", "customer=acme", "--attribute", "n=1", "--tag", "t")
    shown = cli.json("schedules", "show", "nightly")
    assert shown["target"]["attributes"] == {"customer": "acme", "n": 1}
    assert "attributes customer=acme, n=1" in cli("schedules", "show", "nightly").stdout
    cli("schedules", "trigger", "nightly")
    [run] = cli.json("runs", "list", "--where", "customer=acme")["runs"]
    assert (run["attributes"], run["tags"]) == ({"customer": "acme", "n": 1}, ["t"])
