"""Retries of runs of flows, by clients."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from holdfast.errors import ForkRefused

from .flow_scene import NAME, FlowScene, mapped, single
from .workflows import Finisher, tick


async def fail(scene: FlowScene) -> None:
    """Complete the step site, and fail the one behind it."""
    await scene.complete((await scene.take())["site"], [1])
    await scene.fail((await scene.take())["save"], retryable=False)


async def test_a_retry_of_a_flow_keeps_the_steps_that_completed(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await fail(scene)
    retried = await client.runs.retry(run_id)
    assert (retried.already_existed, retried.status_at_start) == (False, "running")
    taken = await scene.take()
    assert list(taken) == ["save"]
    await scene.complete(taken["save"], "saved")
    assert await retried.result(timeout=60) == {"save": "saved"}
    again = await client.runs.retry(run_id)
    assert (again.run_id, again.already_existed) == (retried.run_id, True)
    assert again.status_at_start == "completed"


async def test_a_retry_from_a_step_repeats_that_step_and_all_behind_it(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await fail(scene)
    retried = await client.runs.retry(run_id, from_step="site")
    assert list(await scene.take()) == ["site"]
    spans = (await client.timeline(retried.run_id)).spans
    assert [span.origin_run_id for span in spans if span.kind == "fork"] == [str(run_id)]


async def test_a_completed_run_is_retried_only_from_a_step(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"))
    await scene.complete((await scene.take())["site"])
    with pytest.raises(ForkRefused, match="give a step from which"):
        await client.runs.retry(run_id)
    await client.runs.retry(run_id, from_step="site")
    assert list(await scene.take()) == ["site"]


async def test_a_retry_that_cannot_be_is_refused_with_a_reason(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    with pytest.raises(ForkRefused, match="it has not ended"):
        await client.runs.retry(run_id)
    await fail(scene)
    with pytest.raises(ForkRefused, match=r"no step 'sit': there are site, save"):
        await client.runs.retry(run_id, from_step="sit")


async def test_a_completed_run_is_retried_for_what_failed_in_it(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(
        mapped("sent", tolerated_count=1), single("last", "sent"), given=[1, 2], key="k"
    )
    taken = await scene.take()
    await scene.complete(taken["sent:0"], 10)
    await scene.fail(taken["sent:1"], retryable=False)
    await scene.complete((await scene.take())["last"])
    with pytest.raises(ForkRefused, match="either from_step or failed_steps"):
        await client.runs.retry(run_id, from_step="sent", failed_steps=True)
    with pytest.raises(ForkRefused, match="no step ''"):
        await client.runs.retry(run_id, from_step="")
    retried = await client.runs.retry(run_id, failed_steps=True)
    taken = await scene.take()
    assert list(taken) == ["sent:1"]
    await scene.complete(taken["sent:1"], 20)
    await scene.complete((await scene.take())["last"])
    with pytest.raises(ForkRefused, match="no step or element of it has failed"):
        await client.runs.retry(retried.run_id, failed_steps=True)
    again = await client.runs.retry((NAME, "k"), failed_steps=True)  # as after a lost answer
    assert (again.run_id, again.already_existed) == (retried.run_id, True)


async def test_only_flows_are_retried_from_a_step(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.fail(ValueError("broken"))
    with pytest.raises(ForkRefused, match="a run of a workflow"):
        await client.runs.retry(handle.run_id, from_step="charge")


async def test_failed_flows_are_retried_together_with_failed_workflows(
    client: Client, scene: FlowScene, finisher: Finisher
) -> None:
    await scene.start(single("site"), single("save", "site"))
    await fail(scene)
    await client.start(tick)
    await finisher.fail(ValueError("broken"))
    done = await client.runs.retry_all({})
    assert (done.matched, done.changed) == (2, 2)
    assert (await client.runs.retry_all({"names": NAME})).changed == 0
