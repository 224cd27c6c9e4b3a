"""How limits hold tasks back: a claim takes those that they allow, a task of each group in turn.

PostgreSQL keeps what counts for a limit in rows, so that a claim reads only the limits that it
needs. Here it follows from the tasks, at each claim.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from uuid import UUID

from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.keys import key_value
from holdfast.store.memory.rows import TURN, LimitRow, RunRow, TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import WORK_TOPIC
from holdfast.types import LimitRule, Notice
from holdfast.values.key_paths import value_at

RATES = ("rate", "units")
_UNLIMITED = 1 << 30
_NUMBER = re.compile(r"(?=.{1,100}\Z)[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2})?")
_AHEAD_MICROS = 10_000_000
_AT_ONCE_MICROS = 100_000  # a smooth rate lets so much begin together, if its distances are shorter

_Slot = tuple[LimitRow, str]
_Group = tuple[tuple[int, str], ...]


def choose(
    tables: Tables, now: int, due: Sequence[TaskRow], limit: int
) -> tuple[list[TaskRow], int | None]:
    """Choose among tasks that are due, in the order given, as far as limits allow.

    Return them, and when a rate allows more, None for never. Of one priority, tasks that limits
    concern and others take turns, and so do the groups of tasks with the same keys. As on
    PostgreSQL, a task counts for each of its limits although another one refuses it: one call may
    take fewer than allowed.
    """
    if not tables.limits:
        return list(due[:limit]), None
    keys = {(task.run_id, task.key): slots_of(tables, task) for task in due}
    limited = [task for task in due if keys[task.run_id, task.key]]
    others = [task for task in due if not keys[task.run_id, task.key]]
    left, next_at = _left(tables, now, keys.values())
    offered = _offered(limited, keys, left)
    allowed: list[tuple[int, TaskRow]] = []
    needs: dict[_Slot, int] = {}  # the units of the first task that a limit refuses
    for priority, task in _in_turn(tables, now, offered, keys):
        costs = {slot: units_of(tables, slot[0], task) for slot in keys[task.run_id, task.key]}
        if all(left[slot] >= cost for slot, cost in costs.items()):
            allowed.append((priority, task))
        for slot, cost in costs.items():
            if left[slot] < cost and slot[0].rule.kind == "units":
                needs.setdefault(slot, cost)
            left[slot] -= cost
    merged = _merge(allowed, [(task.priority, task) for task in others])[:limit]
    turns: dict[int, _Group] = {}  # the last of each priority, in the order of the claim
    for task in merged:
        slots = keys[task.run_id, task.key]
        for row, value in slots:
            if row.rule.kind in RATES:
                add_uses(row, value, now, units_of(tables, row, task))
                next_at = now  # the next claim knows when the rate allows more
        if slots:
            turns.pop(task.priority, None)
            turns[task.priority] = group_of(slots)
    for priority, group in turns.items():
        for task in limited:
            if task.priority == priority:
                tables.limit_turns[task.queue, task.handler] = group
    if merged and len(merged) < len(offered) + len(others):
        next_at = now
    found = [rate_left(*slot, now, need)[1] for slot, need in needs.items()]
    return merged, min((at for at in (next_at, *found) if at is not None), default=None)


def units_of(tables: Tables, row: LimitRow, task: TaskRow) -> int:
    """Return how much of a limit a task uses: 1, or its units.

    A task without a number of units uses 1; one with more than the limit has uses all of them.
    """
    path = row.rule.units
    if path is None:
        return 1
    payload = task.payload if task.version == 0 else None
    if path == "call":
        text = value_at(payload or "{}", ["units"]) or ""
    else:
        text = key_value(path, tables.runs[task.run_id].new.input, payload)
    units = math.ceil(Decimal(text)) if _NUMBER.fullmatch(text) else 1
    return min(max(units, 1), row.rule.most or 1)


def _offered(
    limited: Sequence[TaskRow], keys: dict[tuple[UUID, str], list[_Slot]], left: dict[_Slot, int]
) -> list[TaskRow]:
    """Return of each group no more tasks than its limits allow it, the oldest first."""
    counts: Counter[tuple[str, str, int, _Group]] = Counter()
    found: list[TaskRow] = []
    for task in limited:
        slots = keys[task.run_id, task.key]
        place = task.queue, task.handler, task.priority, group_of(slots)
        if counts[place] < min(left[slot] for slot in slots):
            counts[place] += 1
            found.append(task)
    return found


def slots_of(tables: Tables, task: TaskRow) -> list[_Slot]:
    """Return the limits that a task must wait for, with the values of their keys.

    A limit that is held by runs, and a rate, let a run pass once: when it begins.
    """
    if task.worker is not None:
        return []
    return [
        (row, slot_value(tables, row, task))
        for row in tables.limits.values()
        if not row.removed and concerns(row.rule, task) and _applies(row, task)
    ]


def _applies(row: LimitRow, task: TaskRow) -> bool:
    if row.rule.holds == "run":
        return task.key == TURN and not _is_held_by_run(row, task)
    return row.rule.kind not in RATES or task.key != TURN or task.lease_no == 0


def _is_held_by_run(row: LimitRow, task: TaskRow) -> bool:
    return task.lease_no > 0 or row.limit_id in task.held


def pass_places(tables: Tables, old: RunRow, new: TaskRow) -> None:
    """Give the run that continues another one the places that this held.

    If the new input has another value for the key of a limit, it waits for a place of its own.
    """
    inputs = old.new.input, tables.runs[new.run_id].new.input
    new.held = frozenset(
        row.limit_id
        for row in tables.limits.values()
        if row.rule.holds == "run"
        and concerns(row.rule, new)
        and len({_run_slot(row, each) for each in inputs}) == 1
    )


def concerns(rule: LimitRule, task: TaskRow) -> bool:
    """Return True if a limit holds for a task."""
    if task.kind in ("approval", "child", "flow"):
        return False
    if rule.scope == "queue":
        return rule.name == task.queue
    return rule.name == task.name and (rule.scope == "activity") == (task.version == 0)


def slot_value(tables: Tables, row: LimitRow, task: TaskRow) -> str:
    """Return the value that a task has for the key of a limit."""
    payload = task.payload if task.version == 0 else None
    return _run_slot(row, tables.runs[task.run_id].new.input, payload)


def _run_slot(row: LimitRow, run_input: str, payload: str | None = None) -> str:
    return key_value(row.rule.key, run_input, payload) if row.rule.key else ""


def group_of(slots: Iterable[_Slot]) -> _Group:
    """Return the group of tasks that wait for the same; groups are in the database's order."""
    found = sorted((row.limit_id, value) for row, value in slots)
    return *found, (_UNLIMITED, "")  # the group with a further limit comes before the one without


def _in_turn(
    tables: Tables, now: int, limited: Sequence[TaskRow], keys: dict[tuple[UUID, str], list[_Slot]]
) -> list[tuple[int, TaskRow]]:
    """Return the tasks with the priorities that they count as, a task of each group in turn."""
    aged = [(_aged(now, task, keys[task.run_id, task.key]), task) for task in limited]
    aged.sort(key=lambda item: (item[0], item[1].visible_at, item[1].run_id, item[1].key))
    rounds: defaultdict[_Group, int] = defaultdict(int)
    ranked: list[tuple[tuple[int, int, bool, _Group, str, str], tuple[int, TaskRow]]] = []
    for priority, task in aged:
        group = group_of(keys[task.run_id, task.key])
        since = tables.limit_turns.get((task.queue, task.handler))
        rounds[group] += 1
        is_second = since is not None and group <= since
        rank = (priority, rounds[group], is_second, group, task.queue, task.handler)
        ranked.append((rank, (priority, task)))
    return [item for _, item in sorted(ranked, key=lambda each: each[0])]


def _aged(now: int, task: TaskRow, slots: Iterable[_Slot]) -> int:
    periods = [
        to_micros(row.rule.period_seconds)
        for row, _ in slots
        if row.rule.kind == "ageing" and row.rule.period_seconds is not None
    ]
    if not periods:
        return task.priority
    return max(0, task.priority - max(0, now - task.visible_at) // min(periods))


def _merge(
    limited: Sequence[tuple[int, TaskRow]], others: Sequence[tuple[int, TaskRow]]
) -> list[TaskRow]:
    """Return tasks of both kinds by priority; within one, the kinds take turns."""
    ranked: list[tuple[tuple[int, int, bool], TaskRow]] = []
    for is_limited, tasks in ((False, others), (True, limited)):
        nth: defaultdict[int, int] = defaultdict(int)
        for priority, task in tasks:
            nth[priority] += 1
            ranked.append(((priority, nth[priority], is_limited), task))
    return [task for _, task in sorted(ranked, key=lambda each: each[0])]


def _left(
    tables: Tables, now: int, slots: Iterable[Sequence[_Slot]]
) -> tuple[dict[_Slot, int], int | None]:
    """Return what each limit still allows for a value of its key, and when a rate allows more."""
    left: dict[_Slot, int] = {}
    moments: list[int] = []
    for slot in {slot for some in slots for slot in some}:
        row, value = slot
        if row.rule.kind in RATES:
            left[slot], next_at = rate_left(row, value, now)
            moments += [] if next_at is None else [next_at]
        elif row.rule.kind == "concurrency":
            left[slot] = (row.rule.most or 0) - len(holders(tables, row, value))
        else:
            left[slot] = _UNLIMITED
    return left, min(moments, default=None)


def holders(tables: Tables, row: LimitRow, value: str | None = None) -> list[TaskRow]:
    """Return the tasks that count for a limit, with any value of its key or with this one."""
    return [
        task
        for task in tables.tasks.values()
        if concerns(row.rule, task)
        and (
            task.key == TURN and _is_held_by_run(row, task)
            if row.rule.holds == "run"
            else task.worker is not None
        )
        and (value is None or slot_value(tables, row, task) == value)
    ]


def place_notices(tables: Tables, now: int, run_ids: Sequence[UUID]) -> list[Notice]:
    """Return notices for workers of queues in which tasks wait for places that runs hold.

    To be called before the runs end from outside: no worker claims by itself after that.
    """
    held = [
        row
        for row in tables.limits.values()
        if not row.removed
        and row.rule.kind == "concurrency"
        and any(task.run_id in run_ids for task in holders(tables, row))
    ]
    if not held:
        return []
    queues = {
        task.queue
        for task in tables.tasks.values()
        if task.worker is None
        and task.visible_at <= now
        and not task.paused
        and any(concerns(row.rule, task) and _applies(row, task) for row in held)
    }
    return [Notice(WORK_TOPIC, queue) for queue in sorted(queues)]


def rate_left(row: LimitRow, value: str, now: int, need: int = 1) -> tuple[int, int | None]:
    """Return how many tasks, or units, a rate lets begin now; if fewer than needed, also when."""
    most = row.rule.most or 1
    period = to_micros(row.rule.period_seconds or 1.0)
    uses = uses_of(row, value, now)
    free = most - used_of(row, value, now)
    if free < need:
        ends = (at for at, _ in uses if _after(uses, at) <= most - need)
        return free, next(ends, now) + period
    if not row.rule.smooth:
        return free, None
    at_once = max(1, most * _AT_ONCE_MICROS // period)
    if not uses:
        return min(free, at_once), None
    distance = period / most
    free = min(free, at_once, int((now - uses[-1][0]) // distance))
    return free, None if free > 0 else round(uses[-1][0] + distance)


def uses_of(row: LimitRow, value: str, now: int) -> list[tuple[int, int]]:
    """Return what a rate has let begin within its period: moments, and how many at each."""
    period = to_micros(row.rule.period_seconds or 1.0)
    # What is later than a moment ahead was before the clock went back: it counts no more.
    ahead = now + max(period, _AHEAD_MICROS)
    for kept in (row.uses, row.corrections):
        kept[value] = [use for use in kept[value] if now - period < use[0] <= ahead]
    return sorted(row.uses[value] + row.corrections[value])


def used_of(row: LimitRow, value: str, now: int) -> int:
    """Return how many tasks, or units, of a rate are used; all of them at most."""
    used = sum(count for _, count in uses_of(row, value, now))
    return min(max(used, 0), row.rule.most or 1)


def _after(uses: Sequence[tuple[int, int]], at: int) -> int:
    return sum(count for each, count in uses if each > at)


def add_uses(row: LimitRow, value: str, now: int, count: int) -> None:
    """Count uses of a rate. Those within a hundredth of its period are at one moment.

    It is the later one, as on PostgreSQL.
    """
    period = to_micros(row.rule.period_seconds or 1.0)
    part = now * 100 // period
    same = sum(each for at, each in row.uses[value] if at * 100 // period == part)
    others = [use for use in row.uses[value] if use[0] * 100 // period != part]
    row.uses[value] = [*others, (now, same + count)]


def correct_units(tables: Tables, now: int, task: TaskRow, units: int) -> None:
    """Count the units that an attempt has really used, in place of those of its begin.

    What it used more counts from now on. What it used less ends with the task's first claim, so no
    later than what it is taken from.
    """
    since = now if task.started_at is None else task.started_at
    for row in tables.limits.values():
        is_counted = row.rule.kind == "units" and not row.removed and row.added_at <= since
        if is_counted and concerns(row.rule, task):
            more = units - units_of(tables, row, task)
            at = now if more > 0 else since
            row.corrections[slot_value(tables, row, task)].append((at, more))


def allowed_moments(tables: Tables, now: int) -> list[int]:
    """Return when rates allow more of what waits for them now."""
    waiting = (task for task in tables.tasks.values() if task.visible_at <= now)
    found = [
        rate_left(row, value, now, units_of(tables, row, task))[1]
        for task in waiting
        for row, value in slots_of(tables, task)
        if row.rule.kind in RATES
    ]
    return [at for at in found if at is not None]
