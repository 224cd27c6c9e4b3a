"""Entities that wait for each other: nothing wakes them, and `why` says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import App, Client, Context, RunFailed, current_context
from holdfast.store.port import Store
from tests.entities.test_deploys import working


def nodes(timeout: str | None) -> App:
    """Return entities that call the next of a path, and wait for its answer."""
    app = App("loops")

    @app.entity
    @dataclass
    class Node:
        key: str
        calls: int = 0

        async def visit(self, path: list[str]) -> int:
            self.calls += 1
            if not path:
                return self.calls
            ctx = current_context()
            assert ctx is not None
            if path[0] == "child":
                return await ctx.child(walk, path[1:])
            return await ctx.entity(Node, path[0], timeout=timeout).visit(path[1:])

    @app.workflow
    async def walk(ctx: Context, path: list[str]) -> int:
        return await ctx.entity(Node, path[0]).visit(path[1:])

    return app


async def why(client: Client, key: str, what: str = "") -> str:
    """Return what keeps an entity waiting, once that is said of it."""
    while what not in (said := str((await client.why(("loops/Node", key))).details)) or not said:
        await asyncio.sleep(0.02)
    return said


async def make(client: Client) -> None:
    for key in "abc":
        await client.start("loops/Node", key=key)


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        (["a", "b", "c", "a"], ["loops/Node 'a'", "loops/Node 'b'", "loops/Node 'c'"]),
        (["a", "b", "child", "a"], ["loops/Node 'a'", "loops/Node 'b'", "loops/walk "]),
    ],
)
async def test_why_names_runs_that_wait_for_each_other_and_the_way_out(
    store: Store, client: Client, path: list[str], runs: list[str]
) -> None:
    await make(client)
    async with working(nodes(None), store), asyncio.timeout(30):
        handle = await client.start("loops/walk", path)
        outside = await client.start("loops/walk", ["b"])
        for key in "ab":
            said = await why(client, key, "wait for each other")
            assert all(name in said for name in runs)
            assert "give a call of an entity in them a timeout" in said
        for run in (handle, outside):  # which wait for these, and are not of them
            assert "wait for each other" not in str((await client.why(run.run_id)).details)
    async with working(nodes("10ms"), store), asyncio.timeout(30):
        await client.runs.pause(("loops/Node", "a"))
        await client.runs.resume(("loops/Node", "a"))
        with pytest.raises(RunFailed, match="TimeoutError"):
            await handle.result()
        await outside.result()


async def test_runs_that_a_timer_wakes_do_not_wait_for_ever(store: Store, client: Client) -> None:
    await make(client)
    async with working(nodes("1h"), store), asyncio.timeout(30):
        await client.start("loops/walk", ["a", "b", "a"])
        said = await why(client, "b", "run ")
        assert "Node 'a'" in said
        assert "wait for each other" not in said


async def test_a_chain_of_calls_that_ends_is_not_a_deadlock(store: Store, client: Client) -> None:
    await make(client)
    async with working(nodes(None), store), asyncio.timeout(30):
        await client.runs.pause(("loops/Node", "c"))
        handle = await client.start("loops/walk", ["a", "b", "c"])
        assert "Node 'c'" in await why(client, "b", "run ")
        assert "wait for each other" not in await why(client, "a")
        await client.runs.resume(("loops/Node", "c"))
        assert await handle.result() == 1
