"""Follow a run that continued as new to the run that goes on for it."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.store.port import Store
from holdfast.types import End, RunRecord


class _Continued(msgspec.Struct):
    """The output of a run that continued as new."""

    run_id: UUID


async def newest(store: Store, run_id: UUID) -> UUID:
    """Return the end of a run's chain: the run itself where it has not continued as new."""
    return (await store.newest_runs([run_id])).get(run_id, run_id)


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
