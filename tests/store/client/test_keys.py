"""A key means the newest run: what its run was continued as, and retried as."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from holdfast.client import Client
from holdfast.client.messaging import Signal
from holdfast.errors import ResultTimeout, RunFailed
from holdfast.types import ANY_END, JSON, Suspend

from .workflows import Finisher, tick

KEY = ("shop/tick", "k")


async def test_after_a_retry_the_key_means_the_retry(client: Client, finisher: Finisher) -> None:
    first = await client.start(tick, key="k")
    await finisher.fail(ValueError("no"))
    retried = await client.runs.retry(KEY)
    assert retried.run_id != first.run_id
    again = await client.runs.retry(KEY)
    assert (again.run_id, again.already_existed, again.status_at_start) == (
        retried.run_id,
        True,
        "running",
    )
    assert (await client.runs.get(KEY)).run_id == retried.run_id
    assert (await client.runs.get(first.run_id)).status == "failed"
    assert await client.signal(KEY, "go", signal_id="s-1")
    assert not await client.signal(KEY, "go", signal_id="s-1")
    assert {entry.run_id for entry in await client.runs.log(KEY)} == {retried.run_id}
    assert await client.runs.pause(KEY)
    assert (await retried.get()).state == "paused"
    assert await client.runs.resume(KEY)
    await finisher.complete(3)
    assert await client.handle(KEY).result() == 3
    assert (await client.runs.wait(KEY)).run_id == retried.run_id
    with pytest.raises(RunFailed):
        await client.handle(first.run_id).result()
    assert (await client.runs.wait(first.run_id)).status == "failed"


async def test_signals_that_are_sent_together_reach_the_retries_of_keys(
    client: Client, finisher: Finisher
) -> None:
    first = await client.start(tick, key="k")
    await finisher.fail(ValueError("no"))
    retried = await client.runs.retry(KEY)
    sent = [Signal(run, "go", signal_id="s") for run in (first.run_id, KEY, KEY)]
    assert await client.signal_many(sent) == ["ended", "delivered", "duplicate"]
    assert not await client.signal(retried.run_id, "go", signal_id="s")


async def test_the_handle_of_a_start_with_a_key_is_one_of_the_key(
    client: Client, finisher: Finisher
) -> None:
    """C19. What it reads is what it signals: the newest run. Its `run_id` leads to the first."""
    first = await client.start(tick, key="k")
    [task] = await finisher.claim()
    second = await finisher.continue_as_new(task)
    [task] = await finisher.claim()
    asked: JSON = {"title": "Ok?", "description": "", "fields": [], "timeout_at": None}
    approval = await finisher.event("ApprovalRequested", "ok", asked)
    value = await finisher.event("ValueSet", "phase", {"value": 2})
    waits = Suspend(awaiting=(ANY_END,))
    await finisher.write(task, approval, value, then=waits, has_commands=True)
    [several] = await client.start_many(tick, [None], keys=["k"])
    for handle in (first, several, await client.start(tick, key="k"), client.handle(KEY)):
        assert (await handle.status(), await handle.values()) == ("running", {"phase": 2})
        assert [approval.run_id for approval in await handle.approvals()] == [second]
        assert {entry.run_id for entry in await handle.log()} == {second}
        assert await handle.signal("go")
    assert (await client.handle(first.run_id).get()).continued_as == second


async def test_a_start_of_a_key_that_was_retried_returns_the_result_of_the_retry(
    client: Client, finisher: Finisher
) -> None:
    """C19. Also while the retry runs, and for who waits at once."""
    first = await client.start(tick, key="k")
    await finisher.fail(ValueError("no"))
    with pytest.raises(RunFailed):
        await first.result()
    await client.runs.retry(KEY)
    again = await client.start(tick, key="k")
    assert (again.run_id, again.already_existed) == (first.run_id, True)
    for handle in (first, again):
        with pytest.raises(ResultTimeout):
            await handle.result(timeout=0)
    with pytest.raises(ResultTimeout):
        await client.run(tick, key="k", wait=0.01)
    await finisher.complete(3)
    assert [await first.result(), await again.result(), await client.run(tick, key="k")] == [3] * 3


async def test_the_key_leads_through_retries_and_continuations(
    client: Client, finisher: Finisher
) -> None:
    first = await client.start(tick, key="k")
    [task] = await finisher.claim()
    second = await finisher.continue_as_new(task)
    await finisher.fail(ValueError("no"))
    third = (await client.runs.retry(KEY)).run_id
    await finisher.fail(ValueError("no"))
    fourth = (await client.runs.retry(KEY)).run_id
    assert len({first.run_id, second, third, fourth}) == 4
    assert (await client.runs.get(KEY)).run_id == fourth
    assert (await client.runs.get(first.run_id)).continued_as == second


async def test_a_list_by_key_has_all_runs_of_the_key(client: Client, finisher: Finisher) -> None:
    """C19. What continued or retried the run that was started with it, the newest first."""
    other = await client.start(tick, key="other")
    [task] = await finisher.claim()
    await finisher.continue_as_new(task)
    first = await client.start(tick, key="k")
    [task] = [each for each in await finisher.claim() if each.run_id == first.run_id]
    second = await finisher.continue_as_new(task)
    assert await listed(client, key="k") == {second, first.run_id}
    await client.runs.terminate(second)
    third = (await client.runs.retry(KEY)).run_id
    await client.runs.terminate(third)
    fourth = (await client.runs.retry(KEY)).run_id
    chain = {fourth, third, second, first.run_id}
    assert await listed(client, key="k") == chain
    assert await listed(client, key="k", names=["shop/tick", "shop/none"]) == chain
    assert await listed(client, key="k", names="shop/none") == set()
    assert await listed(client, key="k", states="terminated") == {third, second}
    assert await listed(client, key="k", states=["queued", "continued"]) == {fourth, first.run_id}
    assert await listed(client, key="k", tags="none") == set()
    assert await listed(client, key="none") == set()
    page = await client.runs.list(key="k", limit=3)
    rest = await client.runs.list(key="k", limit=3, cursor=page.cursor)
    runs = [*page.runs, *rest.runs]
    assert (len(page.runs), {run.run_id for run in runs}) == (3, chain)
    assert runs == sorted(runs, key=lambda run: (run.created_at, run.run_id), reverse=True)
    assert len(await listed(client)) == 6
    found = await listed(client, key="other")
    assert (len(found), other.run_id in found) == (2, True)


async def listed(client: Client, **filters: Any) -> set[UUID]:
    return {run.run_id for run in (await client.runs.list(**filters)).runs}


async def test_a_signal_with_an_id_comes_once_to_the_runs_of_a_key(
    client: Client, finisher: Finisher
) -> None:
    await client.start(tick, key="k")
    assert await client.signal(KEY, "go", signal_id="s-1")
    [task] = await finisher.claim()
    await finisher.continue_as_new(task)
    assert not await client.signal(KEY, "go", signal_id="s-1")
