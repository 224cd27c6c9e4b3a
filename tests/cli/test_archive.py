"""`holdfast archive`: what was archived is listed, shown, exported and restored."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from holdfast import Client, sweep
from holdfast.cli import exits
from holdfast.cli.process.loading import AppReference
from holdfast.codec import Reference
from tests.cli.conftest import CommandLine
from tests.cli.test_sweep import ended

VISIT = """
from holdfast import App, Context, Retry

app, failures = App("visits"), ["the first one"]


@app.step
async def note(at: str) -> str:
    return at


@app.step(retry=Retry(attempts=1))
async def admit() -> None:
    if failures:
        raise OSError(failures.pop())


@app.workflow
async def visit(ctx: Context) -> str:
    at = await note(ctx.now().isoformat())
    await admit()
    return at
"""


@pytest.fixture
def archived(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a run that is in the archive alone."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    ended(cli)
    [run] = cli.json("runs", "list")["runs"]
    assert "deleted 1 run" in cli("sweep").stdout
    return str(run["run_id"])


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_sweep_that_leaves_a_run_says_what_it_deleted(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """The place of its large payload cannot be read: the others are archived and deleted."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    ended(cli, 3)
    reference = Reference("file:///dev/null/objects", uuid4(), 64 * "0", 9).as_json()
    with psycopg.connect(cli.url) as connection:
        connection.execute(
            "update holdfast.runs set input = %s::json "
            "where run_id = (select run_id from holdfast.runs limit 1)",
            (reference,),
        )
    swept = cli(*options, "sweep", code=exits.FAILED)
    told = '{"deleted":2,"kept":0}' if options else "deleted 2 runs"
    assert told in swept.stdout
    assert "file:///dev/null/objects cannot be used" in swept.stderr


def test_archived_runs_are_listed_and_shown(cli: CommandLine, archived: str) -> None:
    """S16."""
    [entry] = cli.json("archive", "list")
    assert (entry["run_id"], entry["name"], entry["status"]) == (
        archived,
        "sample/double",
        "terminated",
    )
    assert archived in cli("archive", "list", "--workflow", "double").stdout
    assert cli.json("archive", "list", "--workflow", "other") == []
    for shown in (cli("archive", "show", archived).stdout, cli("runs", "show", archived).stdout):
        assert "terminated" in shown
        assert f"holdfast archive restore {archived}" in " ".join(shown.split())
    assert cli.json("runs", "show", archived)["state"] == "terminated"
    assert cli("runs", "log", archived).exit_code == 0
    assert "the run has no streams" in cli("runs", "stream", archived).stdout


def test_archived_runs_are_exported(cli: CommandLine, archived: str, tmp_path: Path) -> None:
    """S16. As lines of JSON."""
    line = json.loads(cli("archive", "export", archived).stdout.splitlines()[0])
    assert line["run"]["run_id"] == archived
    file = tmp_path / "out.jsonl"
    cli("archive", "export", "--workflow", "double", "--output", str(file))
    assert json.loads(file.read_text())["run"]["run_id"] == archived
    cli("archive", "export", "--workflow", "double", "--output", str(file), code=exits.USAGE)
    cli("archive", "export", code=exits.USAGE)


def test_a_run_is_restored(cli: CommandLine, archived: str) -> None:
    """S16."""
    assert f"restored {archived}" in cli("archive", "restore", archived, "--retention", "7d").stdout
    [run] = cli.json("runs", "list")["runs"]
    assert run["run_id"] == archived
    assert "deleted 0 runs" in cli("sweep").stdout


def test_a_retry_of_the_archive_is_replayed_by_its_own_clock(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: its clock was looked for in the run that it retries, which was archived as well."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/archive")
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"visits_{uuid4().hex}.py"
    file.write_text(VISIT)
    app = AppReference.parse(str(file)).load()

    async def use() -> str:
        async with Client(cli.url, app=app) as client:
            failed = await client.start("visit")
            await sweep(app, cli.url)
            retry = await client.runs.retry(failed.run_id)
            await sweep(app, cli.url)
            await retry.result()
            return str(retry.run_id)

    run_id = asyncio.run(use())
    with psycopg.connect(cli.url) as connection:
        connection.execute("update holdfast.runs set delete_after = now() - interval '1 day'")
    assert "deleted 2 runs" in cli("sweep").stdout
    cli("replay", run_id, str(file))
    exported = tmp_path / "visit.jsonl"
    cli("runs", "export", run_id, "-o", str(exported))
    cli("replay", str(exported), str(file))


def test_an_unknown_run_and_a_part_of_an_id_are_refused(cli: CommandLine, archived: str) -> None:
    cli("archive", "show", "0198c0de-0000-7000-8000-000000000000", code=exits.NOT_FOUND)
    cli("archive", "show", archived[:8], code=exits.USAGE)


def test_a_sweep_without_the_archive_uses_the_one_that_workers_have(
    cli: CommandLine, tmp_path: Path
) -> None:
    """S16. The database knows where; `forget` makes it forget."""

    place = f"file://{tmp_path}/archive"
    with psycopg.connect(cli.url) as connection:
        connection.execute("update holdfast.sweeper set archive = %s", (place,))
    ended(cli)
    cli("sweep")
    assert len(cli.json("archive", "list")) == 1
    assert cli.json("archive", "forget") == {"forgotten": place}
    cli("archive", "list", code=exits.USAGE)


def test_an_export_that_fails_leaves_no_file(
    cli: CommandLine, archived: str, tmp_path: Path
) -> None:
    """The next try was refused, as the file existed. Without its directory it was a traceback."""
    file = tmp_path / "log.jsonl"
    cli("archive", "export", str(uuid4()), "--output", str(file), code=exits.NOT_FOUND)
    assert not file.exists()
    told = cli("archive", "export", archived, "--output", f"{tmp_path}/none/log", code=1)
    assert "Could not open file" in told.stderr
