"""The schedules that the code of apps has."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidInput
from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules.checks import check_app, check_schedule
from holdfast.store.memory.schedules.rows import ScheduleSet
from holdfast.store.memory.schedules.writing import begin, redefine, resume, told
from holdfast.store.memory.tables import SILENCE, Tables
from holdfast.types import EnsuredSchedules, NewSchedule, Notice


def ensure(
    tables: Tables,
    now: int,
    app: str,
    digest: str,
    schedules: Sequence[NewSchedule],
    *,
    restore: bool,
) -> tuple[EnsuredSchedules, list[Notice]]:
    """Write the schedules of an app's code; see `ScheduleStore.ensure_schedules`."""
    check_app(app)
    sets = {key[1]: each for key, each in tables.schedule_sets.items() if key[0] == app}
    if not schedules and not sets:
        return EnsuredSchedules("current"), []
    for each in sets.values():  # the clock may have gone back: they are heard from now on
        each.heard_at = min(each.heard_at, now)
    own = sets.get(digest)
    if own is not None:
        own.heard_at = now
        if own.is_current:
            if restore and any(new.name not in tables.schedules for new in schedules):
                return _write(tables, now, app, schedules), told(app)
            return EnsuredSchedules("current"), []
        if any(
            each.is_current
            and (
                each.heard_at > now - SILENCE
                or not tables.can_tell_gone(app, now, starting=restore)
            )
            for each in sets.values()
        ):
            return EnsuredSchedules("superseded"), []
    for new in schedules:
        check_schedule(new)
        row = tables.schedules.get(new.name)
        if row is not None and not row.from_code:
            raise InvalidInput(
                f"schedule {new.name} exists already, and was not created by code: delete it, or "
                "give the schedule of the code another name"
            )
    for each in sets.values():
        each.is_current = False
    tables.schedule_sets[app, digest] = ScheduleSet(now, now, True)
    return _write(tables, now, app, schedules), told(app)


def _write(
    tables: Tables, now: int, app: str, schedules: Sequence[NewSchedule]
) -> EnsuredSchedules:
    added: list[str] = []
    changed: list[str] = []
    resumed: list[str] = []
    for new in sorted(schedules, key=lambda each: each.name):
        row = tables.schedules.get(new.name)
        if row is None:
            row = tables.schedules[new.name] = begin(new, now, tables.next_revision())
            added.append(new.name)
        elif row.code_digest != new.digest:
            redefine(row, new, now, tables.next_revision())
            changed.append(new.name)
        row.from_code, row.code_digest = True, new.digest
        if row.paused_by == "code":
            resume(row, now)
            resumed.append(new.name)
    return EnsuredSchedules(
        "written",
        tuple(added),
        tuple(changed),
        _pause_others(tables, now, app, {new.name for new in schedules}),
        tuple(resumed),
    )


def _pause_others(tables: Tables, now: int, app: str, names: set[str]) -> tuple[str, ...]:
    paused: list[str] = []
    for name, row in sorted(tables.schedules.items()):
        if name in names or not name.startswith(f"{app}/") or not row.from_code:
            continue
        if row.paused_at is None:
            row.paused_at, row.paused_by = now, "code"
            row.next_tick_at, row.look_at = None, NEVER
            row.note = "the code of its app no longer has it"
            paused.append(name)
    return tuple(paused)
