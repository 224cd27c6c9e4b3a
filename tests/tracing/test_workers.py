"""Spans of real worker processes, as a collector receives them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Client
from holdfast.values.trace_ids import attempt_span_id, own_trace_id, run_span_id
from tests.cli.processes import running
from tests.tracing.conftest import Collector

SHOP = str(Path(__file__).with_name("shop.py"))


async def test_one_trace_has_all_of_a_run_across_workers_children_and_sleeps(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    arguments = ["--database", database_url, "worker", SHOP, "--log-json"]
    with (
        running(tmp_path / "a", *arguments, env=collector.env) as one,
        running(tmp_path / "b", *arguments, env=collector.env) as two,
    ):
        one.await_text("ready")
        two.await_text("ready")
        async with Client(database_url) as client:
            others = collector.spans(name="workflow.run", workflow_name="pack")  # of other tests
            handle = await client.start("shop/order", str(tmp_path / "marker"))
            assert await handle.result(timeout="60s") == "receipt 42"
        spans = collector.trace_of(handle.run_id)
        new = collector.wait(
            lambda found: len(found) > len(others), name="workflow.run", workflow_name="pack"
        )
        (child,) = [each for each in new if each not in others]
        spans = collector.wait(lambda found: len(found) >= 11, trace=spans[0]["trace"])
        lines = [json.loads(line) for line in (one.text() + two.text()).splitlines()]

    run = next(
        span
        for span in spans
        if span["attributes"].get("workflow.name") == "order" and span["name"] == "workflow.run"
    )
    assert run["trace"] == child["trace"] == f"{own_trace_id(handle.run_id):032x}"
    assert run["id"] == f"{run_span_id(handle.run_id):016x}" == child["parent"]
    assert (run["parent"], run["service"]) == ("", "shop")
    assert run["attributes"]["workflow.status"] == "completed"

    steps = [span for span in spans if span["name"] == "workflow.step"]
    of_order = [span for span in steps if span["parent"] == run["id"]]
    seen = sorted(
        (
            span["attributes"]["step.kind"],
            span["attributes"]["step.name"].partition("/")[2],
            span["attributes"]["step.attempt"],
            span["error"],
        )
        for span in of_order
    )
    assert [(kind, attempt, failed) for kind, _, attempt, failed in seen] == [
        ("activity", 1, False),
        ("child", 1, False),
        ("sleep", 1, False),
        ("step", 1, False),
        ("step", 1, True),
        ("step", 2, False),
    ]
    failed = next(span for span in of_order if span["error"])
    assert failed["attributes"]["error.type"] == "ConnectionError"
    assert "secret" not in str(failed)
    bank = [span for span in spans if span["name"] == "bank.call"]
    charges = [span for span in steps if span["attributes"]["step.name"] == "charge"]
    assert {span["parent"] for span in bank} == {span["id"] for span in charges}
    logged = {(line["trace_id"], line["span_id"]) for line in lines if "charging" in str(line)}
    assert logged == {(span["trace"], span["id"]) for span in charges}
    link = next(span for span in of_order if span["attributes"]["step.kind"] == "child")
    assert link["links"] == [[run["trace"], child["id"]]]
    assert len({span["id"] for span in spans}) == len(spans)
    for span in of_order:
        assert run["began"] <= span["began"] <= span["ended"] <= run["ended"]


@pytest.mark.crash
async def test_a_killed_worker_leaves_each_attempt_one_span_and_the_run_one(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    arguments = ["--database", database_url, "worker", SHOP]
    marker = tmp_path / "marker"
    with running(tmp_path / "a", *arguments, env=collector.env) as first:
        first.await_text("ready")
        async with Client(database_url) as client:
            handle = await client.start("shop/lost", str(marker))
        assert first.ended() == -9
    with running(tmp_path / "b", *arguments, env=collector.env) as second:
        second.await_text("ready")
        async with Client(database_url) as client:
            assert await client.result(handle.run_id, timeout="90s") == "survived"
        spans = collector.trace_of(handle.run_id)
        second.popen.terminate()
        assert second.ended() == 0, second.text()
    spans = collector.spans(trace=spans[0]["trace"])
    assert [span["name"] for span in spans].count("workflow.run") == 1
    died = [each for each in spans if each["attributes"].get("step.name") == "dies_once"]
    assert [each["id"] for each in died] == [_span_id(handle.run_id, died[0], 2)]
    assert len({span["id"] for span in spans}) == len(spans)


def _span_id(run_id: UUID, span: dict[str, object], lease_no: int) -> str:
    key = str(span["attributes"]["holdfast.key"])  # type: ignore[index]
    return f"{attempt_span_id(run_id, key, 1, lease_no):016x}"


async def test_a_worker_that_is_killed_after_a_commit_loses_only_spans(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    """Edge case 35: the run has ended, its spans have not been sent. Nobody writes them again."""
    arguments = ["--database", database_url, "worker", SHOP]
    hoarding = collector.env | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    async with Client(database_url) as client:
        with running(tmp_path / "a", *arguments, env=hoarding) as first:
            killed = await client.start("shop/pack", 7)
            assert await killed.result(timeout="60s") == 7
            first.send(signal.SIGKILL)
            assert first.ended() == -9
        with running(tmp_path / "b", *arguments, env=collector.env) as second:
            later = await client.start("shop/pack", 8)
            assert await later.result(timeout="60s") == 8
            second.popen.terminate()
            assert second.ended() == 0, second.text()
        assert (await client.runs.get(killed.run_id)).status == "completed"
    assert collector.spans(run_id=str(killed.run_id)) == []
    names = [span["name"] for span in collector.spans(run_id=str(later.run_id))]
    assert sorted(names) == ["workflow.run", "workflow.step"]


async def test_flows_and_runs_that_are_ended_from_outside_have_their_spans(
    database_url: str, collector: Collector, tmp_path: Path
) -> None:
    arguments = ["--database", database_url, "worker", SHOP]
    with (
        running(tmp_path / "a", *arguments, env=collector.env) as one,
        running(tmp_path / "b", *arguments, env=collector.env) as two,
    ):
        one.await_text("ready")
        two.await_text("ready")
        async with Client(database_url) as client:
            trip = await client.start("shop/trip", 1)
            assert await trip.result(timeout="60s") == {"travel": 3}
            stopped = await client.start("shop/deliver", "lamp")
            await client.runs.terminate(stopped.run_id)
        (run,) = collector.wait(bool, name="workflow.run", run_id=str(trip.run_id))
        (end,) = collector.wait(bool, name="workflow.run", run_id=str(stopped.run_id))
        steps = collector.wait(lambda found: len(found) == 2, parent=run["id"])
    assert {each["attributes"]["step.name"] for each in steps} == {"book", "travel"}
    assert {each["attributes"]["step.kind"] for each in steps} == {"flow"}
    assert {each["trace"] for each in steps} == {run["trace"]}
    assert run["attributes"]["workflow.status"] == "completed"
    assert (end["attributes"]["workflow.status"], end["error"]) == ("terminated", True)
    assert len(collector.spans(name="workflow.run", run_id=str(trip.run_id))) == 1
