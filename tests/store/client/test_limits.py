"""Limits: set by clients, declared by code, obeyed by workers, explained."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from holdfast import App, Context, Limit, Rate
from holdfast.client import Client, RunHandle
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.insight.limits import check_limits
from holdfast.insight.why.explain import explain_run
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.testing import Environment
from holdfast.types import WorkerInfo
from holdfast.worker import Worker, WorkerOptions

from .workflows import Finisher, Order, order, tick


async def test_a_client_sets_lists_and_removes_limits(
    client: Client, store: Store, finisher: Finisher
) -> None:
    assert await client.limits.set(Limit(1, key="input.number"), workflow=order)
    assert not await client.limits.set(Limit(1, key="input.number"), workflow="shop/order")
    assert await client.limits.set(Rate(100, per="1m"), queue="orders")
    for number in (1, 1, 2):
        await client.start(order, Order(number))
    assert len(await finisher.claim()) == 2
    of_queue, of_key = await client.limits.list()
    assert (of_queue.rule.name, of_queue.rule.kind) == ("orders", "rate")
    assert (of_key.held, of_key.full_keys, of_key.waiting) == (2, 2, 1)
    found = await check_limits(store)
    assert "workflow 'shop/order' runs 1 at once for each input.number" in found.message
    assert await client.limits.remove(Limit, workflow=order, key="input.number")
    assert not await client.limits.remove(Limit, workflow=order, key="input.number")
    for wrong in ("concurrency", Limit(1)):
        with pytest.raises(InvalidInput, match="one of Limit, Rate, Fairness, Ageing; not "):
            await client.limits.remove(cast("type[Limit]", wrong), workflow=order)
    assert len(await finisher.claim()) == 1


async def test_a_limit_is_of_one_thing(client: Client) -> None:
    for named in ({}, {"queue": "mail", "workflow": "shop/order"}):
        with pytest.raises(InvalidInput, match="name the queue, the workflow or the activity"):
            await client.limits.set(Limit(1), **named)  # type: ignore[arg-type]


async def test_a_run_says_which_limit_holds_it_and_its_place(
    client: Client, store: Store, finisher: Finisher
) -> None:
    await client.limits.set(Limit(1), workflow=tick)
    handles: list[RunHandle[int]] = []
    for _ in range(3):
        handles.append(await client.start(tick))
        if isinstance(store, MemoryStore):
            store.advance(1)
    worker = WorkerInfo(
        worker_id="finisher",
        hostname="host",
        pid=1,
        queues=("default",),
        handlers=("shop/tick@1", "shop/tick@2"),
        concurrency=9,
        holdfast_version="0",
    )
    await store.heartbeat(worker, [], lease_seconds=30)
    taken = [task.run_id for task in await finisher.claim()]
    waiting = [each for each in handles if each.run_id not in taken]
    texts: list[str] = []
    for handle in waiting:
        run = (await store.get_runs([handle.run_id]))[handle.run_id]
        found = await explain_run(store, run)
        assert "a limit holds it: workflow 'shop/tick' runs 1 at once" in found.because
        texts += found.details
    assert sorted(texts) == [
        "1 other with the same keys comes before it",
        "it is the first of those that wait with the same keys",
    ]


async def test_workers_write_what_code_declares_and_obey_it(database_url: str) -> None:
    """At most so many at once in two workers; each end lets the next begin."""
    app, running, most = App("shop"), 0, 0

    @app.step
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    @app.workflow(concurrency=Limit(2, key="input"))
    async def buy(ctx: Context, customer: str) -> str:
        await work()
        return customer

    store = PostgresStore(database_url)
    async with Client(database_url) as client:
        await store.open()
        workers = [Worker(app, store, WorkerOptions(concurrency=10)) for _ in range(2)]
        for worker in workers:
            await worker.start()
        try:
            [info] = await client.limits.list()
            assert (info.rule.most, info.is_declared) == (2, True)
            handles = [await client.start(buy, "ann") for _ in range(12)]
            async with asyncio.timeout(30):
                for handle in handles:
                    await handle.result()
        finally:
            for worker in workers:
                await worker.stop()
            await store.close()
    assert most == 2


async def test_limits_hold_in_virtual_time_too() -> None:
    """A run holds its place while it sleeps; a rate spreads runs over time."""
    app = App("shop")

    @app.workflow(concurrency=1)
    async def nap(ctx: Context) -> float:
        began = ctx.time()
        await ctx.sleep("1h")
        return began

    @app.workflow(rate=Rate(1, per="10m"))
    async def ask(ctx: Context) -> float:
        return ctx.time()

    async with Environment(app) as environment:
        for workflow, distance in ((nap, 3600), (ask, 600)):
            handles = [await environment.client.start(workflow) for _ in range(3)]
            began = sorted([await environment.result(handle) for handle in handles])
            assert [round(at - began[0], -1) for at in began] == [0, distance, 2 * distance]


async def test_the_paths_of_limits_lead_into_the_arguments_of_an_activity() -> None:
    """However a call gives them: by their places, by their names, or behind some left out."""
    app, began = App("shop"), list[tuple[str, int]]()

    def note(what: str) -> None:
        minutes = round((environment.now - first).total_seconds() / 60)
        began.append((what, minutes))

    @app.activity(rate=Rate(1, per="10m", key="input.to.name"))
    async def mail(number: int, to: dict[str, str]) -> None:
        note(f"mail {to['name']}")

    @app.activity(rate=Rate(1, per="10m", key="input.size"))
    async def draw(what: str, unit: str = "mm", size: int = 1) -> None:
        note(f"draw {what}")

    @app.activity(rate=Rate(100, per="10m", units="input.most"))
    async def ask(prompt: str, *words: int, most: int = 1) -> None:
        note(f"ask {prompt}")

    @app.workflow
    async def work(ctx: Context) -> None:
        await asyncio.gather(*(mail(number, {"name": name}) for number, name in enumerate("aab")))
        await asyncio.gather(draw("x", "mm", 7), draw("y", size=7), draw("z", size=8))
        await asyncio.gather(*(ask("?", 1, 2, most=60) for _ in range(3)))

    async with Environment(app) as environment:
        first = environment.now
        await environment.run(work)
    assert began[:3] == [("mail a", 0), ("mail b", 0), ("mail a", 10)]
    assert began[3:6] == [("draw x", 10), ("draw z", 10), ("draw y", 20)]
    assert began[6:] == [("ask ?", 20), ("ask ?", 30), ("ask ?", 40)]


async def test_a_client_limits_an_activity_by_its_parameters(client: Client) -> None:
    """Those that its app, or a limit there is, knows. Others are named by their places."""
    app = App("print")

    @app.activity(concurrency=Limit(1, key="input.paper"))
    async def draw(name: str, paper: str = "A4") -> None: ...

    [declared] = app.limits
    paths = {"paper": declared.key, "name": "input.k.name|input.a.0|input.0"}
    limits = client.limits
    assert await limits.set(Limit(2, key="input.name"), activity=draw)
    with pytest.raises(ConfigurationError, match="names no parameter of print/draw"):
        await limits.set(Limit(2, key="input.size"), activity=draw)
    with pytest.raises(InvalidInput, match=r"does not know .* such as input\.0"):
        await limits.set(Limit(3, key="input.paper"), activity="print/draw")
    assert await limits.set(Limit(3, key="input.name"), activity="print/draw")
    assert await limits.set(Limit(4, key="input.1.size"), activity="print/draw")
    rate = Rate(9, per="1m", units="input.1.sheets")
    assert await limits.set(rate, activity="print/draw")
    found = {(each.rule.key, each.rule.units): each.rule.most for each in await limits.list()}
    assert found == {
        (paths["name"], None): 3,
        ("input.1.size|input.a.1.size", None): 4,
        ("", "input.1.sheets|input.a.1.sheets"): 9,
    }
    for key in ("input.name", "input.1.size"):
        assert await limits.remove(Limit, activity="print/draw", key=key)
    assert not await limits.remove(Limit, activity="print/draw", key="input.name")


async def test_a_path_that_leads_nowhere_is_not_set_again(client: Client, store: Store) -> None:
    """Fault: a limit that an earlier release had set by hand stayed without its key."""
    limits = client.limits
    await store.set_limit(Limit(1, key="input.name").rule("activity", "print/draw"))
    with pytest.raises(InvalidInput, match=r"does not know .* such as input\.0"):
        await limits.set(Limit(1, key="input.name"), activity="print/draw")
    assert await limits.remove(Limit, activity="print/draw", key="input.name")
    assert await limits.list() == []


async def test_a_client_with_the_app_takes_places_of_parameters_as_others_do(
    client: Client,
) -> None:
    """So each of them changes and removes what another has set."""
    app = App("print")

    @app.activity
    async def draw(name: str, paper: str = "A4") -> None: ...

    limits = client.limits
    assert await limits.set(Limit(2, key="input.1.size"), activity=draw)
    assert await limits.set(Limit(3, key="input.1.size"), activity="print/draw")
    rate = Rate(9, per="1m", key="input.name", units="input.1.sheets")
    assert await limits.set(rate, activity=draw)
    found = {(each.rule.key, each.rule.units): each.rule.most for each in await limits.list()}
    assert found == {
        ("input.1.size|input.a.1.size", None): 3,
        ("input.k.name|input.a.0|input.0", "input.1.sheets|input.a.1.sheets"): 9,
    }
    assert await limits.remove(Limit, activity=draw, key="input.1.size")
