"""A key means the newest run: what its run was continued as, and retried as."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from holdfast.errors import RunFailed

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
    with pytest.raises(RunFailed):
        await first.result()


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


async def test_a_signal_with_an_id_comes_once_to_the_runs_of_a_key(
    client: Client, finisher: Finisher
) -> None:
    await client.start(tick, key="k")
    assert await client.signal(KEY, "go", signal_id="s-1")
    [task] = await finisher.claim()
    await finisher.continue_as_new(task)
    assert not await client.signal(KEY, "go", signal_id="s-1")
