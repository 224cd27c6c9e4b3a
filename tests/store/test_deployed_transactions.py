"""Deploys while a transaction has committed in another database, and the log lacks its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from scene import Scene
from test_retried_transactions import WAYS, Hotel, fail, options, plain
from test_transactions import results, rooms, working

from holdfast import Client, Context, Database
from holdfast.events import VALUE_RECORDED
from holdfast.insight.check import Check

Code = Callable[[Hotel], Any]


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


async def committed(scene: Scene, made: dict[str, Any], code: Code = plain) -> UUID:
    """Leave a run whose worker is gone between the commit of its booking and the record."""
    hotel = Hotel(failures=0, **made)
    stay = code(hotel)
    async with working(hotel.app, scene.url) as client:
        handle = await client.start(stay, 7)
        await hotel.late.committed.wait()
    assert await rooms(scene) == [7]
    return handle.run_id


async def checked(scene: Scene, hotel: Hotel) -> list[tuple[str, str]]:
    check = Check(hotel.app)
    await check.add_open_runs(scene.store)
    findings = check.report().findings
    assert [each.index for each in findings] in ([], [1]), "the entry that says that it began"
    return [(each.kind, each.reason) for each in findings]


async def stuck(client: Client, run_id: UUID) -> str:
    async with asyncio.timeout(30):
        while (wait := (await client.runs.get(run_id)).wait) is None or not wait.stuck:
            await asyncio.sleep(0.05)
    return wait.stuck


def moved(hotel: Hotel) -> None:
    async def take(room: int) -> int:
        return await hotel.book(room, 1)

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        return list(await asyncio.gather(take(room), hotel.cook()))


def with_id(hotel: Hotel) -> None:
    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        booked = ctx.step("book", hotel.book, room, 1, id="7")
        return list(await asyncio.gather(booked, hotel.cook()))


def removed(hotel: Hotel) -> None:
    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        return [room, await hotel.cook()]


def ended(hotel: Hotel) -> None:
    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        return [room]


def priced(hotel: Hotel) -> None:
    hotel.price = 2
    plain(hotel)


def plain_step(hotel: Hotel) -> None:
    @hotel.app.step(name="reserve")
    async def book(room: int, price: int) -> int:
        raise AssertionError("it must not run")

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        booked = ctx.step("book", book.with_options(name="book"), room, 1)
        return list(await asyncio.gather(booked, hotel.cook()))


def child(hotel: Hotel) -> None:
    @hotel.app.workflow(name="book")
    async def book(ctx: Context, room: int) -> int:
        raise AssertionError("it must not run")

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        return list(await asyncio.gather(book(room), hotel.cook()))


CHANGES: dict[str, Code] = {
    code.__name__: code for code in (moved, with_id, removed, ended, priced, plain_step, child)
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
async def test_changed_code_commits_it_once_and_a_check_names_it(
    scene: Scene, change: str, way: str
) -> None:
    """Fault: it was committed again, or lost, and the check was silent."""
    made = await options(scene, way)
    run_id = await committed(scene, made)
    hotel = Hotel(failures=0, holds=0, **made)
    CHANGES[change](hotel)
    [(kind, reason)] = await checked(scene, hotel)
    assert kind == "stuck"
    assert "book" in reason
    async with working(hotel.app, scene.url) as client:
        assert "book" in await stuck(client, run_id)
    hotel = Hotel(failures=0, holds=0, **made)
    plain(hotel)
    assert await checked(scene, hotel) == []
    async with working(hotel.app, scene.url) as client:
        assert await client.handle(run_id).result() == [7, "cooked"]
    assert await rooms(scene) == [7]


async def test_another_database_is_named(scene: Scene) -> None:
    """Fault: it was committed there as well."""
    made = await options(scene, "elsewhere")
    run_id = await committed(scene, made)
    other = Hotel(failures=0, holds=0, database=Database(scene.url, schema="holdfast"))
    plain(other)
    [(kind, reason)] = await checked(scene, other)
    assert (kind, "/apart" in reason) == ("stuck", True)
    async with working(other.app, scene.url) as client:
        assert "/apart" in await stuck(client, run_id)
        assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_with_changed_code_commits_it_once(scene: Scene, way: str) -> None:
    """Fault: it was committed again."""
    made = await options(scene, way)
    hotel = Hotel(**made)
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
    hotel = Hotel(failures=0, holds=0, **made)
    moved(hotel)
    async with working(hotel.app, scene.url) as client:
        retry = await client.runs.retry(run_id)
        assert "book" in await stuck(client, retry.run_id)
    hotel = Hotel(failures=0, holds=0, **made)
    plain(hotel)
    async with working(hotel.app, scene.url) as client:
        assert await client.handle(retry.run_id).result() == [7, "cooked"]
        assert await rooms(scene) == [7]


async def test_the_log_says_that_it_begins_with_what_led_to_it(scene: Scene) -> None:
    """Once, and in the same commit: no call waits for another one."""
    hotel = Hotel(failures=0, holds=0, database=await results(scene))

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> int:
        await hotel.cook()
        return await hotel.book(room, 1)

    async with working(hotel.app, scene.url) as client:
        handle = await client.start(stay, 7)
        assert await handle.result() == 7
        log = await client.runs.log(handle.run_id)
    kinds = [(each.event.type, each.event.key) for each in log]
    assert kinds[1:4] == [
        ("StepCompleted", "cook"),
        (VALUE_RECORDED, "begun:book"),
        ("StepCompleted", "book"),
    ]


def desk(hotel: Hotel, *, moved: bool = False) -> Any:
    """Return an entity whose method books, and gives up what takes too long."""

    @hotel.app.entity(name="Desk")
    @dataclass
    class Desk:
        booked: list[int] = field(default_factory=list)

        async def take(self, room: int) -> int:
            return await hotel.book(room, 1)

        async def check_in(self, room: int) -> list[int]:
            [number] = await asyncio.gather(self.take(room) if moved else hotel.book(room, 1))
            self.booked.append(number)
            return self.booked

        async def try_in(self, room: int) -> list[int]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await hotel.book(room, 1)
            return self.booked

    return Desk


async def test_an_entity_is_held_to_the_call_that_it_has_begun(scene: Scene) -> None:
    """Not to those of calls that it has answered, one of which it had given up."""
    made = await options(scene, "elsewhere")
    hotel = Hotel(failures=0, **made)
    desk_class = desk(hotel)
    async with working(hotel.app, scene.url) as client:
        assert await client.entity(desk_class, "ann").try_in(5) == []
    hotel = Hotel(failures=0, holds=0, **made)
    desk_class = desk(hotel, moved=True)
    async with working(hotel.app, scene.url) as client:
        assert await client.entity(desk_class, "ann").check_in(6) == [6]
    hotel = Hotel(failures=0, **made)
    desk_class = desk(hotel)
    async with working(hotel.app, scene.url) as client:
        calling = asyncio.create_task(client.entity(desk_class, "ann").check_in(7))
        await hotel.late.committed.wait()
        calling.cancel()
    hotel = Hotel(failures=0, holds=0, **made)
    desk(hotel, moved=True)
    async with working(hotel.app, scene.url) as client:
        run = await client.runs.get(("hotel/Desk", "ann"))
        assert "book" in await stuck(client, run.run_id)
    hotel = Hotel(failures=0, holds=0, **made)
    desk_class = desk(hotel)
    async with working(hotel.app, scene.url) as client:
        assert await client.entity(desk_class, "ann").check_in(8) == [6, 7, 8]
    assert await rooms(scene) == [5, 6, 7, 8]
