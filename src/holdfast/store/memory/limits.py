"""Limits: how many tasks may run at once or begin in a period, and in which order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.memory.choosing import (
    RATES,
    concerns,
    group_of,
    holders,
    rate_left,
    slot_value,
    slots_of,
    units_of,
    used_of,
)
from holdfast.store.memory.database import Part
from holdfast.store.memory.flows.rows import split_key
from holdfast.store.memory.keys import check_not_of_flow, check_rule
from holdfast.store.memory.message_limits import message_use
from holdfast.store.memory.rows import LimitPlace, LimitRow, TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, LimitWait

_MOST_COUNTED = 1_000  # of what waits of a handler in a queue


class MemoryLimits(Part):
    async def set_limit(self, rule: LimitRule) -> bool:
        async with self._transaction() as (tables, now):
            check_rule(rule)
            named = replace(rule, name=_full_name(tables, rule.scope, rule.name))
            check_not_of_flow(named, _flows(tables))
            return _put(tables, now, named, None)

    async def remove_limit(
        self, scope: LimitScope, name: str, kind: LimitKind, key: str = ""
    ) -> bool:
        async with self._transaction() as (tables, _):
            row = tables.limits.get((scope, _full_name(tables, scope, name), kind, key))
            if row is None or row.removed:
                return False
            row.removed = True
            return True

    async def declare_limits(self, app: str, rules: Sequence[LimitRule]) -> int:
        async with self._transaction() as (tables, now):
            for rule in rules:
                check_rule(rule)
                check_not_of_flow(rule, _flows(tables))
            known = {place: row.declared for place, row in tables.limits.items()}
            changed = [
                rule for rule in sorted(rules, key=_place) if known.get(_place(rule)) != rule
            ]
            for rule in changed:
                _put(tables, now, rule, app)
            places = {_place(rule) for rule in rules}
            for place, row in tables.limits.items():
                if row.app == app and row.declared is not None and place not in places:
                    row.removed, row.declared = True, None
            return len(changed)

    async def list_limits(self) -> list[LimitInfo]:
        async with self._transaction() as (tables, now):
            return [
                _info(tables, now, row)
                for _, row in sorted(tables.limits.items())
                if not row.removed
            ]

    async def explain_limits(self, run_id: UUID) -> list[LimitWait]:
        async with self._transaction() as (tables, now):
            first: dict[str, TaskRow] = {}
            tasks = (task for _, task in tables.tasks_of_run(run_id))
            for task in sorted(tasks, key=lambda task: (task.visible_at, task.key)):
                if task.worker is None and task.visible_at <= now and not task.paused:
                    is_step = task.kind == "step"
                    first.setdefault(split_key(task.key)[0] if is_step else task.key, task)
            waiting = sorted(first.values(), key=lambda task: task.key)
            return [wait for task in waiting for wait in _waits(tables, now, task)]

    async def sweep_limits(self, *, limit: int = 1000) -> int:
        async with self._transaction() as (tables, _):
            gone = [
                place
                for place, row in tables.limits.items()
                if row.removed and row.declared is None
            ]
            for place in gone:
                del tables.limits[place]
            return len(gone)


def _flows(tables: Tables) -> set[str]:
    return {row.shape.name for row in tables.shapes.values()}


def _info(tables: Tables, now: int, row: LimitRow) -> LimitInfo:
    held = holders(tables, row) if row.rule.kind == "concurrency" else []
    counts: defaultdict[str, int] = defaultdict(int)
    for task in held:
        counts[slot_value(tables, row, task)] += 1
    waiting = Counter(
        (task.queue, task.handler)
        for task in tables.tasks.values()
        if concerns(row.rule, task)
        and task.worker is None
        and task.visible_at <= now
        and not task.paused
        and slots_of(tables, task)
    )
    in_flight, full_keys, due = message_use(tables, row, now)
    return LimitInfo(
        rule=row.rule,
        is_declared=row.declared is not None,
        changed_at=row.changed_at,
        held=len(held) + in_flight,
        full_keys=full_keys + sum(1 for count in counts.values() if count >= (row.rule.most or 0)),
        waiting=due + sum(min(count, _MOST_COUNTED) for count in waiting.values()),
        more_wait=due == _MOST_COUNTED or any(count > _MOST_COUNTED for count in waiting.values()),
        used=_used(row, now),
    )


def _used(row: LimitRow, now: int) -> int | None:
    if row.rule.kind not in RATES:
        return None
    return sum(used_of(row, value, now) for value in [*row.uses])


def _waits(tables: Tables, now: int, task: TaskRow) -> list[LimitWait]:
    slots = slots_of(tables, task)
    ahead = sum(
        1
        for other in tables.tasks.values()
        if (other.queue, other.handler) == (task.queue, task.handler)
        and other.worker is None
        and other.visible_at <= now
        and not other.paused
        and (other.priority, other.visible_at) < (task.priority, task.visible_at)
        and group_of(slots_of(tables, other)) == group_of(slots)
    )
    waits: list[LimitWait] = []
    for row, value in sorted(slots, key=lambda slot: _place(slot[0].rule)):
        held = len(holders(tables, row, value)) if row.rule.kind == "concurrency" else 0
        free, next_at = None, None
        uses = None
        if row.rule.kind == "concurrency":
            free = max((row.rule.most or 0) - held, 0)
        elif row.rule.kind in RATES:
            uses = units_of(tables, row, task) if row.rule.kind == "units" else None
            free, next_at = rate_left(row, value, now, uses or 1)
        waits.append(
            LimitWait(
                task_key=task.key,
                waits_since=task.visible_at,
                ahead=ahead,
                rule=row.rule,
                slot=value,
                held=held,
                free=free,
                next_at=next_at,
                uses=uses,
            )
        )
    return waits


def _put(tables: Tables, now: int, rule: LimitRule, app: str | None) -> bool:
    """Write a limit. Return False if nothing changed."""
    check_rule(rule)
    full = _with_defaults(rule)
    row = tables.limits.get(_place(rule))
    if row is not None and not row.removed and app is None and row.rule == full:
        return False
    if row is None:
        tables.limits_made += 1
        row = tables.limits[_place(rule)] = LimitRow(tables.limits_made, full, now)
    if row.removed or row.rule.holds != full.holds or not row.added_at:
        row.added_at = now
    if row.removed or row.rule.holds != full.holds:  # only what has begun counts
        for task in tables.tasks.values():
            task.held -= {row.limit_id}
    row.rule, row.removed, row.changed_at = full, False, now
    if app is not None:
        row.app, row.declared = app, rule
    return True


def _with_defaults(rule: LimitRule) -> LimitRule:
    if rule.kind == "concurrency" and rule.holds is None:
        return replace(rule, holds="run" if rule.scope == "workflow" else "turn")
    if rule.kind == "rate" and rule.smooth is None:
        return replace(rule, smooth=False)
    return rule


def _place(rule: LimitRule) -> LimitPlace:
    return rule.scope, rule.name, rule.kind, rule.key


def _full_name(tables: Tables, scope: LimitScope, name: str) -> str:
    """Return the name of a workflow with its app. Raises InvalidInput if no one app has it."""
    if scope == "queue" or "/" in name:
        return name
    apps = sorted(app for app, info in tables.apps.items() if name in info.workflows)
    if scope == "activity" or len(apps) != 1:
        raise InvalidInput(f"{scope} {name}: name the app as well: APP/{name}")
    return f"{apps[0]}/{name}"
