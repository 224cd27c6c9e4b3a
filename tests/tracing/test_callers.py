"""Spans of programs that start and signal runs, and how runs are linked to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import UUID

from holdfast.values.trace_ids import own_trace_id, run_span_id
from tests.cli.processes import environment, running
from tests.tracing.conftest import Collector, Span
from tests.tracing.test_workers import SHOP


def called(database_url: str, tmp_path: Path, env: dict[str, str]) -> tuple[UUID, UUID]:
    """Let a program start, signal and fork a run on a worker; return both ids."""
    with running(tmp_path / "log", "--database", database_url, "worker", SHOP, env=env) as worker:
        worker.await_text("ready")
        command = [sys.executable, "-m", "tests.tracing.caller", database_url]
        done = subprocess.run(
            command, env=environment(env), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        worker.popen.terminate()
        assert worker.ended() == 0, worker.text()
    run, fork = map(UUID, done.stdout.split())
    return run, fork


def one(collector: Collector, **wanted: object) -> Span:
    (span,) = collector.spans(**wanted)
    return span


def test_a_run_continues_its_callers_trace_and_is_linked_to_its_signals_and_forks(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    run_id, fork_id = called(database_url, tmp_path, collector.env)
    start = one(collector, name="workflow.start", run_id=str(run_id))
    request = one(collector, id=start["parent"])
    run = one(collector, name="workflow.run", run_id=str(run_id))
    step = one(collector, name="workflow.step", run_id=str(run_id))
    assert (request["name"], request["service"], start["kind"]) == ("request", "website", 4)
    assert {each["trace"] for each in (request, start, run, step)} == {request["trace"]}
    assert (run["parent"], step["parent"]) == (start["id"], run["id"])
    assert run["id"] == f"{run_span_id(run_id):016x}"

    sent = one(collector, name="workflow.signal", run_id=str(run_id), event="packed")
    assert run["links"] == [[sent["trace"], sent["id"]]]
    assert one(collector, id=sent["parent"])["name"] == "packing"

    fork = one(collector, name="workflow.run", run_id=str(fork_id))
    assert (fork["trace"], fork["parent"]) == (f"{own_trace_id(fork_id):032x}", "")
    assert [run["trace"], run["id"]] in fork["links"]


def test_a_run_may_be_the_root_of_its_own_trace(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    env = collector.env | {"HOLDFAST_TRACES": "root"}
    run_id, _ = called(database_url, tmp_path, env)
    start = one(collector, name="workflow.start", run_id=str(run_id))
    run = one(collector, name="workflow.run", run_id=str(run_id))
    assert (run["trace"], run["parent"]) == (f"{own_trace_id(run_id):032x}", "")
    assert start["trace"] != run["trace"]
    assert [start["trace"], start["id"]] in run["links"]
    assert one(collector, name="workflow.step", run_id=str(run_id))["parent"] == run["id"]
