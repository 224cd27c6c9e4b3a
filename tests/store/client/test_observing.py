"""Looking at runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, RunExists, RunNotFound
from holdfast.store.port import Store
from holdfast.types import Event, Suspend, TurnCommit

from .workflows import Finisher, Order, order, tick


async def test_a_run_is_found_by_id_text_and_key(client: Client) -> None:
    """S1."""
    handle = await client.start(tick, key="k")
    found = [
        await client.runs.get(ref)
        for ref in (handle.run_id, str(handle.run_id), ("shop/tick", "k"))
    ]
    assert {run.run_id for run in found} == {handle.run_id}
    assert found[0].key == "k"


async def test_listings_are_newest_first_and_filtered(client: Client, finisher: Finisher) -> None:
    """S1."""
    ended = await client.start(tick)
    await finisher.complete(1)
    later = await client.start(tick, delay="1d", tags=["a"])
    bought = await client.start(order, Order(7), tags=["a", "b"])

    async def listed(**filters: Any) -> list[object]:
        return [run.run_id for run in (await client.runs.list(**filters)).runs]

    ids = [handle.run_id for handle in (bought, later, ended)]
    assert sorted(await listed(), key=ids.index) == ids
    assert await listed(states="completed") == [ended.run_id]
    assert await listed(states=["waiting"]) == [later.run_id]
    assert await listed(names="shop/order") == [bought.run_id]
    assert await listed(queues=("orders",)) == [bought.run_id]
    assert await listed(tags=["a", "b"]) == [bought.run_id]
    assert await listed(input_contains={"number": 7}) == [bought.run_id]
    assert await listed(input_contains={"number": 8}) == []


async def test_listings_are_limited_to_a_time(client: Client, store: Store) -> None:
    handle = await client.start(tick)
    now = datetime.fromtimestamp(await store.now() / 1e6, UTC)
    hour = timedelta(hours=1)
    page = await client.runs.list(since=now - hour, until=now + hour, payloads=True)
    assert page.runs == [await handle.get()]
    assert (await client.runs.list(since=now + hour)).runs == []
    assert (await client.runs.list(until=now - hour)).runs == []


async def test_all_pages_hold_each_run_once(client: Client) -> None:
    handles = await client.start_many(tick, [None] * 25)
    listed = [run.run_id async for run in client.runs.iterate(limit=10)]
    assert len(listed) == 25
    assert set(listed) == {handle.run_id for handle in handles}


@pytest.mark.parametrize(
    "filters",
    [
        {"states": "done"},
        {"limit": 0},
        {"limit": 100_000},
        {"since": datetime(2026, 1, 1)},
        {"colour": "red"},
        {"cursor": "page 2"},
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused(
    client: Client, filters: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError):
        await client.runs.list(**cast(Any, filters))


async def test_a_log_is_read_from_an_index(client: Client) -> None:
    """T10. S2."""
    handle = await client.start(order, Order(7))
    await handle.signal("a")
    await handle.signal("b")
    assert [entry.idx for entry in await handle.log()] == [0, 1, 2]
    assert [entry.idx for entry in await handle.log(from_index=2)] == [2]
    assert await handle.log(from_index=9) == []
    assert (await handle.log())[0].event.details == '{"number":7,"notes":[]}'


async def test_a_log_is_followed_to_its_end_without_driving_the_run(
    client: Client, finisher: Finisher
) -> None:
    """T10."""
    handle = await client.start(tick)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for entry in handle.follow_log():
            assert entry.run_id == handle.run_id
            seen.put_nowait(entry.event.type)

    following = asyncio.create_task(follow())
    assert await seen.get() == "WorkflowStarted"
    assert (await handle.get()).state == "queued"
    await handle.signal("a")
    assert await seen.get() == "SignalReceived"
    await finisher.complete(1)
    assert await seen.get() == "WorkflowCompleted"
    await following
    assert [entry.idx async for entry in client.runs.follow_log(handle.run_id, from_index=1)] == [
        1,
        2,
    ]


async def test_following_a_missing_run_says_so(client: Client) -> None:
    with pytest.raises(RunNotFound):
        async for _ in client.runs.follow_log(uuid4()):
            pass


async def test_values_of_a_missing_run_are_refused(client: Client) -> None:
    with pytest.raises(RunNotFound):
        await client.runs.values(uuid4())


async def test_an_id_of_another_workflows_run_is_refused(client: Client) -> None:
    handle = await client.start(tick)
    with pytest.raises(RunExists, match="is one of workflow shop/tick, not of shop/order"):
        await client.start(order, Order(1), run_id=handle.run_id)
    assert (await client.start(tick, run_id=handle.run_id)).already_existed


async def test_values_are_the_newest_of_each_name(
    client: Client, store: Store, finisher: Finisher
) -> None:
    """T3."""
    handle = await client.start(tick)
    assert await handle.values() == {}
    [task] = await finisher.claim()
    now = await store.now()
    events = [
        Event("ValueSet", "progress", '{"value": 1}', now),
        Event("ValueSet", "owner", '{"value": {"name": "ann"}}', now),
        Event("ValueSet", "progress", '{"value": 2}', now),
    ]
    turn = TurnCommit(handle.run_id, task.lease_no, task.log_length, events, Suspend())
    await store.commit("finisher", uuid4(), [turn])
    assert await handle.values() == {"progress": 2, "owner": {"name": "ann"}}


async def test_workers_that_signed_on_are_listed(client: Client) -> None:
    assert await client.workers.list() == []
