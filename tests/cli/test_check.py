"""`holdfast check`, `replay`, `runs export` and `runs stack`: the code at hand and its logs."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from holdfast import App, local
from holdfast.cli import exits
from holdfast.cli.process.loading import AppReference
from holdfast.retention.reading import write_run
from holdfast.testing import Environment
from tests.cli.conftest import CommandLine
from tests.cli.processes import call
from tests.store.test_grants import url_of

SHOP = """\
import asyncio

from holdfast import App, Context

app = App("shop")


@app.step
async def {step}(item: str, at: str) -> str:
    return f"paid {{item}}"


async def pack(ctx: Context, box: int) -> str:
    return await ctx.wait_for_signal("packed")


@app.workflow
async def order(ctx: Context, item: str) -> str:
    receipt = await {step}(item, ctx.now().isoformat())
    print("the code runs")
    await asyncio.gather(pack(ctx, 1), pack(ctx, 2))
    return receipt
"""
CALL = SHOP[: SHOP.index("receipt = ")].count("\n") + 1
NOWHERE = CommandLine("postgresql://nobody@localhost:1/none")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the path of modules, to which a command adds that of its app."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def shop(directory: Path, step: str = "pay", source: str = SHOP) -> str:
    """Write the app, as a module that was not imported before."""
    file = directory / f"shop_{uuid4().hex}.py"
    file.write_text(source.format(step=step))
    return str(file)


def load(file: str) -> App:
    return AppReference.parse(file).load()


async def waiting(file: str, url: str) -> str:
    """Start a run of the app in a database, and let it wait."""
    async with local(load(file), database=url) as client:
        handle = await client.start("order", "lamp", key="7")
        async with asyncio.timeout(60):
            while (await handle.get()).state != "waiting":
                await asyncio.sleep(0.01)
    return str(handle.run_id)


async def recorded(file: str, item: str) -> str:
    """Return an exported run that waits."""
    async with Environment(load(file), replay=False) as env:
        handle = await env.client.start("order", item)
        await env.wait_until_idle()
        run = (await handle.get()).record
        log = [entry.event for entry in await env.client.runs.log(handle.run_id)]
    return write_run(run, log) + "\n"


def exported(app: str, item: str, directory: Path) -> str:
    file = directory / f"{item}.jsonl"
    file.write_text(asyncio.run(recorded(app, item)))
    return str(file)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """An exported run of the app."""
    return exported(shop(tmp_path), "lamp", tmp_path)


def test_a_role_that_may_only_read_checks_open_runs(cli: CommandLine, tmp_path: Path) -> None:
    old, new = shop(tmp_path), shop(tmp_path, "charge")
    run = asyncio.run(waiting(old, cli.url))
    role = f"reader_{uuid4().hex[:8]}"
    with psycopg.connect(cli.url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")
        connection.execute(f"grant usage on schema holdfast to {role}")
        connection.execute(f"grant select on all tables in schema holdfast to {role}")
        state = "select (select json_agg(t) from holdfast.{0} t)::text"
        before = [connection.execute(state.format(t)).fetchone() for t in ("tasks", "events")]
        reader = CommandLine(url_of(cli.url, role))

        report = reader.json("check", new, code=exits.FAILED)
        [found] = report["findings"]
        assert (found["run_id"], found["runs"], found["index"]) == (run, 1, 1)
        assert found["run_ids"] == [run]
        assert (Path(found["file"]).name, found["line"]) == (Path(new).name, CALL)
        assert found["workflow"] == "shop/order@1"
        annotated = reader("check", new, "--format", "github", code=exits.FAILED).stdout
        assert annotated.startswith("::error file=")
        assert f",line={CALL},title=1 run of shop/order@1 would be stuck::run {run}" in annotated
        told = reader("check", new, code=exits.FAILED)
        assert f":{CALL}: 1 run of shop/order@1 would be stuck\n" in told.stdout
        assert "checked 1 run: 1 run would not continue" in told.stderr
        assert reader.json("check", old, "--since", "1h") == {
            "checked": 1, "findings": [], "unchecked": []
        }  # fmt: skip

        file = tmp_path / "logs" / "7.jsonl"
        reader("runs", "export", "order/7", "-o", str(file))
        reader("runs", "export", "order/7", "-o", str(file), code=exits.USAGE)
        reader("runs", "export", "order/7", "-o", str(file / "8"), code=exits.USAGE)
        assert reader("runs", "export", run).stdout == file.read_text()
        after = [connection.execute(state.format(t)).fetchone() for t in ("tasks", "events")]
        assert after == before
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")
    assert NOWHERE.json("check", new, "--logs", str(file.parent), code=exits.FAILED) == report


def test_logs_are_checked_in_several_processes(log: str, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text(Path(log).read_text()[:-50])
    changed, logs = shop(tmp_path, "charge"), ("--logs", str(tmp_path))
    told = NOWHERE("check", shop(tmp_path), *logs, code=exits.USAGE)
    assert "broken.jsonl:1 was not checked: it is cut off" in told.stderr
    assert "checked 1 run: all continue" in told.stderr
    report = NOWHERE.json("check", changed, *logs, "--jobs", "2", code=exits.FAILED)
    assert (report["checked"], len(report["findings"]), len(report["unchecked"])) == (1, 1, 1)


def test_what_cannot_be_checked_is_refused(log: str, tmp_path: Path) -> None:
    app, empty = shop(tmp_path), tmp_path / "empty"
    empty.mkdir()
    (blank := tmp_path / "blank").mkdir()
    (blank / "order.jsonl").write_text("\n")
    for options in (
        ("--logs", str(empty)),
        ("--logs", str(blank)),
        ("--logs", str(blank / "order.jsonl"), "--jobs", "2"),
        ("--logs", str(tmp_path / "missing")),
        ("--logs", log, "--sample", "3"),
        ("--logs", log, "--workflow", "ordre"),
        ("--sample", "3", "--all"),
    ):
        NOWHERE("check", app, *options, code=exits.USAGE)
    told = NOWHERE("check", app, "--logs", str(blank), code=exits.USAGE).stderr
    assert f"nothing was checked: {blank} has no run" in told
    (blank / "other.jsonl").write_text(Path(log).read_text())
    NOWHERE("check", app, "--logs", str(blank))
    NOWHERE("check", app, code=exits.DATABASE)
    NOWHERE("runs", "stack", log, shop(tmp_path, source="raise OSError"), code=exits.USAGE)
    NOWHERE("replay", log, app, "--until", "99", code=exits.USAGE)
    both = tmp_path / "both.jsonl"
    both.write_text(Path(log).read_text() * 2)
    assert "has 2 runs" in NOWHERE("replay", str(both), app, code=exits.USAGE).output


def test_a_stack_shows_each_task_and_what_it_awaits(log: str, tmp_path: Path) -> None:
    [order] = NOWHERE.json("runs", "stack", log, shop(tmp_path))
    assert order["awaits"] == "tasks pack, pack#2"
    assert [line.partition(" in ")[2] for line in order["lines"]] == ["order"]
    assert [child["awaits"] for child in order["children"]] == ["signal 'packed'"] * 2
    shown = NOWHERE("runs", "stack", log, shop(tmp_path)).stdout
    assert "  pack#2 awaits signal 'packed'\n" in shown
    NOWHERE("runs", "stack", log, shop(tmp_path, "charge"), code=exits.FAILED)


def test_a_replay_says_where_each_entry_led_and_where_the_code_differs(
    log: str, tmp_path: Path
) -> None:
    told = NOWHERE("replay", log, shop(tmp_path)).stdout.splitlines()
    assert told[0].startswith("   0 WorkflowStarted: ")
    assert f":{CALL} in order" in told[0]
    for until in ("1", "pay"):
        shown = NOWHERE("replay", log, shop(tmp_path), "--until", until, "--locals").stdout
        assert "receipt = 'paid lamp'" in shown
        assert "box = 2" in shown
    unknown = NOWHERE("replay", log, shop(tmp_path), "--until", "pya", code=exits.USAGE)
    assert "no entry of the log has the key 'pya'; its keys: pay" in unknown.stderr
    differs = NOWHERE("replay", log, shop(tmp_path, "charge"), code=exits.FAILED)
    assert f":{CALL} in order: the run would be stuck (entry 1)" in differs.stderr


def test_a_run_is_not_replayed_with_the_code_of_another_app(log: str, tmp_path: Path) -> None:
    other = shop(tmp_path, source=SHOP.replace('App("shop")', 'App("store")'))
    for command in (("replay",), ("runs", "stack")):
        told = NOWHERE(*command, log, other, code=exits.USAGE).stderr
        assert " is one of app 'shop', and this is 'store'" in told


def test_a_replay_is_debugged(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the line that an entry leads to, and at breakpoints of the code itself."""
    app, one_entry = shop(tmp_path), ("--until", "1", "--pdb")
    debugged = call("replay", log, app, *one_entry, stdin="n\np receipt\nc\n")
    assert "'paid lamp'" in debugged.stdout
    assert "pack#2 awaits signal" in debugged.stdout
    for entry in ((), ("--until", "0"), ("--until", "1")):
        left = call("replay", log, app, *entry, "--pdb", stdin="q\n")
        assert (left.returncode, "awaits" in left.stdout) == (0, False), left.stderr
        assert re.findall(r"^> (.*)\(\d+\)order\(\)", left.stdout, re.M) == [app]
        assert "Traceback" not in left.stderr
    reached: list[str] = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: reached.append(sys._getframe(1).f_code.co_name)
    )
    NOWHERE("replay", log, shop(tmp_path, source=SHOP.replace("print(", "breakpoint() or print(")))
    assert reached == ["order"]


def test_a_diff_names_the_first_entry_that_differs(log: str, tmp_path: Path) -> None:
    app = shop(tmp_path)
    other = exported(app, "vase", tmp_path)
    assert "the first 0 entries are the same" in NOWHERE("replay", log, app, "--diff", other).stdout
    line = json.loads(Path(other).read_text())
    line["run"]["input"] = "lamp"
    Path(other).write_text(json.dumps(line, separators=(",", ":")))
    assert NOWHERE.json("replay", log, app, "--diff", other)["index"] == 1
    told = NOWHERE("replay", log, app, "--diff", other).stdout
    assert "the first 1 entries are the same; entry 1 is not" in told
    assert f":{CALL} in order" in told
    assert "both logs have the same" in NOWHERE("replay", log, app, "--diff", log).stdout
