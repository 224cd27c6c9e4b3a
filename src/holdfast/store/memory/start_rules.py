"""Starts that obey rules: singletons, debounces, throttles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, get_args
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory.builds import build_of_start, set_build
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.declared import with_declared
from holdfast.store.memory.large_payloads import use_payloads
from holdfast.store.memory.payloads import check_limit
from holdfast.store.memory.rows import NEVER, TURN, RunRow, StartKey, TaskRow, WaitingRun
from holdfast.store.memory.tables import Tables
from holdfast.types import (
    DEBOUNCE,
    SINGLETON,
    THROTTLE,
    DeclaredRules,
    HeldKey,
    NewRun,
    Notice,
    RuleKind,
    RulesOfStart,
    StartedRun,
    StartRules,
    StartWait,
)
from holdfast.values.key_paths import key_of

_NONE: Final = StartRules()
_CLOCK_MOVED: Final = to_micros(10.0)  # what lies so far ahead is from before it went back
read_rules = msgspec.json.Decoder(RulesOfStart).decode


class MemoryStartRules(Part):
    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        async with self._transaction() as (tables, _):
            for each in rules:
                known = tables.start_rules.get(each.name)
                if known is not None and known.version > each.version:
                    continue
                if each.rules is None:
                    tables.start_rules.pop(each.name, None)
                else:
                    tables.start_rules[each.name] = each

    async def list_start_rules(self) -> list[DeclaredRules]:
        async with self._transaction() as (tables, _):
            return [rules for _, rules in sorted(tables.start_rules.items())]

    async def list_start_keys(self, name: str, *, limit: int = 100) -> list[HeldKey]:
        check_limit(limit)
        async with self._transaction() as (tables, now):
            found: list[HeldKey] = []
            for rule in get_args(RuleKind):
                keys = sorted(key for of, at, key in tables.start_keys if (of, at) == (rule, name))
                held = (_held(tables, now, rule, name, key) for key in keys)
                found += [each for each in held if each is not None][:limit]
            return found

    async def start_wait(self, run_id: UUID) -> StartWait | None:
        async with self._transaction() as (tables, _):
            return _wait_of(tables, run_id)

    async def expire_start_keys(self, *, limit: int = 1000) -> int:
        async with self._transaction() as (tables, now):
            expired = [
                place
                for place, key in tables.start_keys.items()
                if key.expires_at is not None and key.expires_at < now
            ][:limit]
            for rule, name, key in expired:
                del tables.start_keys[rule, name, key]
                if rule == "throttle":
                    del tables.throttle_slots[name, key]
            return len(expired)

    async def free_singletons(self, *, limit: int = 1000) -> tuple[int, list[Notice]]:
        """Do nothing: no other transaction ever has a row."""
        return 0, []


def rules_of(tables: Tables, new: NewRun) -> StartRules | None:
    declared = tables.start_rules.get(new.name)
    if declared is None and new.rules is None:
        return None
    brought = RulesOfStart() if new.rules is None else read_rules(new.rules)
    rules = brought.declared if declared is None else declared.rules
    try:
        return msgspec.convert(
            {**msgspec.to_builtins(rules or _NONE), **(brought.given or {})}, StartRules
        )
    except msgspec.ValidationError as error:
        raise InvalidInput(f"rules of a start: {error}") from error


def lock_order(tables: Tables, new: NewRun) -> tuple[str, ...]:
    """Return by what starts are ordered that are made together: the database locks keys so."""
    rules = rules_of(tables, new) or _NONE
    paths = rules.debounce_key, rules.singleton_key, rules.throttle_key
    return new.name, *(key_of(new.input, path) for path in paths)


def start_ruled(
    tables: Tables,
    now: int,
    new: NewRun,
    rules: StartRules,
    insert: Callable[[NewRun], TaskRow],
    *,
    is_child: bool,
) -> StartedRun:
    """Start a run, whose id is free, as the rules allow; `insert` writes it."""
    debounce = singleton = None
    if rules.debounce_seconds is not None:
        debounce = key_of(new.input, rules.debounce_key)
        waiting = _debounced(tables, now, new.name, debounce)
        if waiting is not None and is_child:
            return StartedRun(waiting.run_id, False, "running", "debounce")
        if waiting is not None:
            _merge(tables, now, new, rules, waiting)
            return StartedRun(waiting.run_id, False, "running")
    if rules.singleton_conflict is not None:
        singleton = key_of(new.input, rules.singleton_key)
        active = tables.start_keys.get(("singleton", new.name, singleton))
        if active is not None and rules.singleton_conflict != "queue":
            refuses = rules.singleton_conflict == "refuse" or is_child
            return StartedRun(active.run_id, False, "running", "singleton" if refuses else None)
    slot = 0
    if rules.throttle_limit is not None:
        throttle = key_of(new.input, rules.throttle_key)
        slot, allowed_at = _next_slot(tables.throttle_slots[new.name, throttle], now, rules)
        if allowed_at > now and rules.throttle_excess == "refuse":
            return StartedRun(new.run_id, False, None, "throttle", allowed_at)
        _take_slot(tables, now, new, rules, throttle, slot)
    turn = insert(new)
    if slot > turn.visible_at:
        _postpone(tables, turn, slot)
        turn.awaiting = (THROTTLE,)
    if debounce is not None:
        _postpone(tables, turn, max(turn.visible_at, _end_of_quiet(rules, now, now)))
        turn.awaiting = (DEBOUNCE,)
        tables.start_keys["debounce", new.name, debounce] = StartKey(
            new.run_id, since=now, not_before=slot, expires_at=turn.visible_at
        )
    if singleton is not None:
        _enter(tables, tables.runs[new.run_id], turn, singleton)
    return StartedRun(new.run_id, True, "running")


def _wait_of(tables: Tables, run_id: UUID) -> StartWait | None:
    turn = tables.tasks.get((run_id, TURN))
    if turn is None or turn.lease_no > 0:
        return None
    run, rules = tables.runs[run_id], _NONE
    if (declared := tables.start_rules.get(run.new.name)) is not None:
        rules = declared.rules or _NONE
    if turn.awaiting == (SINGLETON,) and run.singleton_key is not None:
        waits = tables.singleton_waits[run.new.name, run.singleton_key]
        place = [each.run_id for each in waits].index(run_id) + 1
        active = tables.start_keys["singleton", run.new.name, run.singleton_key].run_id
        return StartWait("singleton", run.singleton_key, active, place)
    if turn.awaiting == (DEBOUNCE,):
        key = key_of(run.new.input, rules.debounce_key)
        known = tables.start_keys.get(("debounce", run.new.name, key))
        if known is None or known.run_id != run_id or rules.debounce_max_wait_seconds is None:
            return StartWait("debounce", key)
        latest = known.since + to_micros(rules.debounce_max_wait_seconds)
        return StartWait("debounce", key, latest=latest)
    if turn.awaiting == (THROTTLE,):
        return StartWait("throttle", key_of(run.new.input, rules.throttle_key))
    return None


def _held(tables: Tables, now: int, rule: RuleKind, name: str, key: str) -> HeldKey | None:
    """Return a key that a rule holds now; None if it holds nothing."""
    known, until = tables.start_keys[rule, name, key], None
    turn = tables.tasks.get((known.run_id, TURN))
    if rule == "singleton":
        waiting = len(tables.singleton_waits.get((name, key), ()))
        return None if turn is None else HeldKey(rule, key, known.run_id, waiting, None)
    if rule == "debounce":
        until = known.expires_at
        begun = turn is None or turn.lease_no > 0
        return None if begun or (until or 0) <= now else HeldKey(rule, key, known.run_id, 0, until)
    declared = tables.start_rules.get(name)
    if declared is not None and declared.rules is not None and declared.rules.throttle_limit:
        until, _ = _next_slot(tables.throttle_slots[name, key], now, declared.rules)
    return HeldKey(rule, key, None, 0, until) if until is not None and until > now else None


def _postpone(tables: Tables, turn: TaskRow, at: int) -> None:
    """Let a run begin later; its timeout counts from then."""
    run = tables.runs[turn.run_id]
    if run.deadline_at is not None:
        run.deadline_at += at - turn.visible_at
    turn.visible_at = run.due_at = at


def _end_of_quiet(rules: StartRules, now: int, since: int) -> int:
    end = now + to_micros(rules.debounce_seconds or 0.0)
    if rules.debounce_max_wait_seconds is None:
        return end
    return min(end, since + to_micros(rules.debounce_max_wait_seconds))


def _debounced(tables: Tables, now: int, name: str, key: str) -> StartKey | None:
    """Return the key of a run that waits for the end of its quiet time."""
    known = tables.start_keys.get(("debounce", name, key))
    if known is None or known.expires_at is None or known.expires_at <= now:
        return None
    turn = tables.tasks.get((known.run_id, TURN))
    return known if turn is not None and turn.lease_no == 0 else None


def _merge(tables: Tables, now: int, new: NewRun, rules: StartRules, key: StartKey) -> None:
    """Give a run that waits for quiet what a further start asks for."""
    run, turn = tables.runs[key.run_id], tables.turn(key.run_id)
    wish = new.start_at
    if wish is None:
        wish = now + to_micros(new.delay_seconds or 0.0)
    due_at = max(_end_of_quiet(rules, now, key.since), key.not_before, wish)
    new = with_declared(tables, new)
    run.new = msgspec.structs.replace(new, run_id=run.new.run_id, key=run.new.key)
    use_payloads(tables, run.new.run_id, [new.input])
    turn.queue, turn.version, turn.priority = run.queue, new.version, run.priority
    set_build(tables, run.new.run_id, build_of_start(tables, run.new))
    timeout = None if new.timeout_seconds is None else to_micros(new.timeout_seconds)
    waits = tables.singleton_waits.get((new.name, run.singleton_key or ""), [])
    place = next((n for n, each in enumerate(waits) if each.run_id == key.run_id), None)
    if place is None:
        turn.visible_at = run.due_at = due_at
        run.deadline_at = None if timeout is None else due_at + timeout
    else:
        waits[place] = WaitingRun(key.run_id, due_at, timeout)
    key.expires_at = due_at


def _next_slot(slots: list[int], now: int, rules: StartRules) -> tuple[int, int]:
    """Return the next slot, and when it is allowed: a period after the one `limit` before.

    No slot is before another one. Where excess is refused no slot lies ahead: one that does is
    from before the clock went back.
    """
    limit = rules.throttle_limit or 1
    latest = now + _CLOCK_MOVED if rules.throttle_excess == "refuse" else NEVER
    allowed_at = now
    if len(slots) >= limit and slots[-limit] <= latest:
        allowed_at = max(now, slots[-limit] + to_micros(rules.throttle_period_seconds or 0.0))
    if slots and slots[-1] <= latest:
        return max(allowed_at, slots[-1]), allowed_at
    return allowed_at, allowed_at


def _take_slot(
    tables: Tables, now: int, new: NewRun, rules: StartRules, key: str, slot: int
) -> None:
    """Record a slot, and forget those that no rule of the key counts any more."""
    period = to_micros(rules.throttle_period_seconds or 0.0)
    known = tables.start_keys.setdefault(("throttle", new.name, key), StartKey(new.run_id))
    known.expires_at = max(known.expires_at or 0, slot + period)
    known.period = max(known.period, period)
    slots = tables.throttle_slots[new.name, key]
    slots.append(slot)
    while len(slots) > (rules.throttle_limit or 1) and slots[0] <= now - known.period:
        del slots[0]


def _enter(tables: Tables, run: RunRow, turn: TaskRow, key: str) -> None:
    """Make a run the active one of its key, or let it wait for those before it."""
    run.singleton_key = key
    name = run.new.name
    if ("singleton", name, key) not in tables.start_keys:
        tables.start_keys["singleton", name, key] = StartKey(run.new.run_id)
        return
    timeout = None if run.deadline_at is None else run.deadline_at - turn.visible_at
    tables.singleton_waits[name, key].append(WaitingRun(run.new.run_id, turn.visible_at, timeout))
    run.deadline_at = run.due_at = None
    turn.visible_at, turn.awaiting = NEVER, (SINGLETON,)
