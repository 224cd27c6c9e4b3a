"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator

from holdfast.client.retention import Retention
from holdfast.sync.base import SyncGroup
from holdfast.types import SweeperState, SweepShare, Swept


class SyncRetention(SyncGroup[Retention]):
    """The sweeper: workers delete ended runs in the background, and programs may do so at once."""

    def state(self) -> SweeperState:
        """Return who sweeps, when a pass last ended, and how many runs are due.

        It counts 10,000 due runs at most.

        ```python
        state = client.retention.state()
        print(state.due, "runs to delete")
        ```
        """
        return self._call(self._target.state)

    def preview(self, limit: int = 100000) -> builtins.list[SweepShare]:
        """Return what a sweep would delete and what it would keep, by workflow; change nothing.

        It looks at `limit` runs at most, those first whose retention ended first.

        ```python
        for share in client.retention.preview():
            print(share.name, share.due - share.kept)
        ```
        """
        return self._call(self._target.preview, limit)

    def sweep(self) -> int:
        """Delete the ended runs whose retention is over, and return how many these were.

        A run is kept while a child of it has not ended, and while a run that continues or retries
        it is there. Other processes may sweep at the same time. If there is an archive, runs are
        written there first. Raises ObjectsUnavailable if that cannot be done, and InvalidInput if
        the runs of this database are archived elsewhere.

        ```python
        print(client.retention.sweep(), "runs deleted")
        ```
        """
        return self._call(self._target.sweep)

    def batches(self) -> Generator[Swept]:
        """Sweep, and yield what came of each batch; raises what `sweep` raises.

        ```python
        for batch in client.retention.batches():
            print(batch.deleted)
        ```
        """
        return self._portal.iterate(self._target.batches())
