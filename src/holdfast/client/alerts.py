"""`client.alerts`: the alerts of all apps, and how things stand."""

from __future__ import annotations

import builtins

from holdfast.client.session import Group
from holdfast.types import AlertInfo


class Alerts(Group):
    """The alerts that the code of apps declares."""

    async def list(self) -> builtins.list[AlertInfo]:
        """Return all alerts, by app and name, as they were seen when a worker looked last.

        ```python
        for alert in await client.alerts.list():
            print(alert.app, alert.rule.name, alert.is_active, alert.value)
        ```
        """
        return await self._session.store.list_alerts()
