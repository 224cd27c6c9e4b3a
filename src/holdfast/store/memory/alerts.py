"""Alerts: what they look at, and how they change."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import AlertRow
from holdfast.store.memory.tables import SILENCE, Tables, distinct, is_heard
from holdfast.store.memory.topics import publish
from holdfast.types import (
    AlertChange,
    AlertEvent,
    AlertInfo,
    AlertRule,
    DeclaredAlerts,
    NewEvent,
    Notice,
)
from holdfast.types.stats import BUCKETS, COUNTS, ENDED, percentile
from holdfast.types.work import SILENT_SECONDS
from holdfast.values.composing import compose
from holdfast.values.moments import to_datetime
from holdfast.values.patterns import check_topic

_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_LOOK: Final = 10 * _SECOND
_MOST_STUCK: Final = 10_000


class MemoryAlerts(Part):
    async def declare_alerts(
        self, app: str, alerts: Sequence[AlertRule], *, starting: bool = False
    ) -> DeclaredAlerts:
        async with self._transaction() as (tables, now):
            added: list[str] = []
            changed: list[str] = []
            for rule in sorted(alerts, key=lambda each: each.name):
                check_topic(rule.topic)
                row = tables.alerts.get((app, rule.name))
                if row is None:
                    tables.alerts[app, rule.name] = AlertRow(rule, now, now)
                    added.append(rule.name)
                elif row.rule == rule:
                    row.heard_at = now
                elif starting or (
                    not is_heard(row.heard_at, now, SILENCE) and tables.can_tell_gone(app, now)
                ):
                    row.rule, row.heard_at, row.look_at, row.differs_since = rule, now, now, None
                    changed.append(rule.name)
            return DeclaredAlerts(tuple(added), tuple(changed))

    async def look_at_alerts(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 1_000
    ) -> tuple[list[AlertChange], list[Notice]]:
        async with self._transaction() as (tables, now):
            changes: list[AlertChange] = []
            notices: list[Notice] = []
            silent = to_micros(silent_seconds)
            due = [place for place, row in tables.alerts.items() if is_due(row.look_at, now)]
            for app, name in sorted(due, key=lambda each: tables.alerts[each].look_at)[:limit]:
                row = tables.alerts[app, name]
                if _is_left(tables, now, app, row):
                    del tables.alerts[app, name]
                    changes.append(AlertChange(app, name, is_active=False, is_deleted=True))
                    if row.is_active:
                        notices += _publish(tables, now, app, row.rule, None, active=False)
                    continue
                if row.rule.kind == "no_worker" and (row.looked_at or 0) <= now - _MINUTE:
                    row.differs_since = None  # no worker was heard while the database was away
                row.look_at, row.looked_at, row.error = now + _LOOK, now, None
                row.value = _seen(tables, now, app, row.rule, silent)
                if _holds(row) == row.is_active:
                    row.differs_since = None
                    continue
                row.differs_since = min(row.differs_since or now, now)
                if now - row.differs_since < to_micros(row.rule.lasting_seconds):
                    continue
                try:
                    active = not row.is_active
                    notices += _publish(tables, now, app, row.rule, row.value, active=active)
                    row.is_active, row.changed_at, row.differs_since = active, now, None
                except InvalidInput as error:
                    row.error = str(error)
                changes.append(AlertChange(app, name, row.is_active, row.value, row.error))
            return changes, distinct(notices)

    async def list_alerts(self) -> list[AlertInfo]:
        async with self._transaction() as (tables, _):
            return [
                compose(AlertInfo, row, app=app) for (app, _), row in sorted(tables.alerts.items())
            ]


def is_due(look_at: int, now: int) -> bool:
    """Return True if an alert is to be looked at. One far ahead: the clock has gone back."""
    return look_at <= now or look_at > now + _MINUTE


def _is_left(tables: Tables, now: int, app: str, row: AlertRow) -> bool:
    """Return True if the code of the alert's app does not have it any more."""
    return not is_heard(row.heard_at, now, SILENCE) and any(
        tables.hears(worker.worker_id, now, SILENCE)
        and any(handler.startswith(f"{app}/") for handler in worker.handlers)
        for worker in tables.workers.values()
    )


def _holds(row: AlertRow) -> bool:
    if row.value is None:
        return False
    if row.rule.kind == "no_worker":
        return row.value < row.rule.threshold
    return row.value >= row.rule.threshold


def _seen(tables: Tables, now: int, app: str, rule: AlertRule, silent: int) -> float | None:
    """Return what an alert sees now, see `AlertInfo`."""
    if rule.within_seconds is not None:
        counts = _counts_within(tables, now, app, rule.subject, rule.within_seconds)
        if rule.kind == "slow":
            return percentile(counts[BUCKETS:], 0.95)
        return counts[ENDED["failed"]] + counts[ENDED["timed_out"]]
    if rule.kind == "stuck":
        of = f"{rule.subject}@" if rule.subject else f"{app}/"
        stuck = (
            task.stuck is not None for task in tables.tasks.values() if task.handler.startswith(of)
        )
        return min(sum(stuck), _MOST_STUCK)
    if rule.kind == "backlog":
        due = [
            task.visible_at
            for task in tables.tasks.values()
            if task.queue == rule.subject
            and task.handler
            and task.worker is None
            and task.visible_at <= now
        ]
        return (now - min(due, default=now)) / _SECOND
    workers = tables.workers.values()
    return sum(
        rule.subject in each.queues and is_heard(each.heard_at, now, silent) for each in workers
    )


def _counts_within(
    tables: Tables, now: int, app: str, subject: str, within_seconds: float
) -> list[int]:
    first = now - to_micros(within_seconds)
    first -= first % _MINUTE
    total = [0] * COUNTS
    for (minute, seconds, name, _), counts in tables.stats.items():
        is_of = name == subject if subject else name.startswith(f"{app}/")
        if seconds == 60 and first <= minute <= now and is_of:
            total = list(map(add, total, counts))
    return total


def _publish(
    tables: Tables, now: int, app: str, rule: AlertRule, value: float | None, *, active: bool
) -> list[Notice]:
    """Publish that an alert has begun or is over."""
    event = compose(
        AlertEvent, rule, alert=rule.name, app=app, active=active, value=value, at=to_datetime(now)
    )
    payload = msgspec.json.encode(event).decode()
    return publish(tables, now, NewEvent(topic=rule.topic, payload=payload))[1]
