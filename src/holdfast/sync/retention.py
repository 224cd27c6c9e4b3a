"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator

from holdfast.client.retention import Retention
from holdfast.sync.base import SyncGroup
from holdfast.types import SweeperState, SweepShare, Swept


class SyncRetention(SyncGroup[Retention], of=Retention):
    """The sweeper: workers delete ended runs in the background, and programs may do so at
    once.
    """

    def state(self) -> SweeperState:
        """Return who sweeps, when a pass last ended, and how many runs are due."""
        return self._call(self._target.state)

    def preview(self, limit: int = 100000) -> builtins.list[SweepShare]:
        """Return what a sweep would delete and what it would keep, by workflow; change nothing."""
        return self._call(self._target.preview, limit)

    def sweep(self) -> int:
        """Delete the ended runs whose retention is over, and return how many these were."""
        return self._call(self._target.sweep)

    def batches(self) -> Generator[Swept]:
        """Sweep, and yield what came of each batch; raises what `sweep` raises."""
        return self._portal.iterate(self._target.batches())
