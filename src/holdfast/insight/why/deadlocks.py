"""Runs that wait for each other: entities that call each other, and the children of their methods.

None of them can continue, and nothing in their logs is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from holdfast.errors import DatabaseUnavailable
from holdfast.insight.spans import Span
from holdfast.insight.timeline import read_run_spans
from holdfast.store.port import Store
from holdfast.store.port.reads import note_away, noting_reads
from holdfast.store.port.shards import ask_most
from holdfast.types import ANY_END, UPDATE_REPLY, RunRecord

_MOST_RUNS: Final = 100  # that are looked at
_ENDING: Final = ("activity", "approval", "child", "webhook")


async def newest_of(
    store: Store, run_ids: Sequence[UUID], away: set[int] | None = None
) -> Mapping[UUID, RunRecord]:
    """Return the newest run of each chain, by the id that was asked for, if there is one.

    To `away` it adds the shards that do not answer, and may have the others.
    """
    with noting_reads() as notes:
        newest = await ask_most(store.newest_runs, run_ids)
        runs = await ask_most(store.get_runs, list(set(newest.values())))
    note_away(notes.away)
    if away is not None:
        away |= notes.away
    return {first: runs[last] for first, last in newest.items() if last in runs}


async def find_deadlock(store: Store, run: RunRecord, spans: Sequence[Span]) -> Sequence[RunRecord]:
    """Return the runs of a deadlock that this run is in: it first, each waits for the next.

    Nothing if it is in none, if a timer ends the wait of one of them, or if a shard that has one
    of them is away.
    """
    with suppress(DatabaseUnavailable):
        return await _search(store, run, spans)
    return ()


async def _search(store: Store, run: RunRecord, spans: Sequence[Span]) -> Sequence[RunRecord]:
    before: dict[UUID, RunRecord | None] = {run.run_id: None}  # the run that waits for this one
    asked = dict.fromkeys(_awaited(run, spans), run)
    while asked and len(before) < _MOST_RUNS:
        following: dict[UUID, RunRecord] = {}
        for target, found in (await newest_of(store, list(asked))).items():
            if found.run_id == run.run_id:
                return _path(asked[target], before)
            if found.run_id not in before:
                before[found.run_id], following[found.run_id] = asked[target], found
        logs = await store.read_events([(run_id, 0) for run_id in following])
        asked = {
            target: each
            for each in following.values()
            for target in _awaited(each, read_run_spans(each, logs.get(each.run_id, [])))
        }
    return ()


def _awaited(run: RunRecord, spans: Sequence[Span]) -> Iterator[UUID]:
    """Return the runs whose answer or end a run waits for, unless something else may wake it."""
    wait = run.wait
    if run.state != "waiting" or wait is None or wait.visible_at is not None:
        return
    opened = [span for span in spans if span.outcome == "open"]
    if UPDATE_REPLY in wait.awaiting:
        yield from (UUID(span.target_run_id) for span in opened if span.kind == "entity")
    ending = [span for span in opened if span.kind in _ENDING]
    if ANY_END in wait.awaiting and len(ending) == 1 and ending[0].kind == "child":
        yield UUID(ending[0].child_run_id)


def _path(run: RunRecord | None, before: Mapping[UUID, RunRecord | None]) -> Sequence[RunRecord]:
    """Return the runs that lead to this one, and it at the end."""
    found: list[RunRecord] = []
    while run is not None:
        found.append(run)
        run = before[run.run_id]
    return found[::-1]
