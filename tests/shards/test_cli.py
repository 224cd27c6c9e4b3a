"""The command line on several databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest

from holdfast import Client
from holdfast.cli import exits
from holdfast.errors import ShardsChanged
from tests.cli.conftest import CommandLine
from tests.cli.processes import SAMPLE, Process, running, until
from tests.clusters import Homes
from tests.databases import DatabaseServer
from tests.shards.engine import away


@pytest.fixture
def cli(urls: list[str]) -> CommandLine:
    """The command line on an engine of two shards, and a spare database."""
    found = CommandLine(" ".join(urls))
    assert CommandLine(" ".join(urls[:2])).json("shards", "add")["count"] == 2
    return found


@contextmanager
def gone(url: str) -> Iterator[None]:
    """Let nobody use a database within the block; see `away`."""
    with asyncio.Runner() as runner:
        context = away(url)
        runner.run(context.__aenter__())
        try:
            yield
        finally:
            runner.run(context.__aexit__(None, None, None))


def shards(cli: CommandLine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli.json("shards", "list")
    return found


def test_databases_are_named_one_by_one(urls: list[str]) -> None:
    """Those at a command replace what was named before it, as one does."""
    cli = CommandLine("")
    named = [part for url in urls[:2] for part in ("--database", url)]
    refused = cli("runs", "list", *named, code=exits.USAGE).stderr
    hint = " ".join(f"--database '{url}'" for url in urls[:2])
    assert f"`holdfast {hint} shards add` makes them one engine" in refused
    added = cli("shards", "add", *named).stdout
    assert added.startswith("the engine has 2 shards: shard 0, 1 was told. Each needs a worker")
    assert cli("--database", urls[2], "runs", "list", *named).stderr.startswith("no runs in")
    cli("shards", "list", "--database", urls[0], "--database", "", code=exits.USAGE)


def test_a_shard_that_is_named_alone_says_what_to_name(cli: CommandLine, urls: list[str]) -> None:
    alone = CommandLine(urls[1])
    for arguments in (["runs", "list"], ["worker", SAMPLE], ["server"], ["start", "double", "1"]):
        refused = alone(*arguments, code=exits.DATABASE).stderr
        assert "this database is shard 1 of 2, and it is named alone: name all 2" in refused
    for change in ("close", "open"):
        CommandLine(" ".join(urls[:2]))("shards", change, "1")
        refused = alone("start", "double", "1", code=exits.DATABASE).stderr
        assert "this database is shard 1 of 2, and it is named alone: name all 2" in refused


async def test_clients_refuse_a_shard_that_is_named_alone(
    cli: CommandLine, urls: list[str]
) -> None:
    with pytest.raises(ShardsChanged, match="shard 0 of 2"):
        async with Client(urls[0]):
            pass
    async with Client(f"{urls[0]} {urls[1]}") as client:
        assert await client.runs.list() is not None


def test_shards_are_listed(cli: CommandLine, urls: list[str]) -> None:
    cli.start("sample/double", "1")
    found = shards(cli)
    assert [each["state"] for each in found] == ["open", "open", "spare"]
    assert [each["history"] for each in found] == [[2], [2], []]
    assert [each["database"] for each in found] == urls
    runs = [each["runs"] for each in found]
    assert sorted(runs, key=len) == [{}, {}, {"running": 1}]
    assert "spare" in cli("shards", "list").stdout
    [only] = shards(CommandLine(urls[2]))
    assert only["state"] == "alone"


@pytest.mark.parametrize("used_by", ["a run", "a worker"])
def test_a_database_in_use_that_is_no_shard_is_not_spare(
    urls: list[str], used_by: str, tmp_path: Path
) -> None:
    first, both = CommandLine(urls[0]), CommandLine(" ".join(urls[:2]))
    if used_by == "a run":
        first.start("sample/double", "1")
        assert [each["state"] for each in shards(both)] == ["alone", "spare"]
        told = both("doctor", code=exits.FAILED).stdout
        assert "database 1: it is in use, and not a shard of the engine" in told
        assert "`holdfast shards add` with the first database alone" in told
        wrong = CommandLine(f"{urls[1]} {urls[0]}")("shards", "add", code=exits.USAGE).stderr
        assert "put an empty database" in wrong
        return
    environment = {"HOLDFAST_DATABASE_URL": urls[0]}
    with running(tmp_path / "log", "worker", SAMPLE, env=environment) as worker:
        worker.await_text("ready: queues default")
        assert [each["state"] for each in shards(both)] == ["alone", "spare"]


def test_a_spare_is_added_and_again_changes_nothing(cli: CommandLine) -> None:
    assert cli.json("shards", "add")["told"] == [0, 1, 2]
    assert cli("shards", "add").stdout == "the engine has 3 shards: all of them knew it\n"
    assert [each["history"] for each in shards(cli)] == [[2, 3]] * 3


def test_a_shard_is_closed_and_opened_again(cli: CommandLine) -> None:
    cli("shards", "close", "1", code=exits.USAGE)  # the spare one is named, and no shard
    cli("shards", "add")
    answer = cli.json("shards", "close", "1")
    assert (answer["count"], answer["closed"], answer["told"]) == (3, [1], [0, 1, 2])
    assert [each["state"] for each in shards(cli)] == ["open", "closed", "open"]
    found = [each["message"] for each in cli.json("doctor", code=exits.OK)]
    assert "shard 1: one of 3, closed for new runs" in found
    for number in range(20):
        cli.start("sample/double", str(number))
    assert shards(cli)[1]["runs"] == {}
    closed = "the engine has 3 shards, shard 1 closed: all of them knew it\n"
    assert cli("shards", "close", "1").stdout == closed
    assert "shard 0 has what is known by a name" in cli("shards", "close", "0", code=2).stderr
    opened = "the engine has 3 shards: shard 0, 1, 2 was told\n"
    assert cli("shards", "open", "1").stdout == opened
    assert [each["state"] for each in shards(cli)] == ["open"] * 3


def test_what_cannot_be_a_shard_is_refused(
    cli: CommandLine, urls: list[str], database_server: DatabaseServer, empty_database_url: str
) -> None:
    same = urls[0].replace("/postgres&", "/./postgres&")
    assert same != urls[0]
    twice = CommandLine(f"{cli.url} {same}")("shards", "add", code=exits.USAGE).stderr
    assert "database 4 of those that are named is one that was named before it" in twice
    with database_server.database() as used:
        CommandLine(used).start("sample/double", "1")
        refused = CommandLine(f"{cli.url} {used}")("shards", "add", code=exits.USAGE).stderr
        assert "database 4 of those that are named has runs" in refused
    old = CommandLine(f"{cli.url} {empty_database_url}")("shards", "add", code=exits.DATABASE)
    assert "has no holdfast tables: run" in old.stderr
    swapped = CommandLine(f"{urls[1]} {urls[0]}")
    assert "database 1 of those" in swapped("shards", "add", code=exits.USAGE).stderr
    assert [each["state"] for each in shards(swapped)] == ["unusable", "unusable"]
    assert [each["history"] for each in shards(cli)] == [[2], [2], []]


def test_lists_say_which_shard_is_away(cli: CommandLine, urls: list[str]) -> None:
    with gone(urls[1]):
        shown = cli("runs", "list")
        assert "without shard 1, which is away" in shown.stderr
        states = [each["state"] for each in shards(cli)]
        assert states == ["open", "away", "spare"]
        assert cli("shards", "list").stdout.count("postgresql://") == 3  # one each
        cli("shards", "add", code=exits.DATABASE)
    assert "away" not in cli("runs", "list").stderr


def test_the_server_says_which_shard_is_away(
    cli: CommandLine, urls: list[str], tmp_path: Path
) -> None:
    cli.start("sample/double", "1")
    environment = {"HOLDFAST_DATABASE_URL": " ".join(urls[:2])}
    arguments = ("server", "--auth", "any", "--port", "0")
    with running(tmp_path / "log", *arguments, env=environment) as server:
        address = server.await_text("http://").partition("http://")[2].split()[0]

        def ask(path: str) -> tuple[Message, str]:
            request = Request(f"http://{address}{path}", headers={"Authorization": "any"})
            with urlopen(request) as answer:
                return answer.headers, answer.read().decode()

        headers, text = ask("/v1/runs")
        assert "Holdfast-Shards-Away" not in headers
        assert len(json.loads(text)["runs"]) == 1
        assert "shard 1: one of 2" in ask("/doctor")[1]
        with gone(urls[1]):
            assert ask("/v1/runs")[0]["Holdfast-Shards-Away"] == "1"
            assert "without shard 1, which is away" in ask("/runs")[1]


def test_commands_for_one_database_say_so(cli: CommandLine) -> None:
    refused = cli("worker", SAMPLE, "--once", code=exits.USAGE).stderr
    assert "--once is for one database" in refused
    assert "dev is for one database" in cli("dev", SAMPLE, code=exits.USAGE).stderr
    assert "sweep is for one database" in cli("sweep", code=exits.USAGE).stderr
    assert "nothing to delete" in cli("sweep", "--dry-run").stdout


def test_each_is_migrated(
    database_server: DatabaseServer, empty_database_url: str, database_url: str
) -> None:
    cli = CommandLine(f"{database_url} {empty_database_url}")
    first, second = cli("migrate").stdout.splitlines()
    assert database_url in first
    assert first.endswith("up to date")
    assert empty_database_url in second
    assert "applied" in second
    assert [each["migrations"] for each in cli.json("migrate")] == [[], []]


def test_none_is_migrated_if_one_cannot_be_reached(empty_database_url: str) -> None:
    """Fault: those before it were migrated, and those after it were not."""
    away = "postgresql://nobody@127.0.0.1:1/none"
    refused = CommandLine(f"{empty_database_url} {away}")("migrate", code=exits.DATABASE)
    assert refused.stdout == ""
    assert "would apply" in CommandLine(empty_database_url)("migrate", "--dry-run").stdout


def test_what_is_left_of_a_migration_that_fails_in_the_middle_is_said(
    database_server: DatabaseServer, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PATIENCE_SECONDS", "_MIGRATION_SECONDS", "_WAIT_SECONDS"):
        monkeypatch.setattr(f"holdfast.database.migrate.{name}", 0.05)
    with database_server.database(migrated=False) as second, psycopg.connect(second) as other:
        other.execute("select pg_advisory_lock(hashtext('holdfast.migrate'))")
        cli = CommandLine(f"{empty_database_url} {second}")
        refused = cli("migrate", "--json", code=exits.DATABASE)
        assert [each["functions"] for each in json.loads(refused.stdout)] == [True]
        assert f"left as they were: {second}" in refused.stderr
    assert "up to date" in CommandLine(empty_database_url)("migrate").stdout


def test_doctor_examines_each(cli: CommandLine, urls: list[str]) -> None:
    found = cli.json("doctor", code=exits.OK)
    told = [each["message"] for each in found if each["check"] == "shard"]
    assert told == [
        "shard 0: one of 2",
        "shard 1: one of 2",
        "database 3: spare: it is not used until it is added",
    ]
    assert "`holdfast shards add`" in cli("doctor").stdout
    with gone(urls[1]):
        found = cli.json("doctor", code=exits.FAILED)
        [failed] = [each["message"] for each in found if each["level"] == "fail"]
        assert failed.startswith("shard 1: ")


def kill_worker_of(process: Process, shard: int) -> None:
    """Kill the child that serves a shard."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == process.pid and words[-3:-1] == [b"--shard", str(shard).encode()]:
            os.kill(int(entry.name), signal.SIGKILL)
            return
    raise AssertionError(f"nobody serves shard {shard}")


def start_everywhere(cli: CommandLine, count: int) -> None:
    """Start runs and wait for them, until each of the shards has had one."""
    for number in range(100):
        assert cli.json("start", "double", str(number), "--wait")["state"] == "completed"
        if all(each["runs"] for each in shards(cli)[:count]):
            return
    raise AssertionError(shards(cli))


def test_a_worker_is_kept_for_each_shard(cli: CommandLine, tmp_path: Path) -> None:
    """One that is killed is replaced, and a spare is served once it is a shard."""
    environment = {"HOLDFAST_DATABASE_URL": cli.url}
    with running(tmp_path / "log", "worker", SAMPLE, env=environment) as worker:
        worker.await_text("keeps 3 worker processes, 1 for each of 3 databases")
        worker.await_text("ready: queues default", times=2)
        worker.await_text("the worker of shard 2 waits: database 3 is spare")
        start_everywhere(cli, 2)
        assert shards(cli)[2]["state"] == "spare"  # although a worker waits for it
        kill_worker_of(worker, 1)
        worker.await_text("was killed by SIGKILL; another starts")
        worker.await_text("ready: queues default", times=3)
        until(lambda: len(cli.json("workers")) == 2 or None, "the dead worker to be signed off")
        cli("shards", "add")
        worker.await_text("ready: queues default", times=4)
        assert [each["shard"] for each in cli.json("workers")] == [0, 1, 2]
        assert cli("workers").stdout.split()[:3] == ["worker", "shard", "queues"]
        start_everywhere(cli, 3)
        assert worker.text().count("waits: database 3 is spare") == 1
        worker.send(signal.SIGTERM)
        assert worker.ended() == exits.OK
    assert cli.json("workers") == []


def test_a_shard_that_is_away_stops_no_other(
    cli: CommandLine, urls: list[str], tmp_path: Path
) -> None:
    environment = {"HOLDFAST_DATABASE_URL": " ".join(urls[:2])}
    arguments = ("worker", SAMPLE, "--processes", "2")
    with ExitStack() as absence:
        absence.enter_context(gone(urls[1]))
        with running(tmp_path / "log", *arguments, env=environment) as worker:
            worker.await_text("keeps 4 worker processes, 2 for each of 2 databases")
            worker.await_text("ready: queues default", times=2)
            worker.await_text("the worker of shard 1 waits: database 2 is away", times=2)
            absence.close()
            worker.await_text("ready: queues default", times=4)
            start_everywhere(cli, 2)


def test_an_embedded_database_is_no_shard(
    tmp_path: Path, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(homes.make(tmp_path)))
    cli = CommandLine("")
    refused = cli("shards", "add", code=exits.USAGE).stderr
    assert "an embedded database is an engine alone" in refused
    assert "alone" in cli("shards", "list").stdout
