"""Find the run that continues or retries another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from uuid import UUID

from holdfast.insight.retries import find_last_retries
from holdfast.store.port import Store
from holdfast.types import RunRecord, continued_as


async def newest(store: Store, run_id: UUID) -> UUID:
    """Return the last run that a run continued as, or its own id if it did not continue."""
    return (await store.newest_runs([run_id])).get(run_id, run_id)


async def newest_of_key(store: Store, run_id: UUID) -> UUID:
    """Return the newest run of a key: the last that its first run was continued and retried as."""
    return (await newest_of_keys(store, [run_id]))[run_id]


async def newest_of_keys(store: Store, run_ids: Collection[UUID]) -> dict[UUID, UUID]:
    """Return the newest runs of keys, by their first runs; see `newest_of_key`."""
    return (await search_newest(store, run_ids))[0]


async def search_newest(
    store: Store, run_ids: Collection[UUID]
) -> tuple[dict[UUID, UUID], dict[UUID, RunRecord]]:
    """Return what `newest_of_keys` does, and the runs, without payloads, that it has read."""
    read: dict[UUID, RunRecord] = {}
    last_of = {run_id: run_id for run_id in run_ids}
    asked = set(run_ids)
    while asked:
        newest, retries = await asyncio.gather(
            store.newest_runs(list(asked)), find_last_retries(store, asked)
        )
        read |= {each.run_id: each for each in retries.values()}
        next_of = {run_id: retry.run_id for run_id, retry in retries.items()}
        next_of |= {run_id: last for run_id, last in newest.items() if last != run_id}
        last_of = {run_id: next_of.get(last, last) for run_id, last in last_of.items()}
        asked = set(next_of.values())
    return last_of, read


async def find_successor(store: Store, run_id: UUID, *, next_only: bool = False) -> UUID | None:
    """Return the run that takes an ended run's messages, None if it did not continue as new.

    That is the last run of the chain, or with `next_only` the next one. A sender with an id of its
    own goes run by run: each may have had a message of that id.
    """
    if not next_only:
        last = await newest(store, run_id)
        return None if last == run_id else last
    run = (await store.get_runs([run_id])).get(run_id)
    return None if run is None else continued_as(run)
