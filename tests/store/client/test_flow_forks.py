"""Forks of runs of flows, by clients."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.errors import ConfigurationError, ForkRefused, InvalidInput, RunNotFound

from .flow_scene import FlowScene, mapped, single


async def test_a_fork_with_another_result_runs_the_steps_behind_it(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await scene.complete((await scene.take())["site"], "a page")
    await scene.complete((await scene.take())["save"], "saved")
    new_run_id = uuid4()
    forked = await client.runs.fork(run_id, results={"site": "other"}, run_id=new_run_id)
    assert (forked.run_id, forked.already_existed) == (new_run_id, False)
    taken = await scene.take()
    assert (list(taken), taken["save"].payload) == (["save"], '{"site":"other"}')
    await scene.complete(taken["save"], "again")
    assert await forked.result(timeout=60) == {"save": "again"}
    again = await client.runs.fork(run_id, results={"site": "other"}, run_id=new_run_id)
    assert (again.already_existed, again.status_at_start) == (True, "completed")
    assert (await client.runs.get(run_id)).output == {"save": "saved"}


async def test_a_fork_with_another_input_begins_from_the_start(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(mapped("pages"), single("save", "pages"), given=["a"])
    await scene.complete((await scene.take())["pages:0"])
    await scene.store.terminate_runs([run_id])
    await client.runs.fork(run_id, input=["b", "c"])
    taken = await scene.take()
    assert [taken[f"pages:{place}"].payload for place in range(2)] == ['"b"', '"c"']
    with pytest.raises(InvalidInput, match="maps over the input"):
        await client.runs.fork(run_id, input=1)
    with pytest.raises(InvalidInput, match="step pages is a map"):
        await client.runs.fork(run_id, results={"pages": 1})


async def test_a_fork_from_a_step_runs_it_again(client: Client, scene: FlowScene) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    await scene.complete((await scene.take())["site"], "a page")
    await scene.complete((await scene.take())["save"], "saved")
    await client.runs.fork(run_id, step="save")
    assert list(await scene.take()) == ["save"]
    kept = await client.runs.fork(run_id)
    assert (kept.status_at_start, await kept.result(timeout=60)) == ("completed", {"save": "saved"})


async def test_a_fork_that_cannot_be_is_refused_with_a_reason(
    client: Client, scene: FlowScene
) -> None:
    run_id = await scene.start(single("site"), single("save", "site"))
    for options in ({"results": {"save": 1, "sit": 1}}, {"step": "sit"}):
        with pytest.raises(ForkRefused, match=r"no step 'sit': there are site, save"):
            await client.runs.fork(run_id, **options)
    for options, words in (
        ({"index": 1}, "a flow's log is not replayed"),
        ({"version": 2}, "has the version of its run"),
        ({"step": "site", "results": {"site": 1}}, "either to run it again, or a result"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await client.runs.fork(run_id, **options)
    with pytest.raises(RunNotFound):
        await client.runs.fork(uuid4())
