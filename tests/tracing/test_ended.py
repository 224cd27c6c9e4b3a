"""The spans of runs that have ended, as they follow from what the database has."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast import Client
from holdfast.ids import uuid7
from holdfast.store.memory import MemoryStore
from holdfast.trace_ids import own_trace_id, run_span_id
from holdfast.tracing.ended import read_ended
from holdfast.types import RunRecord


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


async def test_a_run_without_a_parent_has_no_link() -> None:
    store = MemoryStore()
    (run,) = await read_ended(store, await ended(store, {}), lambda _: True)
    assert run.links == []
