"""Apps that share a database: what is one's is never another's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import App, Client, Context
from holdfast.errors import AmbiguousWorkflow, ConfigurationError, InvalidInput, UnknownWorkflow
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.values.ids import keyed_run_id
from holdfast.worker import Worker
from tests.runtime.desk import working

PATIENCE = "2m"


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()


def shop(name: str, build: str | None = None) -> App:
    """Return an app whose names all shops have, and whose answers name the shop."""
    app = App(name, build=build)

    @app.activity
    async def pack(order: int) -> str:
        return f"packed by {name}"

    @app.workflow
    async def ship(ctx: Context, order: int) -> str:
        return f"shipped by {ctx.app}"

    @app.workflow
    async def checkout(ctx: Context, order: int) -> list[str]:
        named = await ctx.activity("pack", order, id="by-name", type=str)
        child = await ctx.child("ship", order, id="child-by-name", type=str)
        return [name, await pack(order), named, await ship(order), child]

    return app


def answer(name: str) -> list[str]:
    packed, shipped = f"packed by {name}", f"shipped by {name}"
    return [name, packed, packed, shipped, shipped]


async def test_two_apps_with_the_same_names_run_their_own_runs(store: Store) -> None:
    north, south = shop("north"), shop("south")
    async with AsyncExitStack() as stack:
        for app in (north, south):
            await stack.enter_async_context(working(app, store))
        client = await stack.enter_async_context(Client(store=store))
        started = [
            (app.name, await client.start(app.latest("checkout"), number))  # type: ignore[arg-type]
            for number in range(10)
            for app in (north, south)
        ]
        for name, handle in started:
            assert await handle.result(PATIENCE) == answer(name)
            assert (await handle.get()).app == name


async def test_the_same_key_is_a_run_of_each_app(store: Store) -> None:
    north, south = shop("north"), shop("south")
    async with Client(store=store) as client:
        runs = [
            await client.start(f"{app.name}/checkout", 1, key="order-7") for app in (north, south)
        ]
        again = await client.start("north/checkout", 1, key="order-7")
        assert [run.already_existed for run in (*runs, again)] == [False, False, True]
        assert again.run_id == runs[0].run_id == keyed_run_id("north/checkout", "order-7")
        assert runs[1].run_id != runs[0].run_id
        assert (await client.runs.get(("south/checkout", "order-7"))).run_id == runs[1].run_id


async def test_a_filter_takes_workflows_as_a_start_does() -> None:
    """Fault: it took names only, and said that a workflow is not iterable."""
    store, north, south = MemoryStore(), shop("north"), shop("south")

    @north.entity
    @dataclass
    class Cart:
        items: int = 0

        async def add(self) -> None: ...

    async with Client(store=store) as client:
        one, other = (app.latest("checkout") for app in (north, south))
        runs = [(await client.start(each, 1)).run_id for each in (one, other)]  # type: ignore[arg-type]
        for given, found in (
            (one, runs[:1]),
            ([other], runs[1:]),
            ((one, other), runs),
            (Cart, []),
        ):
            page = await client.runs.list(names=given)
            assert sorted(run.run_id for run in page.runs) == sorted(found)
        assert (await client.runs.pause_all({"names": one})).changed == 1
        with pytest.raises(InvalidInput, match="7 is not a workflow"):
            await client.runs.list(names=7)  # type: ignore[arg-type]


async def test_a_name_alone_is_the_one_app_s_that_ever_signed_on_with_it(store: Store) -> None:
    """Also when its worker has gone."""
    async with Client(store=store) as client:
        with pytest.raises(UnknownWorkflow, match="APP/checkout"):
            await client.start("checkout", 1)
        waiting = await client.start("north/checkout", 1)  # nobody has to run it yet
        async with working(shop("north"), store):
            assert await waiting.result(PATIENCE) == answer("north")
        handle = await client.start("checkout", 2, key="k")
        assert (await handle.get()).app == "north"
        assert (await client.runs.get(("checkout", "k"))).run_id == handle.run_id
        assert await client.signal(("checkout", "k"), "express")
        page = await client.runs.list(names="checkout", states="queued")
        assert [run.run_id for run in page.runs] == [handle.run_id]


async def test_a_name_of_several_apps_is_not_guessed(store: Store) -> None:
    south = shop("south")
    async with working(shop("north"), store), working(south, store):
        async with Client(store=store) as client:
            for call in (
                client.start("checkout", 1),
                client.run("checkout", 1),
                client.start_many("checkout", [1]),
                client.runs.get(("checkout", "k")),
                client.workflows.pause("checkout"),
                client.runs.list(names="checkout"),
                client.runs.cancel_all({"names": "checkout"}),
            ):
                with pytest.raises(AmbiguousWorkflow, match="north/checkout or south/checkout"):
                    await call
            assert await client.run("south/checkout", 1, wait=PATIENCE) == answer("south")
        async with Client(store=store, app=south) as client:
            assert await client.run("checkout", 1, wait=PATIENCE) == answer("south")


async def test_a_handle_finds_the_app_of_a_name_when_it_is_used(store: Store) -> None:
    north = shop("north")
    wanted = keyed_run_id("north/checkout", "k")
    async with Client(store=store) as client:
        handle = client.handle(("checkout", "k"))
        with pytest.raises(InvalidInput, match="APP/checkout"):
            assert handle.run_id
        with pytest.raises(UnknownWorkflow):
            await handle.get()
        workflow = north.latest("checkout")
        handles = [
            client.handle(("checkout", "k"), workflow),
            client.handle((workflow, "k")),
            client.handle(("north/checkout", "k")),
        ]
        assert {each.run_id for each in handles} == {wanted}
        async with working(north, store):
            await client.start("checkout", 1, key="k")
            assert await handle.result(PATIENCE) == answer("north")
            assert (await handle.get()).run_id == wanted
    async with Client(store=store, app=north) as client:
        assert client.handle(("checkout", "k")).run_id == wanted


async def test_a_workflow_of_another_app_is_called_by_its_full_name(store: Store) -> None:
    north = App("north")

    @north.workflow
    async def order(ctx: Context, number: int) -> list[str]:
        packed = await ctx.activity("south/pack", number, type=str)
        child = await ctx.start_child("south/ship", number, key="s-1", type=str)
        assert child.run_id == keyed_run_id("south/ship", "s-1")
        return [packed, await child.result()]

    async with working(north, store), working(shop("south"), store):
        async with Client(store=store, app=north) as client:
            done = await client.run(order, 1, wait=PATIENCE)
            assert done == ["packed by south", "shipped by south"]


async def test_a_pause_is_of_one_app_s_workflow(store: Store) -> None:
    async with working(shop("north"), store), working(shop("south"), store):
        async with Client(store=store) as client:
            await client.workflows.pause("north/checkout")
            held = await client.start("north/checkout", 1)
            assert await client.run("south/checkout", 1, wait=PATIENCE) == answer("south")
            assert (await held.get()).started_at is None
            await client.workflows.resume("north/checkout")
            assert await held.result(PATIENCE) == answer("north")


async def test_an_app_from_another_place_does_not_take_a_name(store: Store, tmp_path: Path) -> None:
    """If the app says from which place it is; a folder that was moved is the same app."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    async def sign_on(folder: Path | None) -> None:
        worker = Worker(shop("shop"), store, origin=None if folder is None else str(folder))
        await worker.start()
        await worker.stop(0)

    for folder in (here, here, None):
        await sign_on(folder)
    with pytest.raises(ConfigurationError, match="another app named 'shop'"):
        await sign_on(there)
    here.rmdir()
    await sign_on(there)
    [info] = await store.list_apps()
    assert (info.app, info.origin) == ("shop", str(there))
    assert info.workflows == ("checkout", "ship")


async def test_two_places_of_one_app_have_builds_of_their_own(store: Store, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    async def sign_on(folder: Path, build: str | None) -> None:
        worker = Worker(shop("shop", build), store, origin=str(folder))
        await worker.start()
        await worker.stop(0)

    await sign_on(here, "b1")
    for build in ("b1", None):
        with pytest.raises(ConfigurationError, match="give each a build of its own"):
            await sign_on(there, build)
    for folder, build in ((there, "b2"), (here, "b1"), (there, "b2")):
        await sign_on(folder, build)
    await sign_on(there, None)
    with pytest.raises(ConfigurationError, match="another app named 'shop'"):
        await sign_on(here, "b1")


async def test_a_worker_tells_the_database_how_long_runs_are_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8. A start by name obeys it, and the longest retention of the worker's environment."""
    monkeypatch.setenv("HOLDFAST_MAX_RETENTION_DAYS", "100")
    app = App("shop")

    @app.workflow(retention="90d")
    async def checkout(ctx: Context) -> None: ...

    @app.workflow(retention=None)
    async def audit(ctx: Context) -> None: ...

    trip = app.flow("trip", retention="2d")

    @trip.step
    async def go() -> None: ...

    worker = Worker(app, store)
    await worker.start()
    await worker.stop(0)
    async with Client(store=store) as client:
        for name, days in (("checkout", 90), ("audit", 100), ("trip", 2)):
            handle = await client.start(f"shop/{name}", {} if name == "trip" else None)
            assert (await handle.get()).retention_seconds == days * 86_400, name


async def test_a_worker_serves_all_queues_that_its_app_names(store: Store) -> None:
    """C21. Not those of its definitions alone; with queues of its own, none of the app's."""
    app = App("shop")
    app.queue("limited", concurrency=2)
    app.queue("plain")

    @app.workflow
    async def checkout(ctx: Context, order: int = 0) -> str:
        return "done"

    app.schedule(checkout, "0 3 * * *", queue="nightly")
    app.schedule("0 4 * * *", topic="days.begun")
    app.subscribe("orders.paid", checkout, queue="events")
    assert app.queues() == ("default", "events", "limited", "nightly", "plain")
    async with Client(store=store) as client:
        async with working(app, store) as worker:
            assert worker.info.queues == app.queues()
            for queue in app.queues():
                handle = await client.start(checkout, queue=queue)
                assert await handle.result(timeout=PATIENCE) == "done"
        async with working(app, store, queues=("plain",)) as worker:
            assert worker.info.queues == ("plain",)
