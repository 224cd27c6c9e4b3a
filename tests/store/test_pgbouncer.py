"""Work through a real PgBouncer: in session mode, and in transaction mode with and without the
server's own address for notifications.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from pooler import needs_pgbouncer, pgbouncer

from holdfast import App, Client, Context, SyncClient
from holdfast.cli.root import holdfast
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions

pytestmark = needs_pgbouncer

RUNS = 60
app = App("pooled")


@app.step
async def double(n: int) -> int:
    return 2 * n


@app.workflow
async def calculate(ctx: Context, n: int) -> int:
    a, b = await asyncio.gather(double(n), double(n))
    await asyncio.sleep(0.01)
    return a + b + await ctx.wait_for_signal("more", type=int)


@pytest.fixture
def pooled(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[str]:
    with pgbouncer(database_url, request.param, tmp_path) as url:
        yield url


def heard_by_listening(caplog: pytest.LogCaptureFixture) -> bool:
    return "cannot listen" not in caplog.text


async def run_all(url: str, listen_url: str | None) -> list[int]:
    """Run many runs on a worker; both it and the client go through the pooler."""
    store = PostgresStore(url, listen_url=listen_url)
    worker = Worker(
        app,
        store,
        WorkerOptions(poll_seconds=0.3),
        heartbeat_store=lambda: PostgresStore(url, connections=1),
    )
    await worker.start()
    try:
        async with asyncio.timeout(60), Client(url, listen_database=listen_url, app=app) as client:
            handles = await client.start_many(calculate, range(RUNS))
            await asyncio.gather(*(handle.signal("more", 1) for handle in handles))
            return list(await asyncio.gather(*(handle.result() for handle in handles)))
    finally:
        await worker.stop(1)
        await store.close()


@pytest.mark.parametrize(
    ("pooled", "direct", "heard"),
    [("session", False, True), ("transaction", True, True), ("transaction", False, False)],
    indirect=["pooled"],
)
async def test_runs_end_through_a_pooler(
    pooled: str, direct: bool, heard: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is prepared where sessions change hands; without notifications it polls."""
    caplog.set_level(logging.WARNING)
    results = await run_all(pooled, database_url if direct else None)
    assert results == [4 * n + 1 for n in range(RUNS)]
    assert heard_by_listening(caplog) is heard
    if not heard:
        assert "--listen-database" in caplog.text
    with psycopg.connect(database_url) as connection:
        query = "select count(*) from holdfast.events where event_type = 'StepCompleted'"
        assert connection.execute(query).fetchone() == (2 * RUNS,)


@pytest.mark.parametrize("pooled", ["session", "transaction"], indirect=True)
def test_the_synchronous_client_and_commands_work_through_a_pooler(
    pooled: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment says it as well as an option does."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", pooled)
    monkeypatch.setenv("HOLDFAST_LISTEN_DATABASE_URL", database_url)
    assert "notifications arrive" in CliRunner().invoke(holdfast, ["doctor"]).output
    with SyncClient(app=app) as client:
        handle = client.start(calculate, 1)
    for options in (["doctor"], ["--no-prepare", "runs", "show", str(handle.run_id)], ["migrate"]):
        done = CliRunner().invoke(holdfast, options)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("pooled", ["transaction"], indirect=True)
def test_the_doctor_says_that_notifications_do_not_come_through(pooled: str) -> None:
    done = CliRunner().invoke(holdfast, ["--database", pooled, "doctor"])
    assert done.exit_code == 0
    assert "no notification arrives: work is found by polling" in done.output
    assert "→ behind a pooler in transaction mode" in done.output
