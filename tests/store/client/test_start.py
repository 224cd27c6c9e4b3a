"""Starting runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError, UnknownWorkflow
from holdfast.store.port import Store
from holdfast.types import AppInfo, RunFilter

from .workflows import Finisher, Order, app, order, tick, tick_2


async def count(store: Store) -> int:
    return len((await store.list_runs(RunFilter(limit=1000))).runs)


async def test_a_run_has_what_its_workflow_says(client: Client) -> None:
    """S1. B8: retention is fixed at the start."""
    handle = await client.start(order, Order(7, ("gift",)))
    run = await handle.get()
    assert not handle.already_existed
    assert (run.run_id, run.name, run.version, run.status) == (handle.run_id, "order", 1, "running")
    assert (run.queue, run.priority, run.retention_seconds) == ("orders", 1, 7 * 86_400)
    assert run.input == Order(7, ("gift",))
    assert run.deadline_at == run.created_at + timedelta(hours=1)


async def test_options_override_what_the_workflow_says(client: Client) -> None:
    run_id = uuid4()
    start_at = datetime.now(UTC) + timedelta(days=2)
    handle = await client.start(
        order,
        Order(7),
        run_id=run_id,
        start_at=start_at,
        priority=4,
        queue="slow",
        version=3,
        timeout="2h",
        retention=timedelta(days=1),
        tags=["a", "b"],
        headers={"traceparent": "00-1"},
    )
    run = await handle.get()
    assert (run.run_id, run.priority, run.queue, run.version) == (run_id, 4, "slow", 3)
    assert (run.tags, run.headers) == (("a", "b"), {"traceparent": "00-1"})
    assert (run.retention_seconds, run.state) == (86_400, "waiting")
    assert run.wait is not None
    assert run.wait.until == start_at
    assert run.deadline_at == start_at + timedelta(hours=2)


async def test_the_same_key_finds_the_same_run(client: Client, finisher: Finisher) -> None:
    """B5. The existing run comes back with its current status, whatever the input."""
    first = await client.start(tick, key="today")
    assert (first.already_existed, first.status_at_start) == (False, "running")
    again = await client.start(tick, key="today")
    assert (again.run_id, again.already_existed, again.status_at_start) == (
        first.run_id,
        True,
        "running",
    )
    await finisher.complete(1)
    after = await client.start(tick, key="today")
    assert (after.run_id, after.already_existed, after.status_at_start) == (
        first.run_id,
        True,
        "completed",
    )


async def test_one_key_with_different_inputs_at_once_is_one_run(client: Client) -> None:
    """Trap 14. The first input stands."""
    handles = await asyncio.gather(*(client.start(order, Order(n), key="o-1") for n in range(50)))
    assert len({handle.run_id for handle in handles}) == 1
    [creator] = [n for n, handle in enumerate(handles) if not handle.already_existed]
    assert (await handles[0].get()).input == Order(creator)


async def test_an_input_of_the_wrong_type_is_refused_before_a_run_exists(
    client: Client, store: Store
) -> None:
    """B5."""
    with pytest.raises(InvalidInput, match="number"):
        await client.start(cast(Any, order), {"number": "seven"})
    with pytest.raises(InvalidInput, match="takes no input"):
        await client.start(cast(Any, tick), 1)
    assert await count(store) == 0


async def test_one_bad_payload_fails_its_own_start_only(client: Client, store: Store) -> None:
    """Trap 20."""
    inputs: list[object] = [{"n": n} for n in range(20)]
    inputs[3:6] = ["\0", float("nan"), object()]
    outcomes = await asyncio.gather(
        *(client.start("shop/free", each) for each in inputs), return_exceptions=True
    )
    refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, PayloadError)]
    assert refused == [3, 4, 5]
    assert await count(store) == 17


async def test_by_name_a_start_needs_no_app(client: Client, store: Store) -> None:
    handle = await client.start("elsewhere/unknown-here", {"any": ["thing"]}, version=4)
    run = await handle.get()
    assert (run.name, run.version, run.queue) == ("unknown-here", 4, "default")
    assert (run.input, run.retention_seconds) == ({"any": ["thing"]}, 30 * 86_400)


async def test_by_name_the_apps_newest_version_is_meant(store: Store) -> None:
    """B7. A version that is named is found too."""
    async with Client(store=store, app=app) as client:
        newest = await client.start("tick")
        named = await client.start("tick", version=1)
        assert (await newest.get()).version == tick_2.version
        assert (await named.get()).version == tick.version
        with pytest.raises(InvalidInput):
            await client.start("order", {"number": "seven"})
        with pytest.raises(UnknownWorkflow):
            await client.start("nothing")


async def test_many_runs_keep_the_order_of_their_inputs(client: Client, store: Store) -> None:
    handles = await client.start_many(order, (Order(n) for n in range(2_500)))
    runs = await store.get_runs([handle.run_id for handle in handles])
    inputs = [runs[handle.run_id].input for handle in handles]
    assert inputs == [f'{{"number":{n},"notes":[]}}' for n in range(2_500)]


async def test_many_runs_with_keys_are_started_once(client: Client, store: Store) -> None:
    orders, keys = [Order(1), Order(2), Order(1)], ["1", "2", "1"]
    first = await client.start_many(order, orders, keys=keys)
    again = await client.start_many(order, orders, keys=keys)
    assert [handle.already_existed for handle in first] == [False, False, True]
    assert [handle.already_existed for handle in again] == [True, True, True]
    assert [handle.run_id for handle in first] == [handle.run_id for handle in again]
    assert await count(store) == 2


async def test_a_bad_input_among_many_is_named_and_none_is_started(
    client: Client, store: Store
) -> None:
    """Trap 20."""
    with pytest.raises(PayloadError, match="input 1700"):
        await client.start_many("shop/free", [n if n != 1700 else "\0" for n in range(2_000)])
    assert await count(store) == 0


async def test_no_inputs_start_nothing(client: Client) -> None:
    assert await client.start_many(tick, []) == []


async def test_a_client_that_is_not_open_says_so(store: Store) -> None:
    client = Client(store=store)
    with pytest.raises(ConfigurationError, match="not open"):
        await client.start(tick)


async def test_a_start_warns_once_of_a_name_that_no_worker_has_had(
    client: Client, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The run waits for its worker, which may come later: it may also be a misspelled name."""
    await store.sign_on_app(AppInfo(app="shop", workflows=("checkout",)))
    for _ in range(2):
        assert (await client.start("shop/chekout")).status_at_start == "running"
    assert caplog.text.count("never had a worker with a workflow 'chekout'") == 1
    assert "did you mean shop/checkout?" in caplog.text
    await client.start("shpo/checkout")
    assert "app shpo has never had a worker" in caplog.text
    caplog.clear()
    await client.start("shop/checkout")
    assert caplog.text == ""
