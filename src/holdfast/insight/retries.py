"""Find the runs that retry other runs, and say what a retry would repeat."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Final
from uuid import UUID

from holdfast.store.port import Store
from holdfast.store.port.reads import noting_reads
from holdfast.store.port.shards import MayBeAway, ask_most
from holdfast.types import RetryPlan, RunRecord
from holdfast.values.ids import former_retry_run_id, retry_run_id

_MOST_KEYS: Final = 10  # of calls that a text names
_MOST_AHEAD: Final = 256  # of runs of a chain that are asked for at once


async def find_retries(
    store: Store, run_ids: Collection[UUID], *, payloads: bool = True
) -> dict[UUID, RunRecord]:
    """Return the retries of runs, by the run that each retries; runs without one are left out."""
    asked = [make(run_id) for run_id in run_ids for make in (retry_run_id, former_retry_run_id)]
    found = await _there(store, asked, payloads=payloads) if asked else {}
    retries: dict[UUID, RunRecord] = {}
    for run_id in run_ids:
        former = found.get(former_retry_run_id(run_id))
        if former is not None and former.key is None:  # else it is a run of another workflow
            retries[run_id] = former
        if (retry := found.get(retry_run_id(run_id))) is not None:
            retries[run_id] = retry
    return retries


async def find_last_retries(store: Store, run_ids: Collection[UUID]) -> dict[UUID, RunRecord]:
    """Return the last run of each chain of retries, by its first; those without are left out.

    It asks for twice as much of a chain each time: a key that was started a thousand times takes
    ten round trips. The runs have no payloads.
    """
    last = await find_retries(store, run_ids, payloads=False)
    unfinished, width = {run_id: retry.run_id for run_id, retry in last.items()}, 2
    while unfinished:
        ahead = {run_id: list(_retries_of(at, width)) for run_id, at in unfinished.items()}
        asked = [each for chain in ahead.values() for each in chain]
        found = await _there(store, asked, payloads=False)
        unfinished.clear()
        for run_id, chain in ahead.items():
            there = list(takewhile(found.__contains__, chain))
            if there:
                last[run_id] = found[there[-1]]
            if len(there) == width:
                unfinished[run_id] = there[-1]
        width = min(2 * width, _MOST_AHEAD)
    return last


async def _there(store: Store, run_ids: Sequence[UUID], *, payloads: bool) -> dict[UUID, RunRecord]:
    """Return which of these retries there are. Each is in the shard of its run, which answered."""
    with noting_reads():  # so nothing is missing
        return await ask_most(partial(store.get_runs, payloads=payloads), run_ids, MayBeAway)


def _retries_of(run_id: UUID, count: int) -> Iterator[UUID]:
    """Give the ids that the next retries of a run have."""
    for _ in range(count):
        yield (run_id := retry_run_id(run_id))


async def find_retry(store: Store, run_id: UUID) -> RunRecord | None:
    """Return the retry of a run, None if it has none."""
    return (await find_retries(store, [run_id])).get(run_id)


def plan_texts(plan: RetryPlan) -> Iterator[str]:
    """Say if a retry has the cancel, which calls it makes again, why, and which it keeps."""
    if plan.cancel:
        yield "a retry has the cancel of this run: its code continues as one that was cancelled"
    if plan.failed:
        yield f"a retry makes again, because it failed: {_names(plan.failed)}"
    if plan.after:
        reason = "and because the code had called it for that reason"
        if not plan.failed:
            reason = "a retry makes again, because the code had called it after the cancel"
        yield f"{reason}: {_names(plan.after)}"
    if plan.failed or plan.after:
        yield "a call that is made again has a new idempotency key"
    if plan.kept:
        yield f"a retry keeps: {_names(plan.kept)}"


def _names(keys: Sequence[str]) -> str:
    """Name calls by their keys, the last ones if there are many."""
    left = len(keys) - _MOST_KEYS
    return ", ".join(keys[-_MOST_KEYS:]) + (f", and {left:,} before" if left > 0 else "")
