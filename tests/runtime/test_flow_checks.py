"""What a check makes of the recorded values of flows' runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Client
from holdfast.definitions.flows import Flow
from holdfast.insight.check import Check, CheckReport
from holdfast.payloads import AesGcm
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.testing import Environment

AnyType = Any
ITEM = {"name": "ann"}


@dataclass
class Old:
    name: str


@dataclass
class New:
    name: str
    street: str


def flow_of(app: App, given: AnyType, **options: Any) -> Flow[Any]:
    """Return a flow that waits for an hour before a step takes an output of this type."""
    flow = app.flow("shopping")

    @flow.step
    async def first(run: Any) -> Any:
        return run

    async def second(first: Any) -> str:
        return "done"

    second.__annotations__["first"] = given
    flow.step(start_delay="1h", **options)(second)
    return flow


async def begun(app: App, given: object = ITEM, count: int = 1) -> tuple[MemoryStore, list[UUID]]:
    async with Environment(app, replay=False) as env:
        runs = [await env.client.start("shopping", given) for _ in range(count)]
        await env.wait_until_idle()
    return env.store, [each.run_id for each in runs]


async def checked(app: App, store: Store, **options: Any) -> CheckReport:
    check = Check(app)
    await check.add_open_runs(store, **options)
    return check.report()


async def test_a_finding_names_the_step_and_counts_the_runs() -> None:
    app = App("shop")
    flow_of(app, Old)
    store, run_ids = await begun(app, count=45)
    app = App("shop")
    flow_of(app, New)
    report = await checked(app, store)
    [found] = report.findings
    assert (report.checked, found.kind, found.runs, found.index) == (45, "held", 45, None)
    assert {*found.run_ids} == {*run_ids}
    assert "step second of flow shopping has not ended" in found.reason
    assert "missing required field `street`" in found.reason
    assert (await checked(app, store, sample=2)).checked == 2


@pytest.mark.parametrize("old", [True, False])
async def test_steps_that_have_ended_and_runs_that_have_are_left_out(old: bool) -> None:
    def make(kind: AnyType) -> App:
        app = App("shop")
        flow = app.flow("shopping")

        async def first(run: Any) -> Any:
            return run

        first.__annotations__["run"] = kind
        step = flow.step(first)
        if old:

            @flow.step(start_delay="1h")
            async def second(first: Any) -> str:
                return "done"

        assert step.slug == "first"
        return app

    store, _ = await begun(make(Old))
    report = await checked(make(New), store)
    assert (report.checked, report.findings) == (int(old), [])


async def test_a_step_that_a_condition_may_skip_is_left_out() -> None:
    def make(kind: AnyType) -> App:
        app = App("shop")
        flow = app.flow("shopping")

        @flow.step
        async def first(run: Any) -> Any:
            return run

        @flow.step(start_delay="1h")
        async def later(first: Any) -> dict[str, str]:
            return {"kind": "other"}

        async def second(first: Any, later: Any) -> str:
            return "done"

        second.__annotations__["first"] = kind
        flow.step(when={"later": {"kind": "one"}})(second)
        return app

    store, _ = await begun(make(Old))
    assert (await checked(make(New), store)).findings == []


@pytest.mark.parametrize("tolerate", [None, 1])
async def test_a_value_that_never_fitted_would_fail_unless_a_map_tolerates_it(
    tolerate: int | None,
) -> None:
    def make(kind: AnyType) -> App:
        app = App("shop")
        flow = app.flow("shopping", input=list[Any])

        async def each(item: Any) -> str:
            return "done"

        each.__annotations__["item"] = kind
        flow.map(flow.run, start_delay="1h", tolerate=tolerate)(each)
        return app

    store, _ = await begun(make(Old), [ITEM])
    found = (await checked(make(New), store)).findings
    assert [each.kind for each in found] == ([] if tolerate else ["fails"])


async def test_elements_that_have_ended_need_not_fit() -> None:
    """As many as do not fit may have ended; one more, and one that does not fit is to come."""

    def make(kind: AnyType) -> App:
        app = App("shop")
        flow = app.flow("shopping")

        async def first(run: Any) -> Any:
            return run

        async def each(item: Any) -> str:
            if item["name"] == "bob":
                await asyncio.sleep(3600)
            return "done"

        first.__annotations__["return"], each.__annotations__["item"] = list[kind], kind
        flow.map(flow.step(first))(each)
        return app

    names = [{"name": "ann"}, {"name": "bob", "street": "x"}]
    app = make(dict[str, str])
    store = MemoryStore()
    async with Environment(app, replay=False) as env:
        await env.client.start("shopping", names)
        await asyncio.sleep(0.3)
        store = env.store
        assert (await checked(make(New), store)).findings == []
        await env.client.start("shopping", [*names, {"name": "bob"}])
        await asyncio.sleep(0.3)
        assert [each.runs for each in (await checked(make(New), store)).findings] == [1]


async def test_runs_whose_payloads_are_locked_are_named_and_the_others_are_checked() -> None:
    key = AesGcm({"k1": bytes(range(32))})
    app = App("shop", payload_codec=key)
    flow_of(app, Old)
    store, run_ids = await begun(app)
    plain = App("shop")
    flow_of(plain, Old)
    async with Client(store=store, app=plain) as client:
        await client.start("shopping", ITEM)
    report = await checked(plain, store)
    assert [each.where for each in report.unchecked] == [str(run_ids[0])]
    assert report.checked == 1
