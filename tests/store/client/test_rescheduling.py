"""Runs that are rescheduled by clients, one and many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.client.rescheduling import RescheduleOptions
from holdfast.errors import (
    ConfigurationError,
    HoldfastError,
    InvalidName,
    RescheduleRefused,
    RunEnded,
    RunNotFound,
)

from .workflows import Finisher, tick


async def test_a_run_is_moved_delayed_and_given_a_deadline(
    client: Client, finisher: Finisher
) -> None:
    """The log and the timeline have each change; what was so before is not one."""
    handle = await client.start(tick, delay="1h")
    at = datetime.now(UTC) + timedelta(days=1)
    change = RescheduleOptions(queue="big", start_at=at, timeout="2h")
    assert await client.runs.reschedule(handle.run_id, reason="slow", by="ann", **change)
    run = await handle.get()
    assert (run.queue, run.due_at, run.deadline_at) == ("big", at, at + timedelta(hours=2))
    assert "start is delayed until" in (await client.why(handle.run_id)).because
    spans = (await client.timeline(handle.run_id)).spans
    assert [(span.kind, span.outcome) for span in spans] == [("delay", "open"), ("change", "noted")]
    assert not await handle.reschedule(queue="big")
    assert await handle.reschedule("all of it", delay=0, queue="default", no_deadline=True)
    spans = (await client.timeline(handle.run_id)).spans
    notes = [span.note for span in spans if span.kind == "change"]
    assert [note.split(";")[0] for note in notes] == ["queue big", "queue default"]
    assert notes[0].endswith("; slow, by ann")
    assert "no deadline" in notes[1]
    assert await finisher.complete(1, least=1) == [handle.run_id]


async def test_a_run_that_cannot_be_rescheduled_says_so(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.claim(least=1)
    with pytest.raises(RescheduleRefused, match="has begun") as refused:
        await client.runs.reschedule(handle.run_id, delay="1h", queue="big")
    assert refused.value.run_id == handle.run_id
    await handle.terminate()
    with pytest.raises(RunEnded):
        await client.runs.reschedule(handle.run_id, queue="big")
    with pytest.raises(RunNotFound):
        await client.runs.reschedule(uuid4(), queue="big")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, ConfigurationError),
        ({"queue": "a b"}, InvalidName),
        ({"delay": "1h", "start_at": datetime.now(UTC)}, ConfigurationError),
        ({"timeout": "1h", "no_deadline": True}, ConfigurationError),
        ({"deadline": datetime(2030, 1, 1)}, ConfigurationError),
        ({"delay": "-1h"}, ConfigurationError),
        ({"name": "x"}, TypeError),
    ],
)
async def test_a_change_that_cannot_be_meant_changes_nothing(
    client: Client, change: RescheduleOptions, error: type[HoldfastError]
) -> None:
    handle = await client.start(tick)
    with pytest.raises(error):
        await client.runs.reschedule(handle.run_id, **change)
    with pytest.raises(error):
        await client.runs.reschedule_all({}, **change)
    assert len(await handle.log()) == 1


async def test_all_runs_of_a_filter_are_moved(client: Client, finisher: Finisher) -> None:
    """Those that have begun are left if the start is to change."""
    begun = await client.start(tick, tags=["a"])
    await finisher.claim(least=1)
    await client.start_many(tick, [None] * 2, tags=["a"])
    where: RunFilters = {"tags": "a"}
    change = RescheduleOptions(queue="night", delay="6h")
    foreseen = await client.runs.reschedule_all(where, dry_run=True, **change)
    assert foreseen.matched == 3
    done = await client.runs.reschedule_all(where, **change)
    assert done == BulkOutcome(matched=3, changed=2, unchanged=1)
    found = {run.run_id: run.queue async for run in client.runs.iterate(tags="a")}
    assert sorted(found.values()) == ["default", "night", "night"]
    assert found[begun.run_id] == "default"
