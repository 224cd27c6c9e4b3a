"""Updates: signals that are answered."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client, replies
from holdfast.errors import (
    InvalidInput,
    ResultTimeout,
    RunEnded,
    RunNotFound,
    UpdateFailed,
    UpdateRejected,
)
from holdfast.store.port import Store
from holdfast.types import JSON, ClaimedTask, Event, Finish, Notice

from .workflows import Finisher, Receipt, tick


async def received(client: Client, run_id: UUID) -> Event:
    """Wait for a run to have an update in its log."""
    async for entry in client.runs.follow_log(run_id):
        if entry.event.type == "SignalReceived":
            return entry.event
    raise AssertionError("the run ended without an update")


async def answer(
    client: Client,
    finisher: Finisher,
    store: Store,
    task: ClaimedTask,
    type: str,
    *,
    then: Finish | None = None,
    tell: bool = True,
    **details: JSON,
) -> None:
    """Answer the update that a run has had, as its worker would."""
    asked = await received(client, task.run_id)
    event = await finisher.event(type, asked.key, {"update_name": "add", **details})
    await finisher.write(task, event, at=2, then=then)
    if tell:
        topic = json.loads(asked.details or "")["reply_to"]
        await store.notify([Notice(topic, f"{task.run_id} {asked.key}")])


async def begun(client: Client, finisher: Finisher) -> ClaimedTask:
    await client.start(tick)
    [task] = await finisher.claim()
    return task


async def test_an_update_returns_its_answer(
    client: Client, finisher: Finisher, store: Store
) -> None:
    task = await begun(client, finisher)
    asking = asyncio.create_task(client.update(task.run_id, "add", {"sku": "A7"}, type=Receipt))
    event = await received(client, task.run_id)
    details = json.loads(event.details or "")
    assert (details["signal_name"], details["input"], details["update"]) == (
        "add",
        {"sku": "A7"},
        True,
    )
    result: JSON = {"number": 7, "paid": True}
    await answer(client, finisher, store, task, "UpdateCompleted", result=result)
    assert await asking == Receipt(7, paid=True)


@pytest.mark.parametrize(
    ("type", "error"), [("UpdateRejected", UpdateRejected), ("UpdateCompleted", UpdateFailed)]
)
async def test_a_refused_and_a_failed_update_are_told_apart(
    client: Client,
    finisher: Finisher,
    store: Store,
    type: str,
    error: type[UpdateRejected | UpdateFailed],
) -> None:
    task = await begun(client, finisher)
    asking = asyncio.create_task(client.update(task.run_id, "add"))
    reason: JSON = {"kind": "builtins.ValueError", "message": "sold out"}
    await answer(client, finisher, store, task, type, error=reason)
    with pytest.raises(error, match="sold out") as caught:
        await asking
    assert caught.value.error.matches(ValueError)


async def test_an_answer_whose_wake_up_is_lost_is_found(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """Trap 1."""
    task = await begun(client, finisher)
    asking = asyncio.create_task(client.update(task.run_id, "add"))
    await answer(client, finisher, store, task, "UpdateCompleted", tell=False, result=1)
    assert await asking == 1


async def test_an_update_id_is_carried_out_once_and_answered_each_time(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """T5. Trap 6. Also after the run has ended."""
    task = await begun(client, finisher)
    asking = [
        asyncio.create_task(client.update(task.run_id, "add", update_id="u-1")) for _ in range(3)
    ]
    await answer(client, finisher, store, task, "UpdateCompleted", result=3)
    assert await asyncio.gather(*asking) == [3, 3, 3]
    await client.runs.terminate(task.run_id)
    assert await client.update(task.run_id, "add", update_id="u-1") == 3
    types = [entry.event.type for entry in await client.runs.log(task.run_id)]
    assert types.count("SignalReceived") == 1


async def test_an_update_that_is_not_answered_in_time_may_be_awaited_again(
    client: Client, finisher: Finisher, store: Store
) -> None:
    task = await begun(client, finisher)
    with pytest.raises(ResultTimeout, match=r"had not answered update add \(u-1\) after 0.01 s"):
        await client.update(task.run_id, "add", update_id="u-1", timeout=0.01)
    asking = asyncio.create_task(client.update(task.run_id, "add", update_id="u-1"))
    await answer(client, finisher, store, task, "UpdateCompleted", result="late")
    assert await asking == "late"


async def test_a_run_that_cannot_have_an_update_says_so_whatever_the_time_limit(
    client: Client, finisher: Finisher
) -> None:
    """With none left, the answer was that the run had the update and had not answered it yet."""
    with pytest.raises(RunNotFound):
        await client.update(uuid4(), "add", timeout=0)
    task = await begun(client, finisher)
    await client.runs.terminate(task.run_id)
    with pytest.raises(RunEnded):
        await client.update(task.run_id, "add", timeout=0)


async def test_a_run_has_the_update_that_is_not_answered_in_time(
    client: Client, finisher: Finisher
) -> None:
    """The limit is one of the wait for the answer, not of the sending before it."""
    task = await begun(client, finisher)
    with pytest.raises(ResultTimeout):
        await client.update(task.run_id, "add", update_id="u-1", timeout=0)
    log = [entry.event for entry in await client.runs.log(task.run_id)]
    assert [event.key for event in log if event.type == "SignalReceived"] == ["u-1"]


async def test_a_run_that_ends_without_an_answer_says_so(
    client: Client, finisher: Finisher
) -> None:
    task = await begun(client, finisher)
    asking = asyncio.create_task(client.update(task.run_id, "add"))
    await received(client, task.run_id)
    await client.runs.terminate(task.run_id)
    with pytest.raises(RunEnded) as caught:
        await asking
    assert caught.value.status == "terminated"
    with pytest.raises(RunEnded):
        await client.update(task.run_id, "add")


async def test_a_run_that_is_ended_from_outside_says_so_at_once(
    client: Client, finisher: Finisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 1. Nobody answers then, and looking by itself would take long."""
    task = await begun(client, finisher)
    with pytest.raises(ResultTimeout):
        await client.update(task.run_id, "add", update_id="u", timeout=0.01)
    monkeypatch.setattr(replies, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(replies, "LONGEST_PAUSE_SECONDS", 3600.0)
    asking = asyncio.create_task(client.update(task.run_id, "add", update_id="u", timeout="30s"))
    await asyncio.sleep(0)
    await client.runs.terminate(task.run_id)
    with pytest.raises(RunEnded, match="terminated"):
        await asking


async def test_an_update_that_cannot_be_meant_is_refused(client: Client) -> None:
    nobody = UUID(int=7)
    with pytest.raises(RunNotFound):
        await client.update(nobody, "add")
    with pytest.raises(InvalidInput, match="update id is empty"):
        await client.update(nobody, "add", update_id="")
