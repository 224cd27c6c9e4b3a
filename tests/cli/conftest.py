"""A command line on a database of the test's own, and a worker where one is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.root import holdfast
from tests.cli.hand import Hand
from tests.cli.processes import SAMPLE, running, until
from tests.sessions import runs_share_the_loop as runs_share_the_loop


class CommandLine:
    """`holdfast …` in this process, with the database in the environment."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> Result:
        """Run a command and check its exit code."""
        # Without a seed a worker would start this process again.
        environment = {"HOLDFAST_DATABASE_URL": self.url, "PYTHONHASHSEED": "0"}
        result = CliRunner(env=environment).invoke(
            holdfast, arguments, input=stdin, catch_exceptions=False
        )
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command that answers in JSON."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def start(self, workflow: str, input: str = "null", *options: str) -> str:
        """Start a run and return its id."""
        return self("start", workflow, input, *options).stdout.strip()

    def state(self, run: str) -> str:
        return str(self.json("runs", "show", run)["state"])

    def await_state(self, run: str, state: str) -> None:
        until(lambda: self.state(run) == state or None, f"{run} to be {state}")


@pytest.fixture
def cli(database_url: str) -> CommandLine:
    """The command line on a database without workers; that of the tests' app has gone."""
    Hand(database_url).known()
    return CommandLine(database_url)


@pytest.fixture
def hand(cli: CommandLine) -> Hand:
    """A worker on the database of `cli` that does what the test says."""
    return Hand(cli.url)


@pytest.fixture(scope="module")
def served(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CommandLine]:
    """The command line on a database with one worker of the sample app."""
    log: Path = tmp_path_factory.mktemp("worker") / "log"
    arguments = ["--database", module_database_url, "worker", SAMPLE, "--grace", "0.1"]
    with running(log, *arguments) as worker:
        worker.await_text("ready: queues default")
        yield CommandLine(module_database_url)
