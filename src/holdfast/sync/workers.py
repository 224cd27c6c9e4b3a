"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins

from holdfast.client.workers import Workers
from holdfast.sync.base import SyncGroup
from holdfast.types import WorkerInfo


class SyncWorkers(SyncGroup[Workers], of=Workers):
    """The workers of all apps."""

    def list(self) -> builtins.list[WorkerInfo]:
        """Return the workers that are signed on."""
        return self._call(self._target.list)
