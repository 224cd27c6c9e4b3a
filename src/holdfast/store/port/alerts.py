"""The part of the port for alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import AlertChange, AlertInfo, AlertRule, DeclaredAlerts, Notice
from holdfast.types.work import SILENT_SECONDS


class AlertStore(Protocol):
    """Keeps alerts, looks at them, and publishes their changes."""

    @readable
    async def declare_alerts(
        self, app: str, alerts: Sequence[AlertRule], *, starting: bool = False
    ) -> DeclaredAlerts:
        """Declare the alerts of an app's code; again at least every 30 seconds.

        The code that is `starting` last counts.
        """
        ...

    @readable
    async def look_at_alerts(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 1_000
    ) -> tuple[list[AlertChange], list[Notice]]:
        """Look at those that are due, each at most once in 10 seconds; return what changed.

        A change and its event are one transaction. One that no worker has declared for 90 seconds,
        although one of its app was heard all the while, is deleted; if it was active, it is over.
        A worker that was not heard for `silent_seconds` does not count as live.
        """
        ...

    @readable
    async def list_alerts(self) -> list[AlertInfo]:
        """Return all alerts, by app and name."""
        ...
