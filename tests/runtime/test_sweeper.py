"""The sweeper of workers: it deletes in time, archives first, leaves to others what is theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.codec import is_sealed
from holdfast.errors import ConfigurationError, RunNotFound
from holdfast.payloads import AesGcm
from holdfast.retention import Archive
from holdfast.testing import Environment
from holdfast.values.retention import sweeper_interval

INTERVAL = "HOLDFAST_SWEEPER_INTERVAL"


def make_app(**options: Any) -> App:
    """Return an app with a workflow whose runs are kept for a day."""
    app = App("swept", **options)

    @app.workflow(retention="1d", name="quick")
    async def quick(ctx: Context) -> int:
        return 7

    return app


async def archived(env: Environment, run_id: UUID) -> None:
    """Wait until a run is in the archive: files are written in threads, in real time."""
    async with asyncio.timeout(60):
        while (await env.client.runs.get(run_id)).archive is None:
            await asyncio.sleep(0.01)


async def test_a_run_is_gone_after_its_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    """B8. In virtual time as in real time."""
    monkeypatch.delenv("HOLDFAST_ARCHIVE", raising=False)
    async with Environment(make_app()) as env:
        handle = await env.client.start("quick")
        longer = await env.client.start("quick", retention="3d")
        assert await env.result(handle) == 7
        await env.result(longer)
        await env.advance("23h")
        assert (await env.client.runs.get(handle.run_id)).status == "completed"
        await env.advance("2h")
        with pytest.raises(RunNotFound):
            await env.client.runs.get(handle.run_id)
        assert (await env.client.runs.get(longer.run_id)).status == "completed"
        assert (await env.client.retention.state()).deleted == 1


async def test_a_worker_with_an_archive_writes_runs_there_first(tmp_path: Path) -> None:
    """S16."""
    place = f"file://{tmp_path}/archive"
    async with Environment(make_app(archive=place)) as env:
        handle = await env.client.start("quick")
        await env.result(handle)
        await env.advance("25h")
        await archived(env, handle.run_id)
        assert (await env.client.runs.get(handle.run_id)).archive == place
    assert (await Archive(place).find([handle.run_id]))[handle.run_id].record.output == "7"


async def test_a_client_with_the_codec_reads_archived_runs(tmp_path: Path) -> None:
    """Fault: it said that it could not open them, and to give it the codec that it had."""
    app = make_app(
        archive=f"file://{tmp_path}/archive", payload_codec=AesGcm({"k1": AesGcm.new_key()})
    )
    async with Environment(app) as env:
        handle = await env.client.start("quick")
        await env.result(handle)
        await env.advance("25h")
        await archived(env, handle.run_id)
        assert (await env.client.runs.get(handle.run_id)).output == 7
        assert await env.client.result(handle.run_id) == 7
        assert (await env.client.archive.get(handle.run_id)).record.output == "7"
        *_, end = await env.client.runs.log(handle.run_id)
        assert end.event.details == "7"
    kept = (await Archive(f"file://{tmp_path}/archive").find([handle.run_id]))[handle.run_id]
    assert is_sealed(kept.record.output or "")


async def test_an_archive_that_is_down_keeps_the_runs_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S16. They are archived when it is up again."""
    (tmp_path / "archive").write_text("")
    async with Environment(make_app(archive=f"file://{tmp_path}/archive")) as env:
        handle = await env.client.start("quick")
        await env.result(handle)
        await env.advance("25h")
        assert "runs are not deleted, because they cannot be archived" in caplog.text
        state = await env.client.retention.state()
        assert "Not a directory" in (state.error or "")
        assert (await env.store.get_runs([handle.run_id])).keys() == {handle.run_id}
        (tmp_path / "archive").unlink()
        await env.advance("10m")
        await archived(env, handle.run_id)
        assert (await env.client.retention.state()).error is None


async def test_a_worker_without_the_archive_deletes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16. What the archive does not have must not go."""
    monkeypatch.delenv("HOLDFAST_ARCHIVE", raising=False)
    async with Environment(make_app()) as env:
        await env.store.begin_deletions("other", interval_seconds=0, archive="file:///a")
        await env.store.end_deletions("other", deleted=0, has_more=False)
        handle = await env.client.start("quick")
        await env.result(handle)
        await env.advance("25h")
        assert (await env.store.get_runs([handle.run_id])).keys() == {handle.run_id}
        assert "are archived in file:///a, and this worker has no archive" in caplog.text


def test_the_interval_is_a_length_of_time_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """B8."""
    monkeypatch.delenv(INTERVAL, raising=False)
    assert sweeper_interval() == 300
    monkeypatch.setenv(INTERVAL, "90s")
    assert sweeper_interval() == 90
    monkeypatch.setenv(INTERVAL, "OFF")
    assert sweeper_interval() is None
    for wrong in ("soon", "0"):
        monkeypatch.setenv(INTERVAL, wrong)
        with pytest.raises(ConfigurationError, match=f"{INTERVAL} is '{wrong}'"):
            sweeper_interval()


def test_a_worker_refuses_a_longest_retention_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B8. Else a run would be stuck when it starts a child."""
    monkeypatch.setenv("HOLDFAST_MAX_RETENTION_DAYS", "long")
    with pytest.raises(ConfigurationError, match="set it to a number of days"):
        Environment(make_app())
