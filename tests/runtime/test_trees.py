"""The tree of runs below a run."""

from __future__ import annotations

from contextlib import suppress

from holdfast import App, ChildFailed, Client, Context
from holdfast.insight.timeline import read_spans
from holdfast.insight.tree import read_children
from holdfast.store.port import Store
from tests.runtime.desk import working

app = App("trees")


@app.workflow
async def bill(ctx: Context) -> str:
    return "billed"


@app.workflow
async def close(ctx: Context) -> None:
    await ctx.child(bill, key="own")
    with suppress(ChildFailed):
        await ctx.child(bill, key="taken")


@app.workflow
async def year(ctx: Context) -> None:
    await close()


async def test_a_child_that_was_refused_is_not_in_the_tree(store: Store) -> None:
    async with working(app, store), Client(store=store) as client:
        await (await client.start(bill, key="taken")).result(timeout="60s")
        run = await client.start(year)
        await run.result(timeout="60s")
        events = await store.read_events([(run.run_id, 0)])
        (below,) = (await read_children(store, read_spans(events[run.run_id], None))).shown
        events = await store.read_events([(below.run.run_id, 0)])
        alone = await read_children(store, read_spans(events[below.run.run_id], None))
    for found in (below.children, alone):
        (child,) = found.shown
        assert (child.run.key, found.more) == ("own", 0)
