"""Why a run does not continue, and its timeline, from a client."""

from __future__ import annotations

import json
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import RunNotFound
from holdfast.insight.actions import Action
from holdfast.store.port import Store
from holdfast.sync import SyncClient
from holdfast.types import Event, Release, Suspend

from .workflows import Finisher, tick


async def waiting(client: Client, finisher: Finisher, name: str, at: int) -> Event:
    """Let the due run complete a step and then wait for a signal; return the step's event."""
    [task] = await finisher.claim()
    details = json.dumps({"result": {"boxes": 2}, "started_at": at})
    step = Event("StepCompleted", "pack", details, at + 5)
    await finisher.write(task, step, then=Suspend(None, (name,)))
    return step


async def test_a_run_that_waits_for_a_signal_has_the_action_that_sends_it(
    client: Client, finisher: Finisher, store: Store
) -> None:
    handle = await client.start(tick)
    await waiting(client, finisher, "packed", await store.now())
    found = await client.why(handle.run_id)
    assert (found.run_id, found.state) == (handle.run_id, "waiting")
    assert found.because == "it waits for signal 'packed'"
    assert found.actions == (Action("signal", handle.run_id, "packed"),)


async def test_a_failed_run_can_be_retried_and_then_leads_to_its_retry(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(tick, key="k")
    await finisher.fail(ValueError("broken"))
    found = await client.why(handle.run_id)
    assert found.because.endswith("ValueError: broken")
    assert found.actions == (Action("retry", handle.run_id),)
    retried = await client.runs.retry(handle.run_id)
    assert (await client.why(handle.run_id)).actions == (Action("why", retried.run_id),)
    assert (await client.why((tick, "k"))).run_id == retried.run_id


@pytest.mark.parametrize("how", ["cancelled", "terminated"])
async def test_a_run_that_others_ended_can_be_retried_and_then_leads_to_its_retry(
    client: Client, how: str
) -> None:
    handle = await client.start(tick)
    await (handle.cancel() if how == "cancelled" else handle.terminate())
    assert await handle.status() == how
    assert (await client.why(handle.run_id)).actions == (Action("retry", handle.run_id),)
    retried = await client.runs.retry(handle.run_id)
    found = await client.why(handle.run_id)
    assert found.actions == (Action("why", retried.run_id),)
    assert f"it was retried as run {retried.run_id}, which is queued" in found.details


async def test_unserved_work_has_the_action_that_starts_a_worker(client: Client) -> None:
    handle = await client.start(tick, queue="gpu")
    found = await client.why(handle.run_id)
    assert found.because.startswith("no worker can run this: no live worker serves shop/tick@1")
    assert found.actions == (Action("start_worker", name="gpu"),)


async def test_a_stuck_run_that_is_due_without_a_worker_has_the_action_that_starts_one(
    client: Client, finisher: Finisher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await client.start(tick)
    [task] = await finisher.claim()
    due = await store.now() + 2_000_000  # it is tried again after two seconds
    release = Release(task.run_id, "", task.lease_no, stuck="no key")
    await store.release_tasks("finisher", [release])
    monkeypatch.setattr(store, "now", AsyncMock(return_value=due + 3_900_000))
    found = await client.why(handle.run_id)
    assert found.state == "stuck"
    assert found.because.endswith(": no key")
    assert found.details[0].startswith("it has been due to be tried again for 3.")
    assert found.details[1] == "no live worker serves shop/tick@1 on queue 'default'"
    terminate = Action("terminate", handle.run_id)
    assert found.actions == (Action("start_worker", name="default"), terminate)


async def test_a_paused_queue_has_the_action_that_resumes_it(client: Client) -> None:
    handle = await client.start(tick, queue="gpu")
    await client.queues.pause("gpu", "no power")
    found = await client.why(handle.run_id)
    assert "queue 'gpu' was paused" in found.because
    assert found.actions == (Action("resume_queue", name="gpu"),)


async def test_a_timeline_has_a_span_for_each_step(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """T13."""
    handle = await client.start(tick)
    step = await waiting(client, finisher, "packed", await store.now())
    found = await client.timeline(handle.run_id)
    assert (found.run_id, found.ended_at) == (handle.run_id, None)
    assert found.began_at <= found.now
    *_, span = found.spans  # after the queue, if the clock moved until the claim
    assert (span.kind, span.label, span.note) == ("step", "pack", '{"boxes":2}')
    assert (span.began_at, span.ended_at) == (step.at - 5, step.at)


async def test_a_run_that_does_not_exist_has_neither(client: Client) -> None:
    for ask in (client.why, client.timeline):
        with pytest.raises(RunNotFound):
            await ask(uuid4())


def test_the_synchronous_client_asks_the_same(database_url: str) -> None:
    with SyncClient(database_url) as client:
        handle = client.start("shop/tick")
        assert client.why(handle.run_id).actions == (Action("start_worker", name="default"),)
        (span,) = client.timeline(handle.run_id).spans
        assert (span.kind, span.outcome, span.ended_at) == ("queue", "open", None)
