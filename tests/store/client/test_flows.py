"""Flows, started by clients: from their code, by name, and in the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from holdfast import App, Client
from holdfast.client import waiting
from holdfast.client.waiting import EndWatcher
from holdfast.errors import (
    ConfigurationError,
    FlowInUse,
    InvalidInput,
    RunNotFound,
    UnknownFlow,
    UnknownWorkflow,
)
from holdfast.flows import shape_hash
from holdfast.store.port import Store
from holdfast.types import RunRecord

app = App("web")
analyze = app.flow("analyze", input=list[int])


@analyze.map(analyze.run)
async def doubled(number: int) -> int:
    return 2 * number


@pytest.fixture
async def compiled(store: Store) -> Store:
    """Provide a store that has the flow."""
    await store.ensure_flow(analyze.shape, shape_hash(analyze.shape))
    return store


async def test_a_flow_is_started_by_its_name_without_its_code(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        handle = await client.start("web/analyze", [1, 2])
        run = await handle.get()
    assert (run.kind, run.name, run.version, run.input) == ("flow", "analyze", 1, [1, 2])
    assert {
        step.initial_tasks for step in (await compiled.flow_steps([run.run_id]))[run.run_id]
    } == {2}


async def test_a_key_finds_the_same_run_of_a_flow(compiled: Store) -> None:
    async with Client(store=compiled, app=app) as client:
        first = await client.start(analyze, [1], key="one")
        again = await client.start("analyze", [1], key="one")
    assert (again.run_id, again.already_existed) == (first.run_id, True)


async def test_an_input_of_another_type_is_refused_before_a_run_exists(compiled: Store) -> None:
    async with Client(store=compiled, app=app) as client:
        with pytest.raises(InvalidInput):
            await client.start("analyze", "no list", run_id=UUID(int=7))
        with pytest.raises(InvalidInput, match="must be an array"):
            async with Client(store=compiled) as stranger:
                await stranger.start("web/analyze", "no list", run_id=UUID(int=7))
    assert not await compiled.get_runs([UUID(int=7)])


async def test_many_runs_of_a_flow_are_started_together(compiled: Store) -> None:
    async with Client(store=compiled, app=app) as client:
        handles = await client.start_many(analyze, [[number] for number in range(20)])
        runs = [await handle.get() for handle in handles]
    assert [run.input for run in runs] == [[number] for number in range(20)]


async def test_a_name_that_is_neither_a_workflow_nor_a_flow_is_refused(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        with pytest.raises(UnknownWorkflow):
            await client.start("nothing")


async def test_a_flow_without_its_app_means_the_same_run_by_key(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        first = await client.start("web/analyze", [1], key="one")
        again = await client.start("analyze", [1], key="one")
        assert (again.run_id, again.already_existed) == (first.run_id, True)
        assert (await client.runs.get(("analyze", "one"))).run_id == first.run_id
        assert (await client.runs.list(names="analyze")).runs[0].run_id == first.run_id


async def test_a_mistyped_flow_is_asked_about(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        with pytest.raises(UnknownWorkflow, match="did you mean web/analyze"):
            await client.start("analyse")


async def test_flows_of_an_app_are_compiled_once(store: Store) -> None:
    async with Client(store=store) as client:
        (missing,) = await client.flows.check(app)
        assert (missing.name, missing.version, missing.status) == ("web/analyze", 1, "missing")
        assert [each.status for each in await client.flows.compile(app)] == ["compiled"]
        assert [each.status for each in await client.flows.compile(app)] == ["verified"]
        assert [each.status for each in await client.flows.check(app)] == ["verified"]


async def test_another_shape_of_a_version_is_refused_or_replaced(compiled: Store) -> None:
    other = App("web")
    changed = other.flow("analyze", input=list[int])

    @changed.step(timeout="30s")
    async def total(run: list[int]) -> int:
        return sum(run)

    async with Client(store=compiled) as client:
        handle = await client.start("web/analyze", [1])
        (found,) = await client.flows.check(other)
        assert found.status == "different"
        assert "step total is not in the database" in found.differences
        with pytest.raises(ConfigurationError, match="give the new one version=2"):
            await client.flows.compile(other)
        assert await handle.status() == "running"
        (replaced,) = await client.flows.compile(other, replace=True)
        assert (replaced.status, replaced.ended) == ("replaced", 1)
        assert replaced.differences == found.differences
        assert await handle.status() == "terminated"


async def test_flows_that_run_each_other_in_a_circle_are_refused(store: Store) -> None:
    """Each run would start another one, until no more fit into each other."""
    web, other = App("web"), App("other")
    first, second, third = web.flow("first"), web.flow("second"), other.flow("third")
    first.run_step("down", second)
    second.run_step("down", third)
    circle = "other/third@1 runs web/first@1 in step up, web/first@1 runs web/second@1 in step down"
    async with Client(store=store) as client:
        await client.flows.compile(web)
        third.run_step("up", first)
        for refuse in (client.flows.compile, client.flows.check):
            with pytest.raises(ConfigurationError, match=circle):
                await refuse(other)
        assert [found.status for found in await client.flows.check(web)] == ["verified"] * 2


async def test_flows_are_listed_and_their_shapes_are_read(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        await client.start("analyze", [1])
        (found,) = await client.flows.list()
        assert (found.name, found.steps, found.from_code) == ("web/analyze", 1, True)
        assert found.open_runs == 1
        assert (await client.flows.get("analyze")) == analyze.shape
        assert (await client.flows.get(analyze, 1)).steps[0].slug == "doubled"
        for name, version in (("nothing", None), ("analyze", 7)):
            with pytest.raises(UnknownFlow):
                await client.flows.get(name, version)


@pytest.mark.parametrize("told", [True, False])
async def test_who_waits_for_a_run_that_is_deleted_is_told(
    compiled: Store, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a notice at once, and if that is lost by a look that finds no run."""
    if told:
        monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 3600)
    else:
        monkeypatch.setattr(waiting, "EXISTENCE_SECONDS", 0)
        monkeypatch.setattr(EndWatcher, "_hear", lambda watcher, payload: None)
    wait_for_end = compiled.wait_for_end
    registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def registering(topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        ended = await wait_for_end(topic, run_ids)
        if not registered.done():
            registered.set_result(None)
        return ended

    monkeypatch.setattr(compiled, "wait_for_end", registering)
    async with Client(store=compiled) as client:
        handle = await client.start("analyze", [1])
        result = asyncio.create_task(handle.result(timeout="1m"))
        await registered
        assert await client.flows.delete("analyze", terminate=True) == 1
        with pytest.raises(RunNotFound):
            await result


async def test_a_flow_is_deleted_with_its_runs_once_they_have_ended(compiled: Store) -> None:
    async with Client(store=compiled) as client:
        handle = await client.start("analyze", [1])
        with pytest.raises(FlowInUse):
            await client.flows.delete("analyze")
        assert await client.flows.delete("analyze", terminate=True) == 1
        assert await client.flows.list() == []
        with pytest.raises(RunNotFound):
            await handle.get()
        with pytest.raises(UnknownFlow):
            await client.flows.delete("analyze")
