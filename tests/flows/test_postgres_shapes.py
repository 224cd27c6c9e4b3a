"""Shapes through the store on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hand import Hand
from tests.runtime.desk import eventually, working

from holdfast import App, Client
from holdfast.errors import InvalidInput
from holdfast.store.postgres import PostgresStore
from holdfast.types import EnsuredFlow, FlowShape, StepShape

PAGE = StepShape(slug="page", wants_run=True)
EACH = StepShape(
    slug="each", kind="map", deps=("page",), queue="gpu", max_attempts=2, required='{"a": 1}'
)
SHAPE = FlowShape(name="shop/site", queue="slow", steps=(PAGE, EACH))


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database_url)
    await store.open()
    yield store
    await store.close()


async def test_a_shape_is_written_once_and_read_whole(store: PostgresStore) -> None:
    assert await store.ensure_flow(SHAPE, "h") == EnsuredFlow("compiled", None, 0, [])
    assert await store.ensure_flow(SHAPE, "h") == EnsuredFlow("verified", None, 0, [])
    assert await store.get_flow("shop/site") == SHAPE
    assert await store.get_flow("site", 1) == SHAPE
    assert await store.get_flow("site", 2) is None
    (info,) = await store.list_flows()
    assert (info.name, info.version, info.steps, info.open_runs) == ("shop/site", 1, 2, 0)
    assert info.from_code


async def test_another_shape_is_reported_or_replaced(store: PostgresStore) -> None:
    await store.ensure_flow(SHAPE, "h")
    other = FlowShape(name="shop/site", steps=(PAGE,))
    assert await store.ensure_flow(other, "i") == EnsuredFlow("mismatch", SHAPE, 0, [])
    assert (await store.ensure_flow(other, "i", replace=True)).status == "replaced"
    assert await store.get_flow("site") == other


async def test_a_shape_that_cannot_be_is_refused(store: PostgresStore) -> None:
    with pytest.raises(InvalidInput, match="step each depends on 'page', which is not among"):
        await store.ensure_flow(FlowShape(name="shop/site", steps=(EACH, PAGE)), "h")


async def test_workers_work_on_a_flow_that_sql_has_created(
    store: PostgresStore, hand: Hand
) -> None:
    """It gives `run` to all steps: those whose code does not take it as well, until it is seen."""
    hand.define("shop/site", ("page", []), ("size", ["page"]))

    def build(timeout: str | None) -> App:
        app = App("shop")
        site = app.flow("site", input=str)

        @site.step
        async def page(run: str) -> str:
            return f"page of {run}"

        @site.step(timeout=timeout)
        async def size(page: str) -> int:
            return len(page)

        return app

    app = build(None)
    (site,) = app.flows.values()
    async with Client(store=store) as client:
        (found,) = await client.flows.check(app)
        assert (found.status, found.differences) == ("verified", ())
        (found,) = await client.flows.check(build("9s"))
        assert found.differences == (
            "step size: timeout 9 s in the code, the flow's in the database",
        )
        async with working(app, store):
            assert await client.run(site, "x", wait="60s") == {"size": 9}
        (found,) = await client.flows.check(app)
        assert (found.status, found.differences) == ("verified", ())
        assert await client.flows.get("site") == site.shape


async def test_a_flow_that_sql_has_made_again_is_left_until_it_was_compared(
    store: PostgresStore, hand: Hand
) -> None:
    app = App("shop")
    site = app.flow("site", input=str)

    @site.step
    async def page(run: str) -> str:
        return f"page of {run}"

    async with working(app, store), Client(store=store) as client:
        await client.flows.delete("shop/site")
        hand.define("shop/site", ("page", []))
        handle = await client.start(site, "x")

        async def is_left() -> bool:
            return "SQL has made flow shop/site@1 since" in str(await client.why(handle.run_id))

        await eventually(is_left)
        await client.flows.compile(app)
        assert await handle.result("60s") == {"page": "page of x"}
