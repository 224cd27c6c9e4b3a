"""Entities whose class has changed since their last call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from holdfast import App, Client, InvalidInput, reads
from holdfast.errors import ConfigurationError, RunEnded, UpdateRejected
from holdfast.store.port import Store
from holdfast.worker import Worker


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
async def working(app: App, store: Store) -> AsyncIterator[None]:
    worker = Worker(app, store)
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

    with pytest.raises(ConfigurationError, match="the field size needs a default"):

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
        app.entity(name="Twice")(Twice)
