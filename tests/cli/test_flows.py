"""Runs of flows on the command line."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from holdfast.cli import exits
from tests.cli.conftest import CommandLine
from tests.cli.processes import call, command, environment


def test_show_draws_the_steps_of_a_run(served: CommandLine) -> None:
    run = served.start("trip", "[1, 2, 3]", "--wait")
    assert run == '{"total":12}'
    [shown] = served.json("runs", "list", "--workflow", "trip", "--limit", "1")["runs"]
    assert shown["kind"] == "flow"
    lines = served("runs", "show", shown["run_id"]).stdout.splitlines()
    assert lines[1].split() == ["flow", "sample/trip@1"]
    steps = [" ".join(line.split()) for line in lines]
    assert any(line.startswith("1 ✓ site completed") for line in steps)
    assert any(
        line.startswith("2 ✓ page[] completed ██████████ 3/3") and "← each of site" in line
        for line in steps
    )
    assert any("↷ rare skipped" in line and "condition was not met" in line for line in steps)
    assert any(line.startswith("3 ✓ total completed") for line in steps)


def test_show_answers_with_the_steps_in_json(served: CommandLine) -> None:
    served("start", "trip", "[1]", "--key", "json", "--wait")
    steps = {step["step"]: step for step in served.json("runs", "show", "trip/json")["steps"]}
    assert list(steps) == ["site", "page", "rare", "total"]
    page, rare = steps["page"], steps["rare"]
    assert (page["state"], page["kind"], page["deps"]) == ("completed", "map", ["site"])
    assert (page["tasks"], page["done"], page["output"]) == (1, 1, [2])
    assert page["started_at"] <= page["ended_at"]
    assert (rare["state"], rare["skip_reason"]) == ("skipped", "condition_unmet")


def test_a_run_of_a_workflow_has_no_steps_of_a_flow(served: CommandLine) -> None:
    served("start", "double", "1", "--key", "plain", "--wait")
    shown = served.json("runs", "show", "double/plain")
    assert "steps" not in shown
    assert shown["kind"] == "workflow"


def test_a_failed_step_shows_its_error_and_its_attempts(served: CommandLine) -> None:
    served("start", "trip", "[1, -1]", "--key", "bad", "--wait", code=exits.FAILED)
    shown = " ".join(served("runs", "show", "trip/bad").stdout.split())
    assert "✗ page[] failed" in shown
    assert "ValueError: no page -1" in shown
    assert "· total not begun" in shown
    said = served("runs", "why", "trip/bad").stdout
    assert "step page:1 failed: ValueError: no page -1\n" in said
    assert "  step page failed after 2 attempts\n" in said
    assert "holdfast runs retry" in said


def test_a_wait_without_a_terminal_writes_a_line_for_each_change(served: CommandLine) -> None:
    said = served("start", "trip", "[1, 2]", "--wait")
    assert said.stdout.strip() == '{"total":6}'
    lines = [line.split()[2:] for line in said.stderr.splitlines() if line.startswith("+")]
    words = [" ".join(line) for line in lines]
    assert any("site completed after" in line for line in words)
    assert any("page[] completed" in line and "2/2" in line for line in words)
    assert any("rare skipped its condition was not met" in line for line in words)
    assert any("total completed after" in line for line in words)


def test_a_wait_on_a_terminal_draws_the_steps(served: CommandLine) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command("--database", served.url, "start", "trip", "[5]", "--wait"),
        env=environment({"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}),
        stderr=theirs,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    assert done.stdout.strip() == b'{"total":10}'
    drawn = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "✓" in drawn
    assert "page[]" in drawn
    assert "← each of site" in drawn


def test_why_says_that_no_worker_serves_a_step(cli: CommandLine, served: CommandLine) -> None:
    served("start", "trip", "[1]", "--queue", "nobody", "--key", "lost")
    said = served("runs", "why", "trip/lost").stdout
    assert "step site has been due for" in said
    assert "no live worker serves sample/trip@1 on queue 'nobody'" in said
    assert "holdfast worker MODULE:APP --queue nobody" in said


def test_a_completed_run_is_retried_from_a_step(served: CommandLine) -> None:
    served("start", "trip", "[4]", "--key", "done", "--wait")
    refused = served("runs", "retry", "trip/done", code=exits.FAILED).stdout
    assert "give a step from which it is to run again" in refused
    [answer] = served.json("runs", "retry", "trip/done", "--from-step", "total")
    served.await_state(answer["new_run_id"], "completed")
    shown = served.json("runs", "show", answer["new_run_id"])
    assert shown["output"] == {"total": 8}
    assert [entry["key"] for entry in shown["log"] if entry["type"] == "FlowStepCompleted"][-1] == (
        "total"
    )


def test_a_run_is_forked_with_another_result(served: CommandLine) -> None:
    served("start", "trip", "[1, 2]", "--key", "forked", "--wait")
    fork = served("runs", "fork", "trip/forked", "--result", "page=[10,20]").stdout.strip()
    assert served.json("runs", "wait", fork)["output"] == {"total": 30}
    fork = served("runs", "fork", "trip/forked", "--input", "[4]").stdout.strip()
    assert served.json("runs", "wait", fork)["output"] == {"total": 8}
    refused = served("runs", "fork", "trip/forked", "--result", "pag=1", code=exits.FAILED)
    assert "no step 'pag': there are site, page, rare, total" in refused.stderr
    refused = served("runs", "fork", "trip/forked", "--index", "1", code=exits.USAGE)
    assert "a flow's log is not replayed" in refused.stderr


def test_a_step_is_given_for_named_runs_only(cli: CommandLine) -> None:
    said = cli("runs", "retry", "--workflow", "trip", "--from-step", "total", code=exits.USAGE)
    assert "--from-step is for runs that are named" in said.stderr


FLOW = """
from holdfast import App

app = App("shop")
parcel = app.flow("parcel", input=int)


@parcel.step(OPTIONS)
async def pack(run: int) -> int:
    return run


@parcel.step(queue="big")
async def send(pack: int) -> int:
    return pack
"""


def write(folder: Path, options: str = "") -> str:
    text = FLOW.replace("(OPTIONS)", f"({options})" if options else "")
    (folder / "parcels.py").write_text(text)
    return str(folder / "parcels.py")


def test_flows_are_compiled_checked_and_replaced(cli: CommandLine, tmp_path: Path) -> None:
    path = write(tmp_path)
    said = process(cli, "flows", "compile", path, "--check", code=exits.FAILED)
    assert "shop/parcel@1: the database does not have it" in said
    assert process(cli, "flows", "compile", path) == "shop/parcel@1: compiled\n"
    assert process(cli, "flows", "compile", path, "--check").endswith("has the same\n")
    write(tmp_path, 'timeout="30s"')
    said = process(cli, "flows", "compile", path, "--check", code=exits.FAILED)
    assert "step pack: timeout 30 s in the code, the flow's in the database" in said
    process(cli, "flows", "compile", path, code=exits.USAGE)
    said = process(cli, "flows", "compile", path, "--replace")
    assert said == (
        "shop/parcel@1: replaced; 0 runs terminated\n"
        "  step pack: timeout 30 s in the code, the flow's in the database\n"
    )


def test_flows_are_listed_and_drawn(cli: CommandLine, tmp_path: Path) -> None:
    path = write(tmp_path)
    process(cli, "flows", "compile", path)
    header, row = cli("flows", "list").stdout.splitlines()
    assert header.split()[:3] == ["flow", "version", "steps"]
    assert row.split()[:5] == ["shop/parcel", "1", "2", "0", "code"]
    (listed,) = cli.json("flows", "list")
    assert (listed["name"], listed["open_runs"]) == ("shop/parcel", 0)
    first, pack, send = cli("flows", "show", "parcel").stdout.splitlines()
    assert first == "shop/parcel@1  queue default, 3 attempts, base_delay 5 s, timeout 60 s"
    assert pack.split() == ["1", "pack", "←", "run"]
    assert send.split() == ["2", "send", "queue", "big", "←", "pack"]
    shape = cli.json("flows", "show", "shop/parcel", "--flow-version", "1")
    assert [step["slug"] for step in shape["steps"]] == ["pack", "send"]
    assert cli("flows", "show", "parcel", "--mermaid").stdout.startswith("flowchart TD\n")
    unknown = cli("flows", "show", "nothing", code=exits.NOT_FOUND)
    assert "did you mean" not in unknown.stderr
    for misspelled in ("parcl", "shop/parcl", "shp/parcel"):
        unknown = cli("flows", "show", misspelled, code=exits.NOT_FOUND)
        assert f"no flow {misspelled} (did you mean shop/parcel?)" in unknown.stderr
    other = cli("flows", "show", "parcel", "--flow-version", "7", code=exits.NOT_FOUND)
    assert "no version 7 of flow parcel: it has 1" in other.stderr


def test_a_flow_is_deleted_when_it_is_confirmed(cli: CommandLine, tmp_path: Path) -> None:
    path = write(tmp_path)
    process(cli, "flows", "compile", path)
    cli("start", "parcel", "1")
    cli("flows", "delete", "parcel", stdin="n\n", code=exits.INTERRUPTED)
    said = cli("flows", "delete", "parcel", "--yes", code=exits.FAILED)
    assert "FlowInUse" not in said.stderr
    said = cli("flows", "delete", "parcel", "--terminate", stdin="y\n")
    assert said.stdout == "flow shop/parcel deleted, with 1 run\n"
    cli("flows", "delete", "parcel", "--yes", code=exits.NOT_FOUND)
    assert "no flows in" in cli("flows", "list").stderr


def test_a_start_warns_of_each_queue_of_a_flow_that_nobody_serves(
    cli: CommandLine, tmp_path: Path
) -> None:
    path = write(tmp_path, 'queue="small"')
    process(cli, "flows", "compile", path)
    cli("queues", "pause", "small")
    said = cli("start", "parcel", "1").stderr
    assert "no live worker serves shop/parcel@1 on queue 'big'" in said
    assert "no live worker serves shop/parcel@1 on queue 'small'" in said
    assert "on queue 'default'" not in said
    assert "the run waits for `holdfast queues resume small`" in said


def process(cli: CommandLine, *arguments: str, code: int = 0) -> str:
    """Run a command in a process of its own: it imports an app."""
    done = call("--database", cli.url, *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout
