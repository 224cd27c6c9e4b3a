"""Which database a command speaks of: named, repeated in hints, and not made by looking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.hand import Hand
from tests.cli.processes import call, running
from tests.clusters import Homes

APP = """
from holdfast import App, Context

app = App("draft")

@app.workflow
async def answer(ctx: Context) -> int:
    return 1
"""


def test_hints_repeat_the_options_that_say_which_database(cli: CommandLine, hand: Hand) -> None:
    run = cli.start("double", "1")
    asked = ("--database", cli.url)
    why = cli("runs", "why", run, *asked).stdout
    assert f"holdfast --database '{cli.url}' worker MODULE:APP" in why
    [command] = cli.json("runs", "why", run, *asked)["commands"]
    assert command.startswith(f"holdfast --database '{cli.url}' worker ")
    assert "holdfast worker" in cli("runs", "why", run).stdout
    missing = cli("runs", "list", "--schema", "shop", *asked, code=exits.DATABASE).stderr
    assert f"holdfast --database '{cli.url}' --schema shop migrate" in missing


def test_a_password_is_not_repeated() -> None:
    url = "postgresql://ann:secret@localhost:1/shop"
    done = call("--database", url, "runs", "list")
    assert "secret" not in done.stderr


def test_without_results_the_database_is_named(cli: CommandLine) -> None:
    name = cli.url.rpartition("?")[0].rpartition("/")[2]
    assert name
    assert name in cli("runs", "list").stderr
    assert name in cli("workers").stderr
    assert name in cli("start", "double", "1").stderr


@pytest.mark.parametrize("command", [("runs", "list"), ("doctor",), ("start", "shop/checkout")])
def test_a_command_that_only_reads_creates_no_database(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    done = call("--data", str(home), *command)
    assert done.returncode == exits.DATABASE
    assert f"there is no embedded database in {home} yet" in done.stderr
    assert not home.exists()


def test_dev_asks_before_it_migrates_a_server(empty_database_url: str, tmp_path: Path) -> None:
    """Where nobody can be asked, it says what to do; with --migrate it does it."""
    (tmp_path / "draft.py").write_text(APP)
    place = str(tmp_path / "draft.py")
    done = call("--database", empty_database_url, "dev", place, stdin="")
    assert done.returncode == exits.USAGE
    assert "give --migrate" in done.stderr
    CommandLine(empty_database_url)("runs", "list", code=exits.DATABASE)
    arguments = ["--database", empty_database_url, "dev", place, "--migrate"]
    with running(tmp_path / "log", *arguments) as dev:
        dev.await_text("ready: queues default, workflows draft/answer@1; database: ")


def test_two_projects_with_one_app_s_name_do_not_share_a_database(
    tmp_path: Path, homes: Homes
) -> None:
    home = str(homes.make(tmp_path / "home"))
    for project in ("one", "two"):
        (tmp_path / project).mkdir()
        (tmp_path / project / "draft.py").write_text(APP)
    with running(tmp_path / "log", "--data", home, "dev", "draft.py", cwd=tmp_path / "one") as dev:
        dev.await_text("ready")
        refused = call("--data", home, "dev", str(tmp_path / "two" / "draft.py"))
        assert refused.returncode == exits.USAGE
        assert f"another app named 'draft' uses this database, from {tmp_path / 'one'}" in (
            refused.stderr
        )
        assert call("--data", home, "start", "answer", "--wait", stdin="").stdout.strip() == "1"
    os.rename(tmp_path / "one", tmp_path / "three")
    with running(tmp_path / "log2", "--data", home, "dev", "draft.py", cwd=tmp_path / "two") as dev:
        dev.await_text("ready")
