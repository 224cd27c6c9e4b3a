"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins

from holdfast.client.alerts import Alerts
from holdfast.sync.base import SyncGroup
from holdfast.types import AlertInfo


class SyncAlerts(SyncGroup[Alerts], of=Alerts):
    """The alerts that the code of apps declares."""

    def list(self) -> builtins.list[AlertInfo]:
        """Return all alerts, by app and name, as they were seen when a worker looked last."""
        return self._call(self._target.list)
