"""Schedules: what they start or send, and whether they fire when they should."""

from __future__ import annotations

from typing import Final

from holdfast.insight.actions import Action
from holdfast.insight.findings import Finding
from holdfast.insight.serving import live_workers
from holdfast.insight.wording import length, several
from holdfast.store.port import Store, iterate_schedules
from holdfast.types import ScheduleRecord, SendTarget, Target

_LATE: Final = 10_000_000  # microseconds after which a schedule counts as late
_AHEAD: Final = 60_000_000  # microseconds; a schedule has no reason to be ahead of the clock


def target_text(target: Target) -> str:
    """Return what a schedule starts, or where it sends: `shop/report`, `topic clock.hour`."""
    if isinstance(target, SendTarget):
        return f"{'topic' if target.kind == 'topic' else 'message queue'} {target.name}"
    return target.name


async def check_schedules(store: Store) -> Finding:
    """Look for schedules that are late, or whose ticks cannot be computed."""
    now = await store.now()
    wrong: list[ScheduleRecord] = []
    late: dict[str, int] = {}
    ahead: dict[str, int] = {}  # have fired what is not due yet: the clock was set back
    async for each in iterate_schedules(store, doubtful=True):
        changed_at = max(each.updated_at, each.position)  # the position moves at a resume
        since = each.next_tick_at if each.is_computed else changed_at
        if each.error is not None:
            wrong.append(each)
        elif each.position - now > _AHEAD:
            ahead[each.name] = each.position - now
        elif since is not None and now - since > _LATE:
            late[each.name] = now - since
    if wrong:
        return Finding(
            "schedules",
            "warn",
            f"the ticks of {several(len(wrong), 'schedule')} cannot be computed, as of "
            f"{wrong[0].name}: {wrong[0].error}",
            f"correct it: holdfast schedules update {wrong[0].name}",
        )
    if ahead:
        most = max(ahead, key=ahead.__getitem__)
        return Finding(
            "schedules",
            "warn",
            f"{several(len(ahead), 'schedule')} silent, because the database's clock was set back: "
            f"{most} has dealt with its ticks up to a moment that is {length(ahead[most])} ahead",
            "a worker lets it begin from now within a minute; without one: holdfast schedules "
            f"pause {most}; holdfast schedules resume {most}",
        )
    if late:
        most = max(late, key=late.__getitem__)
        has_worker = bool(live_workers(await store.list_workers(), now))
        return Finding(
            "schedules",
            "warn",
            f"{several(len(late), 'schedule')} late, {most} by {length(late[most])}",
            "see the log of the workers: they fire schedules" if has_worker else "",
            None if has_worker else Action("start_worker"),
        )
    return Finding("schedules", "ok", "no schedule is late")
