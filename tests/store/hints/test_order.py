"""A hint says that a queue has work, not which: the claim takes what is most urgent and allowed."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from tests.valkey import Valkey, needs_valkey

from holdfast import App, Context, Limit

from .hinted import client_of, until, until_reading, working

pytestmark = [needs_valkey, pytest.mark.usefixtures("no_polls")]


class Gate:
    """Runs that wait behind it, in the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.opened = asyncio.Event()

    async def enter(self, name: str) -> None:
        self.began.append(name)
        await self.opened.wait()


@pytest.fixture
async def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate) -> App:
    gated = App("gated")

    @gated.step
    async def enter(name: str) -> None:
        await gate.enter(name)

    @gated.workflow
    async def pass_gate(ctx: Context, name: str) -> str:
        await enter(name)
        return name

    @gated.activity
    async def enter_elsewhere(name: str) -> None:
        await gate.enter(name)

    @gated.workflow
    async def send(ctx: Context, name: str) -> str:
        await enter_elsewhere(name)
        return name

    return gated


@pytest.mark.parametrize("name", ["pass_gate", "send"])
async def test_a_hint_does_not_overtake_a_more_urgent_run(
    gate: Gate, gated: App, name: str, database_url: str, redis: Valkey
) -> None:
    """No hint and no notification tells of the urgent run; another run's hint leads to it."""
    gate.opened.set()
    async with (
        working(database_url, redis.url, 1, served=gated, poll_seconds=3600, concurrency=1),
        client_of(database_url, redis.url) as client,
    ):
        await until_reading(redis, 1)
        urgent = """select holdfast.start_run('gated/pass_gate', '"urgent"', p_priority => 0)"""
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(urgent)
        run = await client.start(f"gated/{name}", "later", priority=3)
        await run.result()
    assert gate.began == ["urgent", "later"]


@pytest.mark.parametrize("name", ["pass_gate", "send"])
async def test_a_hint_does_not_overtake_a_limit(
    gate: Gate, gated: App, name: str, database_url: str, redis: Valkey
) -> None:
    """All workers are told of all runs, and one run at a time is at work."""
    async with (
        working(database_url, redis.url, 3, served=gated, poll_seconds=3600),
        client_of(database_url, redis.url) as client,
    ):
        limited = "workflow" if name == "pass_gate" else "activity"
        what = f"gated/{name}" if name == "pass_gate" else "gated/enter_elsewhere"
        await client.limits.set(Limit(1), **{limited: what})
        await until_reading(redis, 3)
        runs = [await client.start(f"gated/{name}", str(n)) for n in range(5)]
        await until(lambda: gate.began)
        await until_reading(redis, 3)  # every hint has been looked at
        assert len(gate.began) == 1
        gate.opened.set()
        assert [await run.result() for run in runs] == [str(n) for n in range(5)]
        assert sorted(gate.began) == [str(n) for n in range(5)]
