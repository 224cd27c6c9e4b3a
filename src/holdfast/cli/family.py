"""The tree of runs that a run has started, as far as somebody wants to see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.cli.spans import Span
from holdfast.cli.timeline import read_spans
from holdfast.store.port import Store
from holdfast.types import RunRecord

DEPTH = 3
WIDTH = 20  # children of one run that are shown, those that have not ended before the others


@dataclass(slots=True)
class Kin:
    """A child: the key under which its parent has it, its newest run, and its own children.

    `more` counts the children that are left out.
    """

    key: str
    run: RunRecord
    children: list[Kin] = field(default_factory=list["Kin"])
    more: int = 0


async def find_children(store: Store, spans: Sequence[Span]) -> tuple[list[Kin], int]:
    """Return the children that a run's spans name, with theirs below, and how many are left out."""
    kin, more = await _children(store, spans)
    generation = kin
    for _ in range(DEPTH - 1):
        logs = await store.read_events([(each.run.run_id, 0) for each in generation])
        below: list[Kin] = []
        for each in generation:
            found = read_spans(logs.get(each.run.run_id, ()), None)
            each.children, each.more = await _children(store, found)
            below += each.children
        if not below:
            break
        generation = below
    return kin, more


async def _children(store: Store, spans: Sequence[Span]) -> tuple[list[Kin], int]:
    started = [span for span in spans if span.kind == "child"]
    shown = sorted(started, key=lambda span: span.outcome != "open")[:WIDTH]
    if not shown:
        return [], 0
    newest = await store.newest_runs([UUID(span.child_run_id) for span in shown])
    runs = await store.get_runs(list(set(newest.values())))
    last = [newest.get(UUID(span.child_run_id)) for span in shown]
    kin = [
        Kin(span.key, runs[run_id])
        for span, run_id in zip(shown, last, strict=True)
        if run_id is not None and run_id in runs
    ]
    return kin, len(started) - len(shown)
