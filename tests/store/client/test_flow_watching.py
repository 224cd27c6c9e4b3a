"""Watching the steps of a flow's run, from a client. P10."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, RunNotFound
from holdfast.insight.flow_progress import StepProgress

from .flow_scene import FlowScene, mapped, single
from .workflows import tick


def states(steps: list[StepProgress]) -> dict[str, str]:
    return {step.step: step.state for step in steps}


async def test_steps_are_seen_as_they_change_to_the_end_of_the_run(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), mapped("page", "site"), single("save", "page"))
    changes = client.handle(run_id).watch_steps()
    assert states(await anext(changes)) == {"site": "queued", "page": "created", "save": "created"}
    site = (await scene.take())["site"]
    assert states(await anext(changes))["site"] == "running"
    await scene.complete(site, [1, 2])
    found = await anext(changes)
    assert states(found) == {"site": "completed", "page": "running", "save": "created"}
    assert (found[1].done, found[1].tasks) == (0, 2)
    first, second = (await scene.take()).values()
    await scene.complete(first)
    assert (await anext(changes))[1].done == 1
    await scene.complete(second)
    await anext(changes)
    await scene.complete((await scene.take())["save"], "saved")
    rest = [each async for each in changes]
    assert states(rest[-1]) == dict.fromkeys(("site", "page", "save"), "completed")
    assert rest[-1][2].output is None


async def test_a_run_that_has_ended_is_seen_once(client: Client, scene: FlowScene) -> None:
    run_id = await scene.start(single("site"), single("mail"))
    await scene.fail((await scene.take(1)).popitem()[1], retryable=False)
    (found,) = [each async for each in client.runs.watch_steps(run_id)]
    assert sorted(states(found).values()) == ["created", "failed"]


async def test_a_watcher_that_sees_no_change_reads_less_and_less(
    client: Client, scene: FlowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await scene.start(single("site"))
    store, reads = client._session.store, 0  # pyright: ignore[reportPrivateUsage]
    read = store.flow_steps

    async def counted(*arguments: object, **options: object) -> object:
        nonlocal reads
        reads += 1
        return await read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "flow_steps", counted)
    seen = asyncio.create_task(_last(client, run_id))
    await asyncio.sleep(2.0)
    assert reads <= 8
    await client.runs.terminate(run_id)
    assert states(await seen) == {"site": "created"}


async def _last(client: Client, run_id: object) -> list[StepProgress]:
    return [each async for each in client.runs.watch_steps(run_id)][-1]  # type: ignore[arg-type]


async def test_only_runs_of_flows_can_be_watched(client: Client) -> None:
    handle = await client.start(tick)
    with pytest.raises(ConfigurationError, match="follow_log"):
        await anext(handle.watch_steps())
    with pytest.raises(RunNotFound):
        await anext(client.runs.watch_steps(uuid4()))


async def test_a_step_that_is_a_run_is_not_retrying(client: Client, scene: FlowScene) -> None:
    """No worker has it; its attempt is the first."""
    pay = single("pay", runs="shop/pay@1", runs_kind="workflow")
    run_id = await scene.start(pay, single("site", base_delay=60))
    await scene.fail((await scene.take())["site"])
    found = await anext(client.handle(run_id).watch_steps())
    assert states(found) == {"pay": "running", "site": "retrying"}
