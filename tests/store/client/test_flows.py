"""Flows, started by clients: from their code, by name, and in the caller's transaction."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast import App, Client
from holdfast.errors import InvalidInput, UnknownWorkflow
from holdfast.flows import shape_hash
from holdfast.store.port import Store

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
