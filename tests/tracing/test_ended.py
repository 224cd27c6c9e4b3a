"""The spans of runs that have ended, as they follow from what the database has."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast import App, Client, Context
from holdfast.store.memory import MemoryStore
from holdfast.tracing.ended import read_ended
from holdfast.types import RunRecord
from holdfast.values.ids import uuid7
from holdfast.values.trace_ids import own_trace_id, run_span_id
from holdfast.worker import Worker

CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"

app = App("shop")


class Parented(MemoryStore):
    """Says of each run that it is the child of `parent`."""

    parent = uuid7()

    async def get_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        found = await super().get_runs(run_ids)
        return {
            run_id: msgspec.structs.replace(run, parent_run_id=self.parent)
            for run_id, run in found.items()
        }


async def ended(store: MemoryStore, headers: dict[str, str]) -> UUID:
    """Return a run that has ended."""
    async with Client(store=store) as client:
        run = await client.start("shop/pack", headers=headers)
        await client.runs.terminate(run.run_id, reason="enough")
    return run.run_id


async def test_a_child_that_is_in_no_trace_has_a_link_to_its_parent() -> None:
    """A flow that SQL has started gives its children no trace."""
    store = Parented()
    run_id = await ended(store, {})
    (run,) = await read_ended(store, run_id, lambda _: True)
    assert (run.trace_id, run.parent_id) == (own_trace_id(run_id), None)
    assert run.links == [(own_trace_id(store.parent), run_span_id(store.parent))]


async def test_a_child_in_its_parents_trace_has_no_link() -> None:
    store = Parented()
    run_id = await ended(store, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    (run,) = await read_ended(store, run_id, lambda _: True)
    assert (run.trace_id, run.parent_id) == (int("ab" * 16, 16), run_span_id(store.parent))
    assert run.links == []


@app.workflow
async def pack(ctx: Context) -> str | None:
    return ctx.headers.get("traceparent")


@app.workflow
async def order(ctx: Context) -> str | None:
    """Wait for one child, and leave another behind."""
    await ctx.start_child(pack)
    return await pack()


async def test_a_child_that_outlives_its_parent_has_a_trace_of_its_own_with_a_link() -> None:
    """The parent's span of its call links to the child, whichever trace that is in."""
    store = MemoryStore()
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client:
        parent = await client.start(order, headers={"traceparent": CALLER})
        assert await parent.result(timeout="30s") == CALLER
        page = await client.runs.list(names=["pack"])
        for run in page.runs:
            await client.result(run.run_id, timeout="30s")
    await worker.stop()
    spans = {
        span.span_id: span
        for run_id in (parent.run_id, *(run.run_id for run in page.runs))
        for span in await read_ended(store, run_id, lambda _: True)
    }
    one, other = (spans[run_span_id(run.run_id)] for run in page.runs)
    inner, outer = (one, other) if one.trace_id == int("ab" * 16, 16) else (other, one)
    own = spans[run_span_id(parent.run_id)]
    assert (inner.trace_id, inner.parent_id, inner.links) == (own.trace_id, own.span_id, [])
    assert outer.trace_id not in (own.trace_id, inner.trace_id)
    assert (outer.parent_id, outer.links) == (None, [(own.trace_id, own.span_id)])
    calls = [span for span in spans.values() if span.name == "workflow.step"]
    linked = {link for span in calls for link in span.links}
    assert (inner.trace_id, inner.span_id) in linked
    assert linked <= {(each.trace_id, each.span_id) for each in (inner, outer)}


async def test_a_run_without_a_parent_has_no_link() -> None:
    store = MemoryStore()
    (run,) = await read_ended(store, await ended(store, {}), lambda _: True)
    assert run.links == []
