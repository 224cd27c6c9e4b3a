"""Entities whose class has changed since their last call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest

from holdfast import App, Client, Context, InvalidInput, reads
from holdfast.definitions.entities import entity_of
from holdfast.errors import ConfigurationError, ResultTimeout, RunEnded, RunFailed, UpdateRejected
from holdfast.store.port import Store
from holdfast.worker import Worker, WorkerOptions


def first() -> tuple[App, type]:
    app = App("deploys")

    @app.step
    async def price(item: str) -> int:
        return len(item)

    @app.entity(name="Cart")
    @dataclass
    class Cart:
        items: list[str] = field(default_factory=list)
        cents: int = 0

        async def add(self, item: str) -> int:
            self.items.append(item)
            return len(self.items)

        async def buy(self, item: str) -> int:
            self.cents += await price(item)
            return self.cents

        async def wait(self) -> None:
            await asyncio.sleep(3600)

    return app, Cart


@asynccontextmanager
async def working(
    app: App, store: Store, options: WorkerOptions | None = None
) -> AsyncIterator[None]:
    worker = Worker(app, store, options)
    await worker.start()
    yield
    await worker.stop(0)


async def state_of(client: Client) -> str:
    return (await client.runs.get(("deploys/Cart", "ann"))).state


async def accepted(client: Client, name: str) -> bool:
    log = await client.handle(("deploys/Cart", "ann")).log()
    return any(
        each.event.type == "UpdateAccepted" and name in (each.event.details or "") for each in log
    )


async def begin(store: Store, client: Client) -> None:
    """Let the first version of the class serve two calls."""
    app, cart_class = first()
    async with working(app, store):
        cart = client.entity(cart_class, "ann")
        assert await cart.add("lamp") == 1
        assert await cart.buy("lamp") == 4


async def test_new_fields_and_changed_code(store: Store, client: Client) -> None:
    await begin(store, client)
    app = App("deploys")

    @app.entity(name="Cart")
    @dataclass
    class Cart:
        items: list[str] = field(default_factory=list)
        cents: int = 0
        coupon: str = "none"

        async def add(self, item: str) -> str:
            self.items += [item, item]  # not what the answered calls did
            return f"{self.items} {self.cents} {self.coupon}"

        @reads
        async def coupons(self) -> str:
            return self.coupon

    cart = client.entity(Cart, "ann")
    assert await cart.coupons() == "none"
    async with working(app, store):
        assert await cart.add("rug") == "['lamp', 'rug', 'rug'] 4 none"
        with pytest.raises(UpdateRejected, match="has no method 'buy'; it has add, coupons"):
            await client.entity(first()[1], "ann").buy("rug")


async def test_a_renamed_field_makes_it_stuck(store: Store, client: Client) -> None:
    await begin(store, client)
    app = App("deploys")

    @app.entity(name="Cart")
    @dataclass
    class Cart:
        things: list[str] = field(default_factory=list)
        cents: int = 0

        async def add(self, item: str) -> int:
            self.things.append(item)
            return len(self.things)

    with pytest.raises(InvalidInput, match="state of Cart: it has items, which the class does not"):
        await client.entities.get(Cart, "ann")
    call = asyncio.create_task(client.entity(Cart, "ann", call_id="c").add("rug"))
    async with working(app, store), asyncio.timeout(20):
        while (found := await client.runs.get(("deploys/Cart", "ann"))).state != "stuck":
            await asyncio.sleep(0.02)
    why = await client.why(found.run_id)
    assert "it has items, which the class does not" in why.because
    old, old_class = first()
    await client.runs.resume(found.run_id)
    async with working(old, store):  # rolled back: nothing is lost
        assert await call == 2
        assert (await client.entities.get(old_class, "ann")).items == ["lamp", "rug"]


async def test_a_removed_field_of_what_the_state_holds_makes_it_stuck(
    store: Store, client: Client
) -> None:
    def shop(owner: type[Any]) -> tuple[App, type[Any]]:
        async def add(self: Any, name: str) -> str:
            self.owners.append(owner(name))
            return repr(self.owners[0])

        owners = ("owners", list[owner], field(default_factory=list))  # type: ignore[valid-type]
        cart = make_dataclass("Cart", [owners], namespace={"add": add})
        app = App("deploys")
        app.entity(cart)
        return app, cart

    old, old_class = shop(make_dataclass("Owner", [("name", str)]))
    new, new_class = shop(make_dataclass("Owner", [("name", str), ("age", int, 7)]))
    async with working(new, store):
        assert await client.entity(new_class, "ann").add("ann") == "Owner(name='ann', age=7)"
    call = asyncio.create_task(client.entity(old_class, "ann", call_id="c").add("bob"))
    async with working(old, store), asyncio.timeout(20):
        while (found := await client.runs.get(("deploys/Cart", "ann"))).state != "stuck":
            await asyncio.sleep(0.02)
    assert "it has owners.age, which the class does not" in (await client.why(found.run_id)).because
    await client.runs.resume(found.run_id)
    async with working(new, store):
        assert await call == "Owner(name='ann', age=7)"


async def test_a_call_in_flight_whose_method_is_gone_makes_it_stuck(
    store: Store, client: Client
) -> None:
    app, cart_class = first()
    async with working(app, store):
        await client.entity(cart_class, "ann").add("lamp")
        call = asyncio.create_task(client.entity(cart_class, "ann").wait())
        while await state_of(client) != "waiting" or not await accepted(client, "wait"):
            await asyncio.sleep(0.02)
    new = App("deploys")

    @new.entity(name="Cart")
    @dataclass
    class Without:
        items: list[str] = field(default_factory=list)
        cents: int = 0

        async def add(self, item: str) -> int:
            return 0

    async with working(new, store), asyncio.timeout(20):
        other = asyncio.create_task(client.entity(Without, "ann").add("rug"))
        run_id = (await client.runs.get(("deploys/Cart", "ann"))).run_id
        await client.runs.pause(run_id)
        await client.runs.resume(run_id)
        while await state_of(client) != "stuck":
            await asyncio.sleep(0.02)
    why = await client.why(run_id)
    assert "update wait was accepted, and does not fit the code" in why.because
    await client.runs.terminate(run_id)
    with pytest.raises(RunEnded):
        await call
    async with working(new, store):
        assert await other == 0  # it was not begun: a new entity took it


def test_classes_that_cannot_be_entities() -> None:
    app = App("refused")

    with pytest.raises(ConfigurationError, match="Plain is not a dataclass"):

        @app.entity
        class Plain:
            async def add(self) -> None: ...

    with pytest.raises(ConfigurationError, match=r"field size needs a default.*name `key` gets"):

        @app.entity
        @dataclass
        class Bare:
            size: int

    with pytest.raises(
        ConfigurationError, match=r"Many.add cannot be a method of an entity.*items"
    ):

        @app.entity
        @dataclass
        class Many:
            size: int = 0

            async def add(self, *items: str) -> None: ...

    with pytest.raises(ConfigurationError, match="takes a class, not 'Cart': give name="):
        app.entity("Cart")  # type: ignore[call-overload]

    @app.entity
    @dataclass
    class Shared:
        size: int = 0

    with pytest.raises(ConfigurationError, match="Shared is already the entity refused/Shared"):
        App("other").entity(Shared)

    with pytest.raises(ConfigurationError, match=r"Sync.add must be an async function"):

        @app.entity
        @dataclass
        class Sync:
            size: int = 0

            def add(self) -> None: ...

    with pytest.raises(ConfigurationError, match="state of Odd"):

        @app.entity
        @dataclass
        class Odd:
            size: App = field(default_factory=lambda: app)

            async def add(self) -> None: ...

    @app.entity(name="Twice")
    @dataclass
    class Twice:
        size: int = 0

        async def add(self) -> None: ...

    with pytest.raises(ConfigurationError, match="Twice@1 is defined twice"):

        @app.entity(name="Twice")
        @dataclass
        class Again:
            size: int = 0


async def test_an_object_that_cannot_be_made_makes_the_run_stuck(
    store: Store, client: Client
) -> None:
    await begin(store, client)
    app = App("deploys")

    @app.entity(name="Cart")
    @dataclass
    class Cart:
        items: list[str] = field(default_factory=list)
        cents: int = 0

        def __post_init__(self) -> None:
            raise KeyError("prices")

        async def add(self, item: str) -> int:
            return 0

    with pytest.raises(InvalidInput, match=r"Cart 'bob': KeyError: 'prices'"):
        client.entity(Cart, "bob")
    call = asyncio.create_task(client.entity(first()[1], "ann").add("rug"))
    async with working(app, store), asyncio.timeout(20):
        while (found := await client.runs.get(("deploys/Cart", "ann"))).state != "stuck":
            await asyncio.sleep(0.02)
    assert "state of Cart: KeyError: 'prices'" in (await client.why(found.run_id)).because
    await client.runs.resume(found.run_id)
    async with working(first()[0], store):
        assert await call == 2


def test_what_a_class_may_be() -> None:
    app = App("allowed")

    def plainly(fn: Any) -> Any:
        async def wrapper(self: Any) -> str:
            return f"<{await fn(self)}>"

        return wrapper

    @app.entity
    @dataclass(kw_only=True)
    class Only:
        size: int = 0
        key: str

        @plainly
        async def show(self) -> str:
            return f"{self.key} {self.size}"

        again = show

    assert set(entity_of(Only).methods) == {"show", "again"}
    assert entity_of(Only).first_state("ann") == '{"size":0,"key":"ann"}'


async def test_what_is_no_entity(client: Client) -> None:
    for other in ("carts/Cart", first()[1]()):
        with pytest.raises(ConfigurationError, match=r"is not an entity: it takes a class"):
            client.entity(other, "ann")  # type: ignore[type-var]


async def test_a_failed_run_keeps_its_key(store: Store, client: Client) -> None:
    app = App("deploys")

    @app.workflow(name="Cart")
    async def broken(ctx: Context, given: object) -> None:
        raise RuntimeError("broken")

    cart_class = first()[1]
    async with working(app, store):
        for _ in range(2):
            with pytest.raises(RunEnded, match="failed"):
                await client.entity(cart_class, "ann", timeout=10).add("rug")
        with pytest.raises(RunEnded, match="failed"):
            await client.entities.get(cart_class, "ann")
    assert len((await client.runs.list()).runs) == 1


async def test_a_client_that_remembers_deleted_runs_begins_where_others_do(store: Store) -> None:
    app = App("deploys")

    @app.entity(retention=0.5)
    @dataclass
    class Cart:
        items: list[str] = field(default_factory=list)

        async def add(self, item: str) -> int:
            self.items.append(item)
            return len(self.items)

    async with (
        Client(store=store) as client,
        Client(store=store) as other,
        working(app, store),
        asyncio.timeout(20),
    ):
        assert await client.entity(Cart, "ann").add("lamp") == 1
        await client.entities.delete(Cart, "ann")
        assert await client.entity(Cart, "ann").add("lamp") == 1  # in the run that it remembers
        await client.entities.delete(Cart, "ann")
        await asyncio.sleep(1)  # until both are due: the first is kept as long as the second
        while (await client.runs.list()).runs:
            await store.sweep_runs()
        assert await other.entity(Cart, "ann").add("lamp") == 1
        assert await client.entity(Cart, "ann").add("lamp") == 2


async def test_what_is_called_between_the_deletion_and_the_end_is_refused(
    store: Store, client: Client
) -> None:
    """Fault: nobody told the workflow, which waited for ever."""
    app = App("deleted")

    @app.entity(queue="things")
    @dataclass
    class Thing:
        count: int = 0

        async def add(self) -> int:
            self.count += 1
            return self.count

    @app.workflow
    async def ask(ctx: Context, key: str) -> int:
        return await ctx.entity(Thing, key).add()

    things = WorkerOptions(queues=("things",))
    async with working(app, store, things):
        assert await client.entity(Thing, "ann").add() == 1
    with pytest.raises(ResultTimeout):
        await client.entities.delete(Thing, "ann", timeout=0.1)
    async with working(app, store, WorkerOptions(queues=("default",))):
        asking = [await client.start(ask, "ann") for _ in range(3)]
        async with asyncio.timeout(30):
            for run in asking:
                while [each.event.key for each in await run.log()][-1] != "Thing.add":
                    await asyncio.sleep(0.02)
        late = asyncio.create_task(client.entity(Thing, "ann").add())
        async with working(app, store, things), asyncio.timeout(30):
            for run in asking:
                with pytest.raises(RunFailed, match="was deleted: call it again"):
                    await run.result()
            assert await late == 1
            assert await client.run(ask, "ann") == 2


async def test_why_of_a_caller_says_that_the_entity_is_stuck(store: Store, client: Client) -> None:
    def shop(wanted: Any) -> tuple[App, type]:
        app = App("deploys")

        class Cart:
            async def add(self, item: str) -> str:
                return item

        Cart.__annotations__ = {"items": wanted}
        Cart.items = wanted()  # type: ignore[attr-defined]
        entity = app.entity(dataclass(Cart))

        @app.workflow
        async def order(ctx: Context, keys: list[str]) -> list[str]:
            return [await ctx.entity(entity, key).add("lamp") for key in keys]

        return app, entity

    app, cart_class = shop(str)
    async with working(app, store):
        await client.entity(cart_class, "bob").add("rug")
    async with working(shop(int)[0], store), asyncio.timeout(20):
        handle = await client.start("deploys/order", ["bob"])
        cart = await client.runs.get(("deploys/Cart", "bob"))
        while (cart := await client.runs.get(cart.run_id)).state != "stuck":
            await asyncio.sleep(0.02)
        while not (why := await client.why(handle.run_id)).details:
            await asyncio.sleep(0.02)
    assert why.because == "it waits for the answer of an entity"
    assert why.details[0] == f"call Cart.add: run {cart.run_id} of deploys/Cart 'bob' is stuck"
    assert [(each.do, each.run_id) for each in why.actions] == [("why", cart.run_id)]
    await client.runs.resume(cart.run_id)
    async with working(app, store), asyncio.timeout(20):
        assert await handle.result() == ["lamp"]
