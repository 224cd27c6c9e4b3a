"""Clients find runs that were archived, and make them runs again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import (
    ConfigurationError,
    ForkRefused,
    InvalidInput,
    ObjectsUnavailable,
    RunExists,
    RunFailed,
    RunNotFound,
)
from holdfast.retention import ArchivedRun
from holdfast.store.port import Store

from .workflows import Finisher


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an archive, which the environment names."""
    url = f"file://{tmp_path}/archive"
    monkeypatch.setenv("HOLDFAST_ARCHIVE", url)
    return url


async def archived_run(client: Client, finisher: Finisher) -> UUID:
    """Return a run that has completed with 7, and is in the archive alone."""
    handle = await client.start("shop/tick", {"id": 1}, key="order-1", retention=0)
    await finisher.complete(7)
    assert await client.retention.sweep() == 1
    return handle.run_id


async def test_an_archived_run_is_read_as_others_are(
    client: Client, finisher: Finisher, archive: str
) -> None:
    """S16. By its id and by its key; it says where it is."""
    run_id = await archived_run(client, finisher)
    for reference in (run_id, ("shop/tick", "order-1")):
        run = await client.runs.get(reference)
        assert (run.run_id, run.status, run.output) == (run_id, "completed", 7)
        assert (run.archive, run.input) == (archive, {"id": 1})
    types = [entry.event.type for entry in await client.runs.log(run_id)]
    assert types == ["WorkflowStarted", "WorkflowCompleted"]
    assert [entry.idx for entry in await client.runs.log(run_id, 1)] == [1]
    assert await client.runs.values(run_id) == {}
    assert await client.result(run_id) == 7
    [entry] = [entry async for entry in client.archive.list("tick")]
    assert (entry.run_id, entry.name, entry.key) == (run_id, "shop/tick", "order-1")
    assert [entry async for entry in client.archive.list("other")] == []


@pytest.mark.usefixtures("archive")
async def test_the_result_of_a_chain_is_found_in_both_places(
    client: Client, finisher: Finisher
) -> None:
    """Fault: while the database had the first run and not the last, the last was not found."""
    first = await client.start("shop/tick", key="order-1", retention=0)
    [task] = await finisher.claim(1)
    last = await finisher.continue_as_new(task)
    assert await client.retention.sweep() == 0  # the first is kept: callers find the last by it
    assert await finisher.complete(7) == [last]
    assert await client.retention.sweep() == 1
    runs = [await client.runs.get(run_id) for run_id in (first.run_id, last)]
    assert [run.archive is None for run in runs] == [True, False]
    assert await client.result(first.run_id) == 7
    assert await client.result(("shop/tick", "order-1")) == 7


@pytest.mark.usefixtures("archive")
async def test_the_result_of_a_chain_of_the_archive_is_found(
    client: Client, finisher: Finisher
) -> None:
    """Fault: only the database was asked which run had continued the first."""
    first = await client.start("shop/tick", key="order-1", retention=0)
    [task] = await finisher.claim(1)
    last = await finisher.continue_as_new(task)
    assert await finisher.complete(7) == [last]
    assert await client.retention.sweep() == 2
    assert await client.result(first.run_id) == 7


async def test_a_run_is_restored_and_forked(
    client: Client, finisher: Finisher, archive: str
) -> None:
    """S16. Until then a fork says what is to be done first."""
    run_id = await archived_run(client, finisher)
    with pytest.raises(ForkRefused, match=f"archive restore {run_id}"):
        await client.runs.fork(run_id)
    assert await client.archive.restore(run_id, "7d") == run_id
    run = await client.runs.get(run_id)
    assert (run.archive, run.output) == (None, 7)
    with pytest.raises(RunExists, match="need not be restored"):
        await client.archive.restore(run_id)
    fork = await client.runs.fork(run_id)
    assert fork.run_id != run_id


async def test_a_run_that_was_changed_since_its_restore_is_archived_so(
    client: Client, finisher: Finisher, archive: str
) -> None:
    """Both copies ended at one moment: the one that was written last counts."""
    run_id = await archived_run(client, finisher)
    for count in range(1, 4):
        await client.archive.restore(run_id, 0)
        await client.runs.set_tags(run_id, [f"audit-{count}"])
        await client.runs.set_attributes(run_id, {"count": count})
        assert await client.retention.sweep() == 1
        run = await client.runs.get(run_id)
        assert (run.archive, run.tags, run.attributes) == (
            archive,
            (f"audit-{count}",),
            {"count": count},
        )
        assert (await client.archive.get(run_id)).record.tags == (f"audit-{count}",)


async def test_a_run_whose_key_was_used_again_is_not_restored(
    client: Client, finisher: Finisher, archive: str
) -> None:
    """S16. The answer does not say that the archived run is in the database: another run is."""
    run_id = await archived_run(client, finisher)
    again = await client.start("shop/tick", {"id": 2}, key="order-1")
    assert again.run_id == run_id
    with pytest.raises(RunExists, match="its key was used again"):
        await client.archive.restore(run_id)


async def test_a_wait_does_not_return_the_next_run_of_an_archived_key(
    client: Client, store: Store, finisher: Finisher, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is used again after the archived run's end was read, before its row is."""
    run_id = await archived_run(client, finisher)
    find = client._session.archived

    async def archived(run_id: UUID) -> ArchivedRun | None:
        found = await find(run_id)
        if not (await client.start("shop/tick", {"id": 2}, key="order-1")).already_existed:
            again.set()
        return found

    again = asyncio.Event()
    monkeypatch.setattr(client._session, "archived", archived)
    wait = asyncio.create_task(client.runs.wait(("shop/tick", "order-1")))
    await again.wait()
    assert await finisher.complete(8) == [run_id]
    run = await wait
    assert (run.status, run.output, run.archive) == ("completed", 8, None)


async def test_a_run_that_is_nowhere_is_not_found(
    client: Client, finisher: Finisher, archive: str
) -> None:
    await archived_run(client, finisher)
    missing = uuid4()
    for call in (client.runs.get, client.runs.log, client.archive.get, client.archive.restore):
        with pytest.raises(RunNotFound):
            await call(missing)


async def test_an_archive_without_a_run_says_whether_the_database_has_it(
    client: Client, archive: str
) -> None:
    handle = await client.start("shop/tick", {"id": 1})
    for call in (client.archive.get, client.archive.restore):
        with pytest.raises(RunNotFound, match=f"{archive} has no run .*; the database has it"):
            await call(handle.run_id)
        with pytest.raises(RunNotFound, match=r"has no run .*, nor has the database"):
            await call(uuid4())


async def test_without_an_archive_there_is_none_to_ask(client: Client) -> None:
    assert await client.archive.url() is None
    with pytest.raises(ConfigurationError, match="set HOLDFAST_ARCHIVE"):
        await client.archive.get(uuid4())


async def test_the_archive_of_the_workers_is_found_in_the_database(
    client: Client, store: Store, finisher: Finisher, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16. Who does not know it can read it, and cannot delete past it."""
    await store.begin_deletions("worker", interval_seconds=0, archive=archive)
    run_id = await archived_run(client, finisher)
    monkeypatch.delenv("HOLDFAST_ARCHIVE")
    async with Client(store=store) as other:
        assert (await other.runs.get(run_id)).archive == archive
        with pytest.raises(InvalidInput, match="archived before they are deleted"):
            await store.sweep_runs()
        assert await other.archive.forget() == archive
        assert (await store.sweep_runs()).deleted == 0


async def test_an_archive_that_cannot_be_written_keeps_the_runs(
    client: Client, finisher: Finisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16. Nothing is deleted."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}/file")
    handle = await client.start("shop/tick", retention=0)
    await finisher.complete(7)
    with pytest.raises(ObjectsUnavailable):
        await client.retention.sweep()
    assert (await client.runs.get(handle.run_id)).archive is None


async def test_a_damaged_archive_is_named(
    client: Client, finisher: Finisher, tmp_path: Path, archive: str
) -> None:
    """A caller must not take a run for one that never was."""
    run_id = await archived_run(client, finisher)
    [data] = (tmp_path / "archive/runs").rglob("*.gz")
    data.write_bytes(data.read_bytes()[:-20])
    with pytest.raises(ObjectsUnavailable, match="is damaged"):
        await client.runs.get(run_id)


async def test_a_failed_run_of_the_archive_raises_its_error(
    client: Client, finisher: Finisher, archive: str
) -> None:
    handle = await client.start("shop/tick", retention=0)
    await finisher.fail(OSError("no luck"))
    await client.retention.sweep()
    with pytest.raises(RunFailed):
        await handle.result()
