"""`client.retention`: delete ended runs whose retention is over, or see what would be deleted."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator

from holdfast.client.session import Group
from holdfast.types import SweeperState, SweepShare, Swept
from holdfast.values.numbers import whole_number


class Retention(Group):
    """The sweeper: workers delete ended runs in the background, and programs may do so at once."""

    async def state(self) -> SweeperState:
        """Return who sweeps, when a pass last ended, and how many runs are due.

        It counts 10,000 due runs at most.

        ```python
        state = await client.retention.state()
        print(state.due, "runs to delete")
        ```
        """
        return await self._session.store.get_sweeper()

    async def preview(self, limit: int = 100_000) -> builtins.list[SweepShare]:
        """Return what a sweep would delete and what it would keep, by workflow; change nothing.

        It looks at `limit` runs at most, those first whose retention ended first.

        ```python
        for share in await client.retention.preview():
            print(share.name, share.due - share.kept)
        ```
        """
        return await self._session.store.preview_sweep(
            limit=whole_number(limit, "retention.preview", "limit", 0)
        )

    async def sweep(self) -> int:
        """Delete the ended runs whose retention is over, and return how many these were.

        A run is kept while a child of it has not ended, and while a run that continues or retries
        it is there. Other processes may sweep at the same time. If there is an archive, runs are
        written there first. Raises ObjectsUnavailable if that cannot be done, and InvalidInput if
        the runs of this database are archived elsewhere.

        ```python
        print(await client.retention.sweep(), "runs deleted")
        ```
        """
        return sum([swept.deleted async for swept in self.batches()])

    async def batches(self) -> AsyncGenerator[Swept]:
        """Sweep, and yield what came of each batch; raises what `sweep` raises.

        ```python
        async for batch in client.retention.batches():
            print(batch.deleted)
        ```
        """
        from holdfast.retention.deletion import sweep_batches

        store, archive = self._session.store, await self._session.archive()
        async for swept in sweep_batches(store, archive):
            yield swept
