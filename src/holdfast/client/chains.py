"""Follow a run that continued as new to the run that goes on for it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec

from holdfast.ids import keyed_run_id
from holdfast.store.port import Store
from holdfast.types import End, RunRecord

_RETRIES = "run/retry"  # no workflow's name has a slash, so no run with a key has such an id


class _Continued(msgspec.Struct):
    """The output of a run that continued as new."""

    run_id: UUID


async def newest(store: Store, run_id: UUID) -> UUID:
    """Return the end of a run's chain: the run itself where it has not continued as new."""
    return (await store.newest_runs([run_id])).get(run_id, run_id)


def retry_id(run_id: UUID) -> UUID:
    """Return the id of the run that retries a run: asked for twice, it is one."""
    return keyed_run_id(_RETRIES, str(run_id))


async def latest(store: Store, run_id: UUID) -> UUID:
    """Return the newest run of a key: what its first run was continued and retried as."""
    while True:
        retry = retry_id(run_id)
        last, retries = await asyncio.gather(newest(store, run_id), store.get_runs([retry]))
        if last == run_id and not retries:
            return run_id
        run_id = last if last != run_id else retry


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
