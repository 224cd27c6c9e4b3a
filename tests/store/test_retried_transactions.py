"""Retries of runs that failed while a transaction had left its result, and their logs lacked it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from scene import Scene
from test_transactions import recorded, results, rooms, working

from holdfast import App, Client, Context, Retry, RunFailed, StepFailed
from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.definitions.steps import StepContext
from holdfast.store.port.transactions import LAST_LEASE, AlreadyRecorded, lease_of
from holdfast.testing import Environment

ONCE = Retry(attempts=1)
WAYS = ["strict", "elsewhere"]


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


async def options(scene: Scene, way: str) -> dict[str, Any]:
    """Return the options of a transaction whose record follows its commit."""
    strict = {"isolation": "repeatable read"}
    return {"retry": ONCE, **(strict if way == "strict" else {"database": await results(scene)})}


class Late(Middleware):
    """Middleware that keeps so many attempts that have committed from being reported."""

    def __init__(self, holds: int) -> None:
        self.holds, self.committed = holds, asyncio.Event()

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        result = await call_next()
        if context.key.endswith("book") and self.holds:
            self.holds -= 1
            self.committed.set()
            await asyncio.Event().wait()
        return result


class Hotel:
    """An app whose workflow books in a transaction while another step fails, as often as said."""

    def __init__(self, failures: int = 1, holds: int = 1, **made: Any) -> None:
        self.app, self.late, self.failures = App("hotel"), Late(holds), failures
        self.price = 1
        self.app.add_middleware(self.late)

        @self.app.transaction(**made)
        async def book(connection: asyncpg.Connection, room: int, price: int) -> int:
            await connection.execute("insert into public.rooms values ($1)", room)
            return room * price

        @self.app.step(retry=ONCE)
        async def cook() -> str:
            if self.failures:
                self.failures -= 1
                if holds:
                    await self.late.committed.wait()
                    self.late.committed.clear()
                raise OSError("the kitchen burns")
            return "cooked"

        self.book, self.cook = book, cook


def plain(hotel: Hotel, **of_run: Any) -> Any:
    @hotel.app.workflow(**of_run)
    async def stay(ctx: Context, room: int) -> list[int | str]:
        return list(await asyncio.gather(hotel.book(room, hotel.price), hotel.cook()))

    return stay


async def fail(client: Client, workflow: Any, *given: Any) -> UUID:
    handle = await client.start(workflow, *given)
    with pytest.raises(RunFailed, match="the kitchen burns"):
        await handle.result()
    return handle.run_id


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_takes_what_its_run_committed_and_did_not_record(
    scene: Scene, way: str
) -> None:
    """Fault: the retry booked the room again."""
    hotel = Hotel(**await options(scene, way))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        assert await rooms(scene) == [7]
        retry = await client.runs.retry(run_id)
        assert await retry.result() == [7, "cooked"]
        assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_takes_it_under_a_name_that_the_step_had_before(
    scene: Scene, way: str
) -> None:
    made = await options(scene, way)
    hotel = Hotel(**made)
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
    hotel = Hotel(failures=0, holds=0, name="reserve", aliases=["book"], **made)
    plain(hotel)
    async with working(hotel.app, scene.url) as client:
        retry = await client.runs.retry(run_id)
        assert await retry.result() == [7, "cooked"]
        assert await rooms(scene) == [7]


async def test_a_deploy_takes_it_under_a_name_that_the_step_had_before(scene: Scene) -> None:
    """Fault: it was committed once more."""
    made = await options(scene, "elsewhere")
    hotel = Hotel(failures=0, **made)
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        handle = await client.start(stay, 7)
        await hotel.late.committed.wait()
    hotel = Hotel(failures=0, holds=0, name="reserve", aliases=["keep", "book"], **made)
    plain(hotel)
    async with working(hotel.app, scene.url) as client:
        assert await client.handle(handle.run_id).result() == [7, "cooked"]
        assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_of_a_retry_takes_it_from_the_first_run(scene: Scene, way: str) -> None:
    """The first retry has failed before it recorded what it took."""
    hotel = Hotel(failures=2, holds=2, **await options(scene, way))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        again = await client.runs.retry(run_id)
        with pytest.raises(RunFailed):
            await again.result()
        assert await (await client.runs.retry(again.run_id)).result() == [7, "cooked"]
        assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_takes_it_where_a_failure_of_before_ended_the_last_one(
    scene: Scene, way: str
) -> None:
    """Fault: its log began before the retries, so it did not say that it retries the first run."""
    hotel = Hotel(holds=2, **await options(scene, way))
    quotes = iter([OSError("no price"), None])

    @hotel.app.step(retry=ONCE)
    async def quote() -> int:
        if (error := next(quotes)) is not None:
            raise error
        return 5

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> int:
        booking, failure = asyncio.create_task(hotel.book(room, 1)), None
        try:
            await quote()
        except StepFailed as error:
            failure = error
        await hotel.cook()
        if failure is not None:
            raise ValueError("no price, no stay") from failure
        return await booking

    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        second = await client.runs.retry(run_id)
        with pytest.raises(RunFailed, match="no price"):
            await second.result()
        hotel.late.holds = 0
        third = await client.runs.retry(second.run_id)
        assert await third.result() == 7
        assert await rooms(scene) == [7]


async def test_a_compensation_of_the_run_before_cannot_commit_after_that_of_the_retry(
    scene: Scene,
) -> None:
    """The retry makes it again; a stopped worker may still be in that of the run before."""
    place = await results(scene)
    hotel = Hotel(failures=2, holds=0, retry=ONCE, database=place)

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> str:
        try:
            return await hotel.cook()
        except StepFailed:
            await hotel.book(room, 1)
            raise

    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        forget = "delete from apart.step_results where run_id = $1"
        await scene.watcher.connection.execute(forget, run_id)  # as if it had not come to commit
        with pytest.raises(RunFailed):
            await (await client.runs.retry(run_id)).result()
    kept = "select result::text from apart.step_results where run_id = $1"
    assert lease_of(await scene.value(kept, run_id)) == LAST_LEASE


@pytest.mark.parametrize("way", WAYS)
async def test_the_next_attempt_of_a_run_takes_it(scene: Scene, way: str) -> None:
    hotel = Hotel(**await options(scene, way))
    stay = plain(hotel, retry=Retry(attempts=2, base="10ms"))
    async with working(hotel.app, scene.url) as client:
        assert await client.run(stay, 7) == [7, "cooked"]
    assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_a_retry_whose_code_calls_it_otherwise_is_stuck_and_heals(
    scene: Scene, way: str
) -> None:
    """Fault: what was left had no arguments to compare, and was the result of another call."""
    hotel = Hotel(**await options(scene, way))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        hotel.price = 2
        retry = await client.runs.retry(run_id)
        async with asyncio.timeout(30):
            while (wait := (await client.runs.get(retry.run_id)).wait) is None or not wait.stuck:
                await asyncio.sleep(0.05)
        assert "book with other arguments" in wait.stuck
        hotel.price = 1
        assert await retry.result() == [7, "cooked"]
        assert await rooms(scene) == [7]


@pytest.mark.parametrize("way", WAYS)
async def test_what_was_called_because_of_the_failure_is_made_again(scene: Scene, way: str) -> None:
    """It compensates: so the retry, which fails again, has to compensate again."""
    hotel = Hotel(failures=2, holds=0, **await options(scene, way))

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> list[int | str]:
        try:
            return [await hotel.cook()]
        except StepFailed:
            await asyncio.gather(hotel.book(room, 1), ctx.sleep("10ms"))
            raise

    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        with pytest.raises(RunFailed):
            await (await client.runs.retry(run_id)).result()
        assert await rooms(scene) == [7, 7]


async def test_marks_of_retries_go_with_time(scene: Scene) -> None:
    """Also where no transaction keeps its results beside its data."""
    hotel = Hotel(holds=0, retry=ONCE)

    @hotel.app.workflow
    async def stay(ctx: Context, room: int) -> int:
        await hotel.cook()
        return await hotel.book(room, 1)

    add = "insert into holdfast.step_results values ($1, 'book', ' 7', now() - interval '31 d')"
    await scene.watcher.connection.execute(add, uuid4())
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        retry = await client.runs.retry(run_id)
        assert await retry.result() == 7
        found = await scene.watcher.connection.fetch("select run_id from holdfast.step_results")
        assert {row[0] for row in found} == {run_id, retry.run_id}


async def test_a_fork_makes_the_transaction_again(scene: Scene) -> None:
    """It is a run of its own: only a retry takes the place of the other."""
    hotel = Hotel(**await options(scene, "strict"))
    stay = plain(hotel)
    async with working(hotel.app, scene.url) as client:
        run_id = await fail(client, stay, 7)
        fork = await client.runs.fork(run_id, index=1)
        assert await fork.result() == [7, "cooked"]
        assert await rooms(scene) == [7, 7]


async def test_a_run_that_was_retried_commits_nothing_any_more(scene: Scene) -> None:
    """One of its workers may have been stopped before the commit."""
    place, run_id = await results(scene), uuid4()
    connector = scene.store.connector("asyncpg", asyncpg.Connection, 1, (place.url, place.schema))

    async def close(transaction: Any) -> str | None:
        left: str | None = await transaction.give_up(run_id, "book", LAST_LEASE)
        return left

    async def keep(transaction: Any) -> None:
        await transaction.keep(run_id, recorded(), 3)

    for _ in range(2):
        assert await connector.within(close, None) is None
        with pytest.raises(AlreadyRecorded):
            await connector.within(keep, None)
    found = await scene.value("select result::text from apart.step_results")
    assert lease_of(found) == LAST_LEASE
    await connector.close()


async def test_an_environment_takes_what_a_failed_attempt_committed(scene: Scene) -> None:
    hotel = Hotel(**await options(scene, "elsewhere"))
    stay = plain(hotel, retry=Retry(attempts=2, base="10ms"))
    async with Environment(hotel.app) as env:
        assert await env.run(stay, 7) == [7, "cooked"]
    assert await rooms(scene) == [7]
