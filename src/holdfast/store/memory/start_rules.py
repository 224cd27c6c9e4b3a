"""Starts that obey rules: singletons, debounces, throttles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.errors import InvalidInput
from holdfast.key_paths import key_of
from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import (
    NEVER,
    Parent,
    RunRow,
    StartKey,
    Tables,
    TaskRow,
    WaitingRun,
)
from holdfast.types import (
    SINGLETON,
    DeclaredRules,
    NewRun,
    Notice,
    RulesOfStart,
    StartedRun,
    StartRules,
)

_NONE: Final = StartRules()
_read_rules = msgspec.json.Decoder(RulesOfStart).decode


class MemoryStartRules(Part):
    """Records what workflows declare."""

    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        """Record rules; see `StartRuleStore.declare_start_rules`."""
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
        """Return the rules that are in force, by name."""
        async with self._transaction() as (tables, _):
            return [rules for _, rules in sorted(tables.start_rules.items())]

    async def free_singletons(self, *, limit: int = 1000) -> tuple[int, list[Notice]]:
        """Do nothing: no other transaction ever has a row."""
        return 0, []


def rules_of(tables: Tables, new: NewRun) -> StartRules | None:
    """Return the rules for a start; None if there are none."""
    declared = tables.start_rules.get(new.name)
    if declared is None and new.rules is None:
        return None
    brought = RulesOfStart() if new.rules is None else _read_rules(new.rules)
    rules = brought.declared if declared is None else declared.rules
    try:
        return msgspec.convert(
            {**msgspec.to_builtins(rules or _NONE), **(brought.given or {})}, StartRules
        )
    except msgspec.ValidationError as error:
        raise InvalidInput(f"rules of a start: {error}") from error


def start_ruled(
    tables: Tables,
    now: int,
    new: NewRun,
    rules: StartRules,
    insert: Callable[[NewRun], TaskRow],
    parent: Parent | None = None,
) -> StartedRun:
    """Start a run, whose id is free, as the rules allow; `insert` writes it."""
    singleton = None
    if rules.singleton_conflict is not None:
        singleton = key_of(new.input, rules.singleton_key)
        active = tables.start_keys.get(("singleton", new.name, singleton))
        if active is not None and rules.singleton_conflict != "queue":
            refuses = rules.singleton_conflict == "refuse" or parent is not None
            return StartedRun(active.run_id, False, "running", "singleton" if refuses else None)
    turn = insert(new)
    if singleton is not None:
        _enter(tables, tables.runs[new.run_id], turn, singleton)
    return StartedRun(new.run_id, True, "running")


def _enter(tables: Tables, run: RunRow, turn: TaskRow, key: str) -> None:
    """Make a run the active one of its key, or let it wait for those before it."""
    run.singleton_key = key
    name = run.new.name
    if ("singleton", name, key) not in tables.start_keys:
        tables.start_keys["singleton", name, key] = StartKey(run.new.run_id)
        return
    timeout = None if run.deadline_at is None else run.deadline_at - turn.visible_at
    tables.singleton_waits[name, key].append(WaitingRun(run.new.run_id, turn.visible_at, timeout))
    run.deadline_at, turn.visible_at, turn.awaiting = None, NEVER, (SINGLETON,)
