"""Which error ends a command with which code, and how it reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import errors
from holdfast.cli import exits
from holdfast.cli.root import holdfast
from holdfast.database import schema
from tests.cli.conftest import CommandLine
from tests.cli.processes import call, running, until
from tests.proxy import Proxy


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DatabaseUnavailable(), exits.DATABASE),
        (errors.SchemaMissing(), exits.DATABASE),
        (errors.EmbeddedServerError(), exits.DATABASE),
        (errors.ConfigurationError(), exits.USAGE),
        (errors.InvalidInput(), exits.USAGE),
        (errors.UnknownWorkflow(), exits.USAGE),
        (errors.RunNotFound(uuid4()), exits.NOT_FOUND),
        (errors.ResultTimeout(uuid4(), 1), exits.TIMED_OUT),
        (errors.RunEnded(uuid4(), "failed"), exits.FAILED),
        (exits.Refusal("no", exits.NOT_FOUND), exits.NOT_FOUND),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_kind_of_error_has_its_code(error: errors.HoldfastError, code: int) -> None:
    assert exits.code_for(error) == code


def test_a_database_that_does_not_answer_is_one_line_and_code_3() -> None:
    done = call("--database", "postgresql://localhost:1/shop", "runs", "list")
    assert done.returncode == exits.DATABASE
    assert done.stderr.startswith("holdfast: postgresql://localhost:1/shop: no server answers")
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_modules_are_loaded_is_quiet() -> None:
    """It is the first half second of each command."""
    program = """
import sys
from holdfast.cli import main
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast.cli.framework":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (exits.INTERRUPTED, "", "\n")


@pytest.mark.parametrize(
    "arguments",
    [("worker",), ("worker", "--once"), ("server", "--app"), ("mcp", "--app")],
    ids=" ".join,
)
def test_sigterm_while_the_app_is_imported_is_code_0(
    cli: CommandLine, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """An import may take a minute, and code that is imported catches what is raised in it."""
    (tmp_path / "slow.py").write_text("""
import time
print("imported")
open("began", "w").close()
while True:
    try:
        time.sleep(60)
    except BaseException:
        print("caught")
""")
    words = (*arguments, "slow:app", "--database", cli.url)
    with running(tmp_path / "log", *words, cwd=tmp_path) as process:
        until(lambda: (tmp_path / "began").exists() or None, "the import")
        process.send(signal.SIGTERM)
        assert (process.ended(), process.text()) == (exits.OK, "imported\n")


def test_a_url_without_a_scheme_is_code_3() -> None:
    done = call("runs", "list", env={"HOLDFAST_DATABASE_URL": "localhost/shop"})
    assert done.returncode == exits.DATABASE
    assert "no scheme" in done.stderr


def test_debug_shows_the_traceback() -> None:
    done = call("--database", "localhost/shop", "runs", "list", "--debug")
    assert "Traceback" in done.stderr
    assert "InvalidDatabaseURL" in done.stderr


def test_a_database_without_the_schema_says_what_to_run(empty_database_url: str) -> None:
    """T12. A missing schema is a clear error at start."""
    result = CommandLine(empty_database_url)("runs", "list", code=exits.DATABASE)
    assert "run `holdfast migrate`" in result.stderr


def test_an_unknown_run_is_code_4(cli: CommandLine) -> None:
    for reference in (str(uuid4()), "abcd1234", "pack/nobody"):
        cli("runs", "show", reference, code=exits.NOT_FOUND)


def test_a_text_that_cannot_be_a_run_is_a_usage_error(cli: CommandLine) -> None:
    result = cli("runs", "show", "order seven", code=exits.USAGE)
    assert "workflow/key" in result.stderr


def test_waiting_longer_than_allowed_is_code_5(cli: CommandLine) -> None:
    run = cli.start("double", "1")
    result = cli("runs", "wait", run, "--timeout", "50ms", code=exits.TIMED_OUT)
    assert "it continues" in result.stderr


def test_errors_are_json_if_answers_are(cli: CommandLine) -> None:
    unknown = str(uuid4())
    for arguments in (("runs", "show", unknown, "--json"), ("--json", "runs", "show", unknown)):
        error = json.loads(cli(*arguments, code=exits.NOT_FOUND).stderr)["error"]
        assert (error["type"], error["exit_code"]) == ("RunNotFound", exits.NOT_FOUND)
        assert unknown in error["message"]


def test_errors_of_usage_are_json_too(cli: CommandLine) -> None:
    result = cli("runs", "list", "--limit", "many", "--json", code=exits.USAGE)
    assert "'many'" in json.loads(result.stderr)["error"]["message"]


def test_a_misspelt_command_is_answered_with_the_nearest(cli: CommandLine) -> None:
    assert "Did you mean list" in cli("runs", "lst", code=exits.USAGE).stderr
    assert "Did you mean runs why or queue why?" in cli("why", "3f9a", code=exits.USAGE).stderr
    assert "Did you mean runs list or" in cli("list", code=exits.USAGE).stderr
    assert "Did you mean worker or workers?" in cli("worked", code=exits.USAGE).stderr


@pytest.mark.parametrize("how", ["reset", "shutdown"])
@pytest.mark.parametrize("arguments", [("runs", "list"), ("queue", "list"), ("migrate",)])
def test_a_connection_lost_in_the_check_of_the_schema_is_one_line_and_code_3(
    database_url: str, monkeypatch: pytest.MonkeyPatch, how: str, arguments: tuple[str, ...]
) -> None:
    """The connection stands when the check begins, and is gone before its answer."""
    read = schema._one

    async def lose(connection: Any, query: str) -> Any:
        if how == "reset":
            proxy.cut()
        else:
            with psycopg.connect(database_url) as other:
                process = connection.get_server_pid()
                other.execute("select pg_terminate_backend(%s, 30000)", (process,))
        return await read(connection, query)

    monkeypatch.setattr(schema, "_one", lose)
    with Proxy(database_url) as proxy:
        done = CommandLine(proxy.url)(*arguments, code=exits.DATABASE)
    assert "the connection was lost" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["docs", "list", "--json"]])
def test_output_that_cannot_be_written_is_one_line_and_code_1(
    arguments: list[str], buffered: bool
) -> None:
    """Fault: it was a traceback of 40 lines, or code 120 after what the interpreter said."""
    begin = [sys.executable, *([] if buffered else ["-u"]), "-m", "holdfast", *arguments]
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            begin, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == exits.FAILED
    [line] = done.stderr.splitlines()
    assert line.startswith("holdfast: the output cannot be written: No space left on device.")


def test_nothing_is_said_if_nobody_reads_the_output() -> None:
    """`| head -1` has what it wants; `>&-` wants nothing."""
    for shell, code in (("| true; exit ${PIPESTATUS[0]}", exits.FAILED), (">&-", exits.OK)):
        for arguments in ("--version", "docs list"):
            command = f"{sys.executable} -u -m holdfast {arguments} {shell}"
            done = subprocess.run(
                ["/bin/bash", "-c", command], capture_output=True, text=True, check=False
            )
            assert done.stderr == ""
            assert done.returncode in (code, exits.OK)  # `true` may end after the output


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list", "--data"),
        ("check", "--logs"),
        ("init", "shop"),
        ("runs", "export", "checkout/a", "--output"),
        ("archive", "export", "checkout/a", "--output"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
@pytest.mark.parametrize("name", ["x" * 5000, "a\ud800"], ids=["long", "surrogate"])
def test_a_path_that_no_file_can_have_is_a_wrong_value(command: tuple[str, ...], name: str) -> None:
    done = CliRunner().invoke(holdfast, [*command, name])
    assert (done.exit_code, type(done.exception)) == (exits.USAGE, SystemExit), done.output
    assert "Invalid value for" in done.output


@pytest.mark.parametrize("app", ["x" * 5000 + ".py", "~no-such-user/shop.py"], ids=["long", "user"])
def test_an_app_at_a_path_that_no_file_can_have_is_not_there(app: str) -> None:
    done = CliRunner().invoke(holdfast, ["worker", app])
    assert (done.exit_code, type(done.exception)) == (exits.USAGE, SystemExit), done.output
    assert "there is no file" in done.output


def test_a_run_to_replay_that_no_file_can_be_is_looked_up(cli: CommandLine, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text("from holdfast import App\n\napp = App('shop')\n")
    told = cli("replay", "x" * 900, str(app), code=exits.USAGE)
    assert "is not a run" in told.stderr


@pytest.mark.parametrize("results", [False, True], ids=["schema", "results"])
@pytest.mark.parametrize("role", ["", "a\udcff"], ids=["empty", "surrogate"])
def test_a_name_that_no_role_can_have_is_refused(
    cli: CommandLine, role: str, results: bool
) -> None:
    where = ["--results", cli.url] if results else []
    done = CliRunner().invoke(
        holdfast, ["--database", cli.url, "migrate", *where, f"--grant={role}"]
    )
    assert (done.exit_code, type(done.exception)) == (exits.USAGE, SystemExit), done.output
    assert "role" in done.output


def test_options_of_a_url_without_one_are_a_usage_error(cli: CommandLine, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    for each in (["--allow-inner"], ["--secret-file", str(secret)]):
        told = cli("topics", "subscribe", "a", "--queue", "q", *each, code=exits.USAGE)
        assert "are options of a --url" in told.stderr
