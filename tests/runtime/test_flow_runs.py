"""Flows whose steps are runs of workflows and of other flows, on workers and on virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Context, Retry
from holdfast.client import Client
from holdfast.errors import ConfigurationError, RunFailed
from holdfast.insight.why import explain_run
from holdfast.store.port import Store
from holdfast.testing import Environment
from tests.runtime.desk import working

app = App("runs")
tries: list[str] = []


@dataclass
class Parcel:
    name: str
    grams: int


@app.workflow
async def weigh(ctx: Context, parcel: Parcel) -> int:
    return parcel.grams


@app.workflow
async def slow(ctx: Context, parcel: Parcel) -> str:
    await asyncio.sleep(86_400)
    return f"{parcel.name} has arrived"


@app.step(retry=Retry.NEVER)
async def attempt(parcel: Parcel) -> str:
    tries.append(parcel.name)
    if len(tries) < 3:
        raise ValueError("not yet")
    return "at last"


@app.workflow
async def shaky(ctx: Context, parcel: Parcel) -> str:
    return await attempt(parcel)


@app.workflow
async def never(ctx: Context, parcel: Parcel) -> str:
    raise ValueError(f"{parcel.name} is lost")


@app.workflow(timeout="1h")
async def limited(ctx: Context, parcel: Parcel) -> None:
    await asyncio.sleep(86_400)


label = app.flow("label", input=Parcel)


@label.step
async def text(run: Parcel) -> str:
    return run.name.upper()


ship = app.flow("ship", input=list[str])


@ship.step
async def packed(run: list[str]) -> list[Parcel]:
    return [Parcel(name, 100 * len(name)) for name in run]


@ship.step
async def first(packed: list[Parcel]) -> Parcel:
    return packed[0]


weights = ship.run_map("weights", weigh, over=packed)
labels = ship.run_map("labels", label, over=packed)
heaviest = ship.run_step("heaviest", weigh, of=first)


@ship.step
async def summary(
    weights: list[int], labels: list[dict[str, Any]], grams: int = heaviest.output
) -> str:
    return f"{sum(weights)} {[each['text'] for each in labels]} {grams}"


@app.workflow
async def order(ctx: Context, names: list[str]) -> object:
    return (await ship(names))["summary"]


def flow_of(definition: Any, **options: Any) -> Any:
    flow = app.flow(f"flow_{definition.name}_{len(app.flows)}", input=Parcel)
    flow.run_step("sub", definition, **options)
    return flow


waits = flow_of(slow)
again = flow_of(shaky, attempts=3, base_delay="1h")
loses = flow_of(never, attempts=1)
skips = flow_of(never, attempts=1, on_exhausted="skip")
too_long = flow_of(limited, attempts=1)


async def test_steps_and_maps_are_runs_of_workflows_and_flows(store: Store) -> None:
    """Three levels: a workflow awaits a flow whose steps are runs of workflows and of a flow."""
    async with Client(app=app, store=store) as client, working(app, store):
        assert await client.run(order, ["lamp", "vases"], wait="60s") == (
            "900 ['LAMP', 'VASES'] 400"
        )


async def test_the_error_of_a_run_is_that_of_the_flow(store: Store) -> None:
    async with Client(app=app, store=store) as client, working(app, store):
        with pytest.raises(RunFailed, match="lamp is lost") as failure:
            await client.run(loses, Parcel("lamp", 1), wait="60s")
        assert failure.value.error.cause is not None
        assert failure.value.error.cause.kind == "holdfast.errors.ChildFailed"
        assert await client.run(skips, Parcel("lamp", 1), wait="60s") == {}


async def test_a_run_that_takes_a_day_is_waited_for() -> None:
    async with Environment(app) as env:
        began = env.now
        assert await env.run(waits, Parcel("lamp", 1)) == {"sub": "lamp has arrived"}
        assert (env.now - began).total_seconds() >= 86_400


async def test_why_names_the_run_that_a_step_waits_for() -> None:
    async with Environment(app) as env:
        handle = await env.client.start(waits, Parcel("lamp", 1))
        await env.wait_until_idle()
        [record] = (await env.store.get_runs([handle.run_id])).values()
        found = await explain_run(env.store, record)
        [child] = (await env.client.runs.list(parent=handle.run_id)).runs
        assert found.because == f"step sub waits for run {child.run_id} of runs/slow@1"
        assert [action.run_id for action in found.actions] == [child.run_id]


async def test_why_names_no_run_that_a_cancel_has_stopped() -> None:
    flow = flow_of(slow)

    @flow.step(trigger_rule="always", start_delay="1h")
    async def clean() -> None:
        pass

    async with Environment(app) as env:
        handle = await env.client.start(flow, Parcel("lamp", 1))
        await env.wait_until_idle()
        await handle.cancel("no")
        await env.wait_until_idle()
        found = await env.client.why(handle.run_id)
        assert found.because is not None
        assert found.because.startswith("step clean, which always runs at the end, begins at")


async def test_runs_that_fail_are_followed_by_others_after_the_pauses() -> None:
    tries.clear()
    async with Environment(app) as env:
        began = env.now
        assert await env.run(again, Parcel("lamp", 1)) == {"sub": "at last"}
        assert tries == ["lamp"] * 3
        assert (env.now - began).total_seconds() >= 6 * 3600


async def test_the_timeout_of_the_workflow_holds_for_the_step() -> None:
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="took too long"):
            await env.run(too_long, Parcel("lamp", 1))


def test_types_are_checked_where_the_step_is_defined() -> None:
    flow = App("typed").flow("f", input=str)
    parcel: Any = weigh
    with pytest.raises(ConfigurationError, match="takes Parcel, but the run's input is str"):
        flow.run_step("sub", parcel)
    with pytest.raises(ConfigurationError, match="it needs a list"):
        flow.run_map("sub", parcel, over=flow.run)
    itself: Any = flow
    with pytest.raises(ConfigurationError, match="would start a run of its own flow"):
        flow.run_step("sub", itself)
    with pytest.raises(ConfigurationError, match="runs a workflow or a flow, not 'weigh'"):
        flow.run_step("sub", "weigh")  # type: ignore[call-overload]


def test_what_a_step_runs_is_part_of_its_shape() -> None:
    [step] = [step for step in ship.shape.steps if step.slug == "labels"]
    assert (step.runs, step.runs_kind, step.kind) == ("runs/label@1", "flow", "map")
    assert set(ship.steps) == {"packed", "first", "summary"}
