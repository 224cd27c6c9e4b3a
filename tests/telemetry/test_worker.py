"""What a real worker shows after it has done something of each kind."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import asyncpg
import pytest

from holdfast import Client, RunFailed
from holdfast.cli import exits
from holdfast.errors import RunTimedOut
from holdfast.store.postgres import PostgresStore
from holdfast.types.stats import ENDED
from tests.cli.processes import running, until
from tests.ports import refusing_port
from tests.telemetry.scrapes import B11, Scrape, scrape, shown_at

BAKERY = str(Path(__file__).with_name("bakery.py"))


async def bake(url: str) -> None:
    """Let runs end in each way, and wait until they have."""
    async with Client(url) as client:
        await client.queues.create("flour")
        await client.queues.send("flour", 3)
        waiting = await client.start("wait")
        assert await client.run("bread", str(waiting.run_id), timeout="60s") == 2
        assert await waiting.result(timeout="60s") == "warm"
        with pytest.raises(RunFailed, match="burnt"):
            await client.run("burn", timeout="60s")
        await client.run("roll", 1, timeout="60s")
        await end_from_outside(client, url)


async def end_from_outside(client: Client, url: str) -> None:
    """Let runs end that no worker drives: by a program, by a deadline, by SQL."""
    later = [await client.start("wait", delay="1h") for _ in range(3)]
    late = await client.start("wait", timeout="1ms")
    with pytest.raises(RunTimedOut):
        await late.result(timeout="60s")
    await later[0].terminate()
    await later[1].cancel()
    connection = await asyncpg.connect(url)
    await connection.execute("select holdfast.terminate_runs(array[$1::uuid])", later[2].run_id)
    await connection.close()


async def statistics(url: str) -> dict[str, int]:
    """How many runs of each workflow ended, as the database has it."""
    store, ended = PostgresStore(url), Counter[str]()
    await store.open()
    for row in await store.read_stats(since=0):
        ended[row.name] += sum(row.counts[place] for place in ENDED.values())
    await store.close()
    return dict(ended)


def test_b11_a_worker_shows_each_metric_after_real_runs(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SWEEPER_INTERVAL", "200ms")
    arguments = ["--database", database_url, "worker", BAKERY, "--metrics", "127.0.0.1:0"]
    with running(tmp_path / "log", *arguments) as process:
        (url,) = shown_at(process)
        asyncio.run(bake(database_url))

        def done() -> Scrape | None:
            seen = scrape(url)
            swept = seen.value("workflow_retention_swept_total")
            sifted = seen.value("workflow_step_duration_seconds_count", step="sift")
            ended = seen.value("workflow_runs_completed_total", workflow="wait")
            return seen if swept and sifted and ended == 5 else None

        seen = until(done, "the deletion of a run, a message, and ends from outside")
        process.send(signal.SIGTERM)
        assert process.ended() == exits.OK
    assert seen.names >= B11 - {"workflow_runs_in_flight"}  # the server shows that one
    value = seen.value
    assert value("workflow_runs_started_total", workflow="bread") == 1
    assert value("workflow_runs_completed_total", workflow="bread", status="completed") == 1
    assert value("workflow_runs_completed_total", workflow="burn", status="failed") == 1
    assert value("workflow_runs_completed_total", workflow="roll", status="completed") == 1
    assert value("workflow_run_duration_seconds_count", workflow="roll") == 1
    for status, ended in {"terminated": 2, "cancelled": 1, "timed_out": 1, "completed": 1}.items():
        assert value("workflow_runs_completed_total", workflow="wait", status=status) == ended
    assert 1 <= value("workflow_run_duration_seconds_count", workflow="wait") <= 2
    assert value("workflow_step_duration_seconds_count", workflow="bread", step="bake") == 2
    assert value("workflow_step_retries_total", workflow="bread", step="bake") == 1
    assert value("workflow_step_duration_seconds_count", workflow="", step="weigh") == 1
    assert value("workflow_step_duration_seconds_count", workflow="roll", step="knead") == 1
    assert value("workflow_signals_total") == value("workflow_signals_total", event="baked") == 1
    assert value("holdfast_commit_seconds_count") == value("holdfast_commit_runs_count") > 0
    assert value("holdfast_worker_concurrency") == 200
    assert seen.names >= {"holdfast_heartbeat_late_seconds", "holdfast_loop_lag_seconds"}
    assert value("workflow_run_duration_seconds_bucket", workflow="bread", le="+Inf") == 1

    in_database = asyncio.run(statistics(database_url))
    assert in_database == {"bakery/bread": 1, "bakery/wait": 5, "bakery/burn": 1, "bakery/roll": 1}


def test_each_of_several_processes_has_a_port(database_url: str, tmp_path: Path) -> None:
    arguments = ["--database", database_url, "worker", BAKERY, "--processes", "2"]
    with running(tmp_path / "log", *arguments, "--metrics", "127.0.0.1:0") as process:
        urls = shown_at(process, 2)
        assert len({*urls}) == 2
        for url in urls:
            assert "workflow_retention_swept_total" in scrape(url).names


def test_an_address_that_cannot_be_used_is_refused(database_url: str, tmp_path: Path) -> None:
    with refusing_port() as port:
        arguments = ["--database", database_url, "worker", BAKERY]
        with running(tmp_path / "log", *arguments, "--metrics", f"127.0.0.1:{port}") as process:
            assert process.ended() == exits.USAGE
            assert f"metrics cannot be shown at 127.0.0.1 port {port}" in process.text()
            assert "--metrics" in process.text()
