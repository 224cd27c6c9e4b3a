"""Follow a run that continued as new to the run that goes on for it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec

from holdfast.insight.retries import find_retry
from holdfast.store.port import Store
from holdfast.types import End, RunRecord


class _Continued(msgspec.Struct):
    """The output of a run that continued as new."""

    run_id: UUID


async def newest(store: Store, run_id: UUID) -> UUID:
    """Return the end of a run's chain: the run itself where it has not continued as new."""
    return (await store.newest_runs([run_id])).get(run_id, run_id)


async def latest(store: Store, run_id: UUID) -> UUID:
    """Return the newest run of a key: what its first run was continued and retried as."""
    while True:
        last, retry = await asyncio.gather(newest(store, run_id), find_retry(store, run_id))
        if last != run_id:
            run_id = last
        elif retry is not None:
            run_id = retry.run_id
        else:
            return run_id


async def heir(store: Store, run_id: UUID, *, next_only: bool = False) -> UUID | None:
    """Return the run that an ended one's messages are for, None where it was the last.

    With `next_only` the chain is taken link by link: whoever asks with an id of its own must
    learn of each link whether it has had that id.
    """
    if not next_only:
        last = await newest(store, run_id)
        return None if last == run_id else last
    run = (await store.get_runs([run_id])).get(run_id)
    return None if run is None else successor(run)


def successor(run: RunRecord | End) -> UUID | None:
    """Return the run that an ended run continued as."""
    if run.status != "continued" or run.output is None:
        return None
    return msgspec.json.decode(run.output, type=_Continued).run_id
