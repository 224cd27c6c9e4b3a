"""Forks and retries."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, ForkRefused, InvalidInput, RunNotFound
from holdfast.store.port import Store
from holdfast.types import Event, Finish, Fork, Suspend
from holdfast.values.ids import former_retry_run_id

from .workflows import Finisher, Order, app, order, tick


async def with_steps(client: Client, finisher: Finisher, *names: str) -> UUID:
    """Start a run that has completed these steps, and waits."""
    handle = await client.start(order, Order(7))
    [task] = await finisher.claim()
    events = [
        await finisher.event("StepCompleted", name, {"result": name, "args": 1}) for name in names
    ]
    await finisher.write(task, *events, then=Suspend())
    return handle.run_id


async def types(client: Client, run_id: UUID) -> list[str]:
    return [entry.event.type for entry in await client.runs.log(run_id)]


async def keys(client: Client, run_id: UUID) -> list[str]:
    return [
        entry.event.key for entry in await client.runs.log(run_id) if entry.event.key is not None
    ]


async def test_a_fork_continues_from_a_step(client: Client, finisher: Finisher) -> None:
    origin = await with_steps(client, finisher, "reserve", "charge", "ship")
    fork = await client.runs.fork(origin, step="charge")
    assert not fork.already_existed
    assert await types(client, fork.run_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "WorkflowForked",
    ]
    assert await keys(client, fork.run_id) == ["reserve"]
    assert (await fork.get()).state == "queued"
    assert await keys(client, origin) == ["reserve", "charge", "ship"]


async def test_a_fork_keeps_so_many_events(client: Client, finisher: Finisher) -> None:
    origin = await with_steps(client, finisher, "reserve", "charge")
    assert await keys(client, (await client.runs.fork(origin, index=3)).run_id) == [
        "reserve",
        "charge",
    ]
    assert await keys(client, (await client.runs.fork(origin)).run_id) == ["reserve", "charge"]
    assert await keys(client, (await client.runs.fork(origin, index=1)).run_id) == []


async def test_a_fork_takes_another_input_and_other_results(
    client: Client, finisher: Finisher
) -> None:
    origin = await with_steps(client, finisher, "reserve", "charge")
    fork = await client.runs.fork(
        origin, step="charge", input=Order(8), results={"reserve": "shelf 2"}
    )
    assert '"number":8' in (await fork.get()).record.input.replace(" ", "")
    (reserve,) = [e.event for e in await fork.log() if e.event.key == "reserve"]
    assert "shelf 2" in (reserve.details or "")


async def test_the_input_of_a_fork_is_checked_by_the_app(
    client: Client, finisher: Finisher, store: Store
) -> None:
    origin = await with_steps(client, finisher, "reserve")
    async with Client(store=store, app=app) as knowing:
        with pytest.raises(InvalidInput):
            await knowing.runs.fork(origin, step="reserve", input="no order")


async def test_a_fork_with_an_id_is_made_once(client: Client, finisher: Finisher) -> None:
    origin, run_id = await with_steps(client, finisher, "reserve"), uuid4()
    first, second = [await client.runs.fork(origin, run_id=run_id) for _ in range(2)]
    assert (first.run_id, first.already_existed) == (run_id, False)
    assert (second.run_id, second.already_existed, second.status_at_start) == (
        run_id,
        True,
        "running",
    )


async def test_a_fork_that_cannot_be_made_says_why(client: Client, finisher: Finisher) -> None:
    origin = await with_steps(client, finisher, "reserve", "charge")
    with pytest.raises(ForkRefused, match="no key 'chrage': there are reserve, charge"):
        await client.runs.fork(origin, step="chrage")
    with pytest.raises(ForkRefused, match=r"has no 9 events.* 1 to \d+, its length"):
        await client.runs.fork(origin, index=9)
    with pytest.raises(ForkRefused, match="an index is 1 or more"):
        await client.runs.fork(origin, index=0)
    with pytest.raises(ForkRefused, match="'charge': no step or activity"):
        await client.runs.fork(origin, step="charge", results={"charge": 1})
    with pytest.raises(ConfigurationError, match="either a step or an index"):
        await client.runs.fork(origin, step="charge", index=1)
    with pytest.raises(RunNotFound):
        await client.runs.fork(uuid4())


async def failed(client: Client, finisher: Finisher, store: Store) -> UUID:
    """Start a run that fails after a step."""
    handle = await client.start(tick, tags=["night"])
    [task] = await finisher.claim()
    now = await store.now()
    reason = '{"kind":"holdfast.errors.StepFailed","message":"step charge failed: no"}'
    await finisher.write(
        task,
        Event("StepCompleted", "reserve", '{"result":1,"args":1}', now),
        Event("StepFailed", "charge", f'{{"error":{reason},"args":1,"attempt":3}}', now),
        Event("WorkflowFailed", None, reason, now),
        then=Finish("failed", error=reason),
    )
    return handle.run_id


async def test_a_retry_continues_where_the_run_failed(
    client: Client, finisher: Finisher, store: Store
) -> None:
    retry = await client.runs.retry(await failed(client, finisher, store))
    assert await types(client, retry.run_id) == [
        "WorkflowStarted",
        "StepCompleted",
        "WorkflowForked",
    ]
    await finisher.complete("done")
    assert await retry.result() == "done"


async def test_a_run_is_retried_once(client: Client, finisher: Finisher, store: Store) -> None:
    run_id = await failed(client, finisher, store)
    first, second = await client.runs.retry(run_id), await client.runs.retry(run_id)
    assert (first.already_existed, second.already_existed) == (False, True)
    assert second.run_id == first.run_id
    await finisher.fail(ValueError("again"))
    again = await client.runs.retry(first.run_id)
    assert not again.already_existed
    assert again.run_id not in (run_id, first.run_id)


async def test_a_retry_is_another_run_than_that_of_a_key_in_a_workflow_named_retry(
    client: Client, finisher: Finisher, store: Store
) -> None:
    run_id = await failed(client, finisher, store)
    keyed = await client.start("run/retry", key=str(run_id))
    retry = await client.runs.retry(run_id)
    assert not retry.already_existed
    assert retry.run_id != keyed.run_id
    assert (await client.runs.get(retry.run_id)).name == "tick"


async def test_a_retry_of_an_earlier_release_is_found(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """Its id was made of another name."""
    run_id = await failed(client, finisher, store)
    former = former_retry_run_id(run_id)
    outcome, _ = await store.fork_run(Fork(run_id=run_id, new_run_id=former, retry=True))
    assert outcome == "forked"
    retry = await client.runs.retry(run_id)
    assert (retry.run_id, retry.already_existed) == (former, True)


async def test_an_open_run_cannot_be_retried(client: Client) -> None:
    handle = await client.start(tick)
    with pytest.raises(ForkRefused, match="only a run that failed"):
        await client.runs.retry(handle.run_id)


async def test_a_retry_follows_a_run_that_continued(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    [task] = await finisher.claim()
    await finisher.continue_as_new(task)
    await finisher.fail(ValueError("no"))
    assert not (await client.runs.retry(handle.run_id)).already_existed
