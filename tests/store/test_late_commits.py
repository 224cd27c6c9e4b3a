"""A message with a commit that arrives late: the step ends as the data say, by every library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from scene import Scene
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from test_transactions import ONCE, results, working
from tests.proxy import Proxy, reset

from holdfast import App, Context, Database, StepFailed

WITHDRAW = "update public.account set left_over = left_over - 7 where left_over >= 7 returning 7"


class Late(Proxy):
    """Carries the first commit of a transaction that withdraws later than all else.

    With `resets` its client gets no answer: its connection is reset at once.
    """

    seconds, resets, waits = 1.0, True, True

    async def _carry(
        self, link: Any, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        if target is not link.writers[-1]:
            await super()._carry(link, source, target)
            return
        withdraws = False
        with suppress(OSError):
            while data := await source.read(2**20):
                withdraws = withdraws or b"left_over - 7" in data
                if withdraws and self.waits and _commits(data.lower()):
                    self.waits = False
                    if self.resets:
                        reset(link.writers[0])
                    await asyncio.sleep(self.seconds)
                target.write(data)
                await target.drain()
        if not self.waits:
            await asyncio.sleep(1)  # the server reads what has come before the connection ends
        for writer in link.writers:
            writer.close()
        self._links.discard(link)


def _commits(data: bytes) -> bool:
    alone = data.startswith((b"q", b"p")) and b"commit" in data[:14]
    return alone or b"; commit" in data


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.account (left_over int)")
        await scene.watcher.connection.execute("insert into public.account values (10)")
        yield scene
        await scene.watcher.connection.execute("drop table public.account")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


def enough(row: Any) -> int:
    if row is None:
        raise ValueError("too little")
    return int(row[0])


async def by_asyncpg(connection: asyncpg.Connection) -> int:
    return enough(await connection.fetchrow(WITHDRAW))


async def by_async_psycopg(connection: psycopg.AsyncConnection) -> int:
    return enough(await (await connection.execute(WITHDRAW)).fetchone())


def by_psycopg(connection: psycopg.Connection) -> int:
    return enough(connection.execute(WITHDRAW).fetchone())


async def by_async_session(session: AsyncSession) -> int:
    return enough((await session.execute(text(WITHDRAW))).first())


def by_session(session: Session) -> int:
    return enough(session.execute(text(WITHDRAW)).first())


KINDS = [by_asyncpg, by_async_psycopg, by_psycopg, by_async_session, by_session]
APART = ["serializable", "elsewhere"]


async def made(
    scene: Scene, proxy: Proxy, app: App, kind: Any, apart: str | None, **more: Any
) -> tuple[Any, Any]:
    """Return the transaction of a kind, through the proxy, and one that reads the account."""
    given: dict[str, Any] = {} if apart is None else {"isolation": apart}
    if apart == "elsewhere":
        place = await results(scene)
        given = {"database": Database(proxy.url, schema=place.schema)}
    withdraw = app.transaction(retry=ONCE, **given, **more)(kind)

    @app.transaction
    async def look(connection: asyncpg.Connection) -> int:
        return int(await connection.fetchval("select left_over from public.account"))

    return withdraw, look


async def step_ends(scene: Scene) -> list[str]:
    found = await scene.watcher.connection.fetch(
        "select event_type from holdfast.events where event_type like 'Step%' order by idx"
    )
    return [row[0] for row in found]


@pytest.mark.parametrize(
    ("kind", "apart"),
    [(by_asyncpg, None), (by_async_session, None), *[(k, a) for k in KINDS for a in APART]],
)
async def test_a_try_that_fails_because_another_one_was_committed_does_not_count(
    scene: Scene, kind: Any, apart: str | None
) -> None:
    """Fault: the step had failed, and its rows were there; in the log it had both ends."""
    with Late(scene.url) as proxy:
        app = App("bank")
        withdraw, _ = await made(scene, proxy, app, kind, apart)

        @app.workflow
        async def pay(ctx: Context) -> int:
            paid: int = await withdraw()
            return paid

        async with working(app, proxy.url) as client:
            assert await client.run(pay) == 7
        assert not proxy.waits
    assert await step_ends(scene) == ["StepCompleted"]
    assert await scene.value("select left_over from public.account") == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_time_out_knows_if_it_was_committed(scene: Scene, kind: Any) -> None:
    """Fault: the step had timed out, and its rows were there."""
    with Late(scene.url) as proxy:
        proxy.seconds = 3
        app = App("bank")
        withdraw, _ = await made(scene, proxy, app, kind, "elsewhere", timeout="2s")

        @app.workflow
        async def pay(ctx: Context) -> int:
            paid: int = await withdraw()
            return paid

        async with working(app, proxy.url) as client:
            assert await client.run(pay) == 7
        assert not proxy.waits
    assert await scene.value("select left_over from public.account") == 3


@pytest.mark.parametrize("apart", APART)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resets", [True, False])
async def test_what_undoes_sees_a_commit_under_way(
    scene: Scene, kind: Any, apart: str, resets: bool
) -> None:
    """Fault: it looked while a thread's commit was on its way, saw no rows, and they came."""
    with Late(scene.url) as proxy:
        proxy.resets = resets
        app = App("bank")
        withdraw, look = await made(scene, proxy, app, kind, apart)

        @app.workflow
        async def pay(ctx: Context) -> int:
            paying = asyncio.create_task(withdraw())
            await ctx.wait_for_signal("enough")
            paying.cancel()
            left: int = await look()
            return left

        async with working(app, proxy.url) as client:
            handle = await client.start(pay)
            while proxy.waits:
                await asyncio.sleep(0.01)
            await handle.signal("enough")
            assert await handle.result() == 3
        assert not proxy.waits


async def test_a_call_that_was_cancelled_with_a_commit_on_its_way_is_looked_at(
    scene: Scene,
) -> None:
    """While the database is away, the run waits: what follows may undo what has committed."""
    with Late(scene.url) as proxy, Late(scene.url) as data:
        app = App("bank")
        withdraw, _ = await made(scene, data, app, by_asyncpg, "elsewhere")

        @app.workflow
        async def pay(ctx: Context) -> str:
            try:
                await asyncio.wait_for(withdraw(), 1)
            except TimeoutError:
                return "too late"
            except StepFailed:
                return "failed"
            return "paid"

        async with working(app, proxy.url) as client:
            handle = await client.start(pay)
            while data.waits:
                await asyncio.sleep(0.01)
            data.refuse()
            while "TimerFired" not in [each.event.type for each in await handle.log()]:
                await asyncio.sleep(0.05)
            data.refuse(False)
            assert await handle.result() == "too late"
