"""One thing done to all the runs of a filter."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client, bulk
from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.codec import encode
from holdfast.errors import ConfigurationError, InvalidName, PayloadError
from holdfast.store.port import Store
from holdfast.types import JSON, Finish, Fork, RecordPage, RunFilter

from .workflows import Finisher, tick


async def states(client: Client, *tags: str) -> set[str]:
    return {run.state async for run in client.runs.iterate(tags=tags)}


async def test_a_filter_s_runs_are_cancelled_in_pages(client: Client) -> None:
    """S10."""
    await client.start_many(tick, [None] * 25, tags=["a"])
    spared = await client.start(tick, tags=["b"])
    seen: list[BulkOutcome] = []
    done = await client.runs.cancel_all({"tags": "a", "limit": 10}, progress=seen.append)
    assert done == BulkOutcome(matched=25, changed=25, unchanged=0)
    assert [each.changed for each in seen] == [10, 20, 25]
    assert await states(client, "a") == {"cancelled"}
    assert await spared.status() == "running"
    assert await client.runs.cancel_all({"tags": "a"}) == BulkOutcome()


@pytest.mark.parametrize("page", [1, 2, 200])
async def test_runs_that_are_given_are_changed_and_no_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Those that have ended, or do not exist, are unchanged or not counted."""
    monkeypatch.setattr(bulk, "PAGE", page)
    handles = await client.start_many(tick, [None] * 5)
    keyed = await client.start(tick, key="seven")
    await handles[3].terminate()
    given = [handles[0].run_id, str(handles[1].run_id), handles[0].run_id, handles[3].run_id]
    chosen = [*given, (tick, "seven"), uuid4()]
    foreseen = await client.runs.pause_all(chosen, dry_run=True)
    assert foreseen == BulkOutcome(matched=4, changed=3, unchanged=1)
    seen: list[BulkOutcome] = []
    assert await client.runs.pause_all(chosen, progress=seen.append) == foreseen
    assert seen[-1] == foreseen
    assert await client.runs.pause_all(chosen) == BulkOutcome(4, 0, 4)
    found = [(await client.runs.get(each.run_id)).state for each in (*handles, keyed)]
    assert found == ["paused", "paused", "queued", "terminated", "queued", "paused"]
    assert await client.runs.resume_all(chosen) == foreseen
    assert await client.runs.signal_all(chosen, "go") == foreseen
    assert await client.runs.retry_all(chosen) == BulkOutcome(4, 0, 4)
    assert await client.runs.terminate_all(chosen) == foreseen
    assert await client.runs.cancel_all([]) == BulkOutcome()
    assert [await each.status() for each in (handles[2], handles[4])] == ["running"] * 2


@pytest.mark.parametrize("page", [1, 200])
async def test_what_is_given_leads_to_its_newest_run(
    client: Client, finisher: Finisher, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """C19. As in calls about one run: an id to what continues it, a key also to its retry."""
    monkeypatch.setattr(bulk, "PAGE", page)
    first = await client.start(tick, key="continued")
    [task] = await finisher.claim()
    last = await finisher.continue_as_new(task)
    failed = await client.start(tick, key="retried")
    await client.runs.pause(last)  # so that it does not fail as well
    await finisher.fail(ValueError("no"))
    await client.runs.resume(last)
    retry = (await client.runs.retry((tick, "retried"))).run_id
    chosen = [first.run_id, (tick, "continued"), last, (tick, "retried")]
    assert await client.runs.pause_all(chosen, dry_run=True) == BulkOutcome(2, 2, 0)
    assert await client.runs.pause_all(chosen) == BulkOutcome(2, 2, 0)
    assert [(await client.runs.get(each)).state for each in (last, retry)] == ["paused"] * 2
    assert await client.runs.resume_all([first.run_id]) == BulkOutcome(1, 1, 0)
    assert await client.runs.terminate_all([failed.run_id]) == BulkOutcome(1, 0, 1)
    assert await client.runs.signal_all(chosen, "go") == BulkOutcome(2, 2, 0)
    assert await client.runs.terminate_all(chosen) == BulkOutcome(2, 2, 0)
    assert [(await client.runs.get(each)).status for each in (last, retry)] == ["terminated"] * 2


async def test_failed_runs_that_are_given_are_retried_where_they_failed(
    client: Client, finisher: Finisher
) -> None:
    first = await client.start(tick)
    [task] = await finisher.claim()
    last = await finisher.continue_as_new(task)
    [task] = await finisher.claim()
    error: JSON = {"kind": "builtins.ValueError", "message": "no"}
    step = await finisher.event("StepFailed", "pay", {"error": error, "args": 1, "attempt": 1})
    end = await finisher.event("WorkflowFailed", None, {"calls": ["pay"], "seen": 2})
    await finisher.write(task, step, end, then=Finish("failed", error=encode(error)))
    assert (await client.runs.retry_plan(first.run_id)).failed == ("pay",)
    assert await client.runs.retry_all([first.run_id]) == BulkOutcome(1, 1, 0)
    assert (await client.runs.retry(last)).already_existed


async def test_a_dry_run_changes_nothing(client: Client) -> None:
    await client.start_many(tick, [None] * 5)
    for act in (client.runs.cancel_all, client.runs.terminate_all, client.runs.pause_all):
        assert await act({}, dry_run=True) == BulkOutcome(5, 5, 0)
    assert await client.runs.signal_all({}, "go", dry_run=True) == BulkOutcome(5, 5, 0)
    assert await states(client) == {"queued"}


@pytest.mark.parametrize("name", ["states", "names", "queues", "tags", "where"])
async def test_a_filter_that_is_empty_does_not_mean_all_runs(client: Client, name: str) -> None:
    """A program that has computed no names has not asked for a change of all runs."""
    await client.start(tick)
    empty: dict[str, Any] = {name: {} if name == "where" else []}
    for where in (empty, {name: iter(())} if name != "where" else empty):
        with pytest.raises(ConfigurationError, match=f"the filter {name} is empty"):
            await client.runs.terminate_all(cast("RunFilters", where))
    assert (await client.runs.list(**empty)).runs  # looking at all is not refused
    assert await states(client) == {"queued"}
    assert await client.runs.terminate_all({}) == BulkOutcome(1, 1, 0)


async def test_runs_may_be_given_by_a_generator(client: Client) -> None:
    handles = await client.start_many(tick, [None] * 3)
    assert await client.runs.cancel_all(each.run_id for each in handles) == BulkOutcome(3, 3, 0)


async def test_a_dry_run_counts_what_a_call_would_change(
    client: Client, finisher: Finisher
) -> None:
    handles = await client.start_many(tick, [None] * 4)
    await handles[0].pause()
    assert await client.runs.pause_all({}, dry_run=True) == await client.runs.pause_all(
        {"limit": 2}
    )
    assert await client.runs.resume_all({}, dry_run=True) == await client.runs.resume_all({})
    await finisher.fail(ValueError("no"))
    await client.runs.retry(handles[0].run_id)
    everywhere: RunFilters = {"states": ("failed", "queued")}
    foreseen = await client.runs.retry_all(everywhere, dry_run=True)
    assert foreseen == BulkOutcome(matched=5, changed=3, unchanged=2)
    assert await client.runs.retry_all(everywhere) == foreseen
    assert await client.runs.cancel_all({"states": "failed"}, dry_run=True) == BulkOutcome(4, 0, 4)


async def test_a_repeated_call_changes_nothing(client: Client) -> None:
    await client.start_many(tick, [None] * 5)
    assert await client.runs.pause_all({}) == BulkOutcome(5, 5, 0)
    assert await client.runs.pause_all({}) == BulkOutcome(5, 0, 5)
    assert await states(client) == {"paused"}
    assert await client.runs.resume_all({}) == BulkOutcome(5, 5, 0)
    assert await client.runs.resume_all({}) == BulkOutcome()
    assert await states(client) == {"queued"}


async def test_a_signal_id_reaches_each_run_once(client: Client) -> None:
    """T5."""
    handles = await client.start_many(tick, [None] * 3)
    assert await client.runs.signal_all({}, "go", {"n": 1}, signal_id="s") == BulkOutcome(3, 3, 0)
    assert await client.runs.signal_all({}, "go", {"n": 1}, signal_id="s") == BulkOutcome(3, 0, 3)
    assert [len(await handle.log()) for handle in handles] == [2, 2, 2]


async def test_named_states_replace_the_default_states(client: Client, finisher: Finisher) -> None:
    await client.start_many(tick, [None] * 2)
    await finisher.complete()
    assert await client.runs.terminate_all({"states": "completed"}) == BulkOutcome(2, 0, 2)


async def test_failed_runs_are_retried_once_each(client: Client, finisher: Finisher) -> None:
    await client.start_many(tick, [None] * 12, tags=["night"])
    await finisher.fail(ValueError("no"))
    assert await client.runs.retry_all({"tags": "night"}) == BulkOutcome(12, 12, 0)
    assert await client.runs.retry_all({"tags": "night"}) == BulkOutcome(12, 0, 12)
    assert len(await finisher.complete(1)) == 12


async def test_a_run_that_cannot_be_retried_stops_no_other(
    client: Client, store: Store, finisher: Finisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which it was, and how many were retried. The same call does the rest."""
    monkeypatch.setattr(bulk, "PAGE", 5)
    handles = await client.start_many(tick, [None] * 12, tags=["night"])
    await finisher.fail(ValueError("no"))
    refused, fork_run = handles[4].run_id, store.fork_run

    async def refuse(fork: Fork) -> Any:
        if fork.run_id == refused:
            raise PayloadError("a value is nested too deeply")
        return await fork_run(fork)

    monkeypatch.setattr(store, "fork_run", refuse)
    with pytest.raises(PayloadError, match=f"{refused} could not.* too deeply.* 11 were retried"):
        await client.runs.retry_all({"tags": "night"})
    monkeypatch.setattr(store, "fork_run", fork_run)
    assert await client.runs.retry_all({"tags": "night"}) == BulkOutcome(12, 1, 11)


async def test_retries_end_if_most_cannot_be(
    client: Client, store: Store, finisher: Finisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refuses all of them may take long for each: 21 are tried, and those under way."""
    await client.start_many(tick, [None] * 60, tags=["night"])
    await finisher.fail(ValueError("no"))
    tried = list[Fork]()

    async def refuse(fork: Fork) -> Any:
        tried.append(fork)
        raise PayloadError("a value is nested too deeply")

    monkeypatch.setattr(store, "fork_run", refuse)
    with pytest.raises(PayloadError, match="too deeply"):
        await client.runs.retry_all({"tags": "night"})
    assert len(tried) < 21 + bulk.RETRIES_AT_ONCE


async def test_an_interrupted_operation_continues_where_it_stopped(client: Client) -> None:
    await client.start_many(tick, [None] * 20)
    begun = asyncio.Event()

    async def interrupted() -> None:
        def progress(done: BulkOutcome) -> None:
            begun.set()
            raise KeyboardInterrupt

        await client.runs.terminate_all({"limit": 5}, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        await interrupted()
    assert begun.is_set()
    assert await client.runs.terminate_all({"limit": 5}) == BulkOutcome(15, 15, 0)


async def test_a_run_that_continues_after_it_was_listed_is_followed(
    client: Client, finisher: Finisher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10. Runs that are created meanwhile come before the page that is read."""
    first = (await client.start(tick)).run_id
    list_runs, continued = store.list_runs, list[UUID]()

    async def list_and_continue(where: RunFilter) -> RecordPage:
        page = await list_runs(where)
        [task] = await finisher.claim()
        continued.append(await finisher.continue_as_new(task))
        return page

    monkeypatch.setattr(store, "list_runs", list_and_continue)
    assert await client.runs.cancel_all({}) == BulkOutcome(1, 1, 0)
    assert (await client.runs.get(first)).status == "continued"
    assert (await client.runs.get(continued[0])).status == "cancelled"


async def test_an_invalid_call_is_refused_before_anything_changes(client: Client) -> None:
    await client.start(tick)
    with pytest.raises(ConfigurationError, match="unknown state"):
        await client.runs.cancel_all({"states": "asleep"})
    with pytest.raises(InvalidName):
        await client.runs.signal_all({}, "no name")
    assert await states(client) == {"queued"}


async def test_children_are_a_filter(client: Client, store: Store) -> None:
    await client.start(tick)
    assert await client.runs.cancel_all({"parent": uuid4()}) == BulkOutcome()
