"""Delete the ended runs of a database whose retention is over, batch by batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from holdfast.store.port import Store
from holdfast.types import Swept


async def sweep_batches(store: Store) -> AsyncGenerator[Swept]:
    """Delete what is due, and yield what came of each batch.

    Several processes may do so at the same time: each batch passes over what another deletes.
    Raises InvalidInput if runs are archived before they are deleted.
    """
    after: int | None = None
    while True:
        swept = await store.sweep_runs(after=after)
        yield swept
        if not swept.has_more:
            return
        after = swept.after
