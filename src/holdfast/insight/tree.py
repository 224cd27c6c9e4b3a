"""The tree of runs below a run: its children, and theirs, down to a depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from holdfast.insight.spans import Span
from holdfast.insight.timeline import read_spans
from holdfast.store.port import Store
from holdfast.types import RunRecord, Value

DEPTH = 3
WIDTH = 20  # children of one run that are shown, open ones first


class Children(Value, frozen=True):
    """The children of one run; `more` counts those that are left out."""

    shown: tuple[Child, ...] = ()
    more: int = 0


class Child(Value, frozen=True):
    """A child: the key of the call that started it, its newest run, and its own children."""

    key: str
    run: RunRecord
    children: Children


_Found = tuple[list[tuple[str, RunRecord]], int]


async def read_children(store: Store, spans: Sequence[Span]) -> Children:
    """Return the children that a run's spans name, with theirs below."""
    top = await _started(store, spans)
    below: dict[UUID, _Found] = {}
    generation = top[0]
    for _ in range(DEPTH - 1):
        if not generation:
            break
        logs = await store.read_events([(run.run_id, 0) for _, run in generation])
        for _, run in generation:
            found = read_spans(logs.get(run.run_id, ()), None)
            below[run.run_id] = await _started(store, found)
        generation = [each for _, run in generation for each in below[run.run_id][0]]
    return _tree(top, below)


async def _started(store: Store, spans: Sequence[Span]) -> _Found:
    """Return the children of one run with their keys, and how many are left out."""
    started = [span for span in spans if span.kind == "child" and span.child_run_id]
    shown = sorted(started, key=lambda span: span.outcome != "open")[:WIDTH]
    if not shown:
        return [], 0
    newest = await store.newest_runs([UUID(span.child_run_id) for span in shown])
    runs = await store.get_runs(list(set(newest.values())))
    last = [newest.get(UUID(span.child_run_id)) for span in shown]
    found = [
        (span.key, runs[run_id])
        for span, run_id in zip(shown, last, strict=True)
        if run_id is not None and run_id in runs
    ]
    return found, len(started) - len(shown)


def _tree(found: _Found, below: Mapping[UUID, _Found]) -> Children:
    started, more = found
    return Children(
        tuple(
            Child(key, run, _tree(below.get(run.run_id, ([], 0)), below)) for key, run in started
        ),
        more,
    )
