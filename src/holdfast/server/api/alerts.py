"""The operation that lists alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from holdfast.server.operations import Call, ForAgents, Nothing, Operation
from holdfast.types import AlertRule
from holdfast.values.composing import shaped


class AlertShape(msgspec.Struct, frozen=True, kw_only=True):
    """An alert, and what was seen when a worker looked last; null for never."""

    app: str
    rule: AlertRule
    is_active: bool
    value: float | None
    changed_at: datetime | None
    looked_at: datetime | None
    error: str | None


class AlertList(msgspec.Struct, frozen=True):
    """All alerts."""

    alerts: list[AlertShape]


async def list_alerts(call: Call[Nothing, None]) -> AlertList:
    """List the alerts that the code of apps declares, and how things stand."""
    found = await call.site.reader.alerts.list()
    return AlertList([shaped(AlertShape, each) for each in found])


OPERATIONS: Final = (
    Operation(
        "GET /v1/alerts",
        "read",
        list_alerts,
        tool=ForAgents(about="List the alerts that apps declare, and which of them are active."),
    ),
)
