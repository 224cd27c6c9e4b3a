"""Schedules: when they come due, what their ticks did, and what can be done with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, cast, get_args
from urllib.parse import quote
from uuid import uuid4

from holdfast.client.schedule import ScheduleInfo
from holdfast.errors import ConfigurationError
from holdfast.insight.wording import length_of
from holdfast.server.pages.run import parse_uuid
from holdfast.server.pages.view import Page, Redirect, View
from holdfast.server.problems import Problem
from holdfast.types import Overlap, SendTarget

_PAGE: Final = 100
_DONE: Final = {
    "pause": "The schedule is paused.",
    "resume": "The schedule fires again, from its next tick on.",
    "trigger": "The schedule was fired.",
    "backfill": "A worker fires these ticks soon.",
    "cancel": "The backfills were ended.",
}
_OVERLAPS: Final = get_args(Overlap)


async def schedules_page(view: View) -> Page:
    """Return a page of schedules, by name."""
    found = await view.reader.schedules.list(after=view.param("after") or None, limit=_PAGE)
    return Page(
        template="schedules.html",
        title="Schedules",
        place="/schedules",
        parts={"all": "parts/schedules.html"},
        values={
            "schedules": [(each, when_text(each)) for each in found],
            "after": found[-1].name if len(found) == _PAGE else None,
        },
    )


async def schedule_page(view: View) -> Page:
    """Return one schedule with its ticks, before and after now."""
    schedule = await view.reader.schedules.get(view.param("name"))
    now = datetime.now(UTC)
    try:
        following = schedule.next_ticks(5, after=now)
    except ConfigurationError:  # its error says so
        following = []
    return Page(
        template="schedule.html",
        title=schedule.name,
        place="/schedules",
        parts={"ticks": "parts/schedule_ticks.html"},
        values={
            "schedule": schedule,
            "when": when_text(schedule),
            "sends": isinstance(schedule.target, SendTarget),
            "following": following,
            "ticks": await view.reader.schedules.ticks(schedule.name, limit=50),
            "done": _DONE.get(view.param("done"), ""),
            "moment": now.isoformat(),
            "new_id": uuid4(),
            "overlaps": _OVERLAPS,
            "first": (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M"),
            "last": now.strftime("%Y-%m-%dT%H:%M"),
        },
    )


def when_text(schedule: ScheduleInfo) -> str:
    """Return when a schedule comes due: its expression and time zone, or its interval."""
    when = schedule.when
    if when.cron is not None:
        return f"{when.cron} ({when.timezone})"
    return f"every {length_of(when.every_seconds or 0)}"


async def change(view: View) -> Redirect:
    """Do what a form of a schedule asks for."""
    name, do = view.form.get("name", ""), str(view.request.path_params["do"])
    schedules = view.client.schedules
    overlap = cast("Overlap | None", view.form.get("overlap") or None)
    if overlap is not None and overlap not in _OVERLAPS:
        raise Problem(400, "bad-form", f"overlap is one of {', '.join(_OVERLAPS)}")
    match do:
        case "pause":
            await schedules.pause(name, view.text("reason"))
        case "resume":
            await schedules.resume(name)
        case "trigger":
            at = _moment(view.form.get("at", ""))
            await schedules.trigger(name, at=at, overlap=overlap)
        case "backfill":
            first, last = _moment(view.form.get("first", "")), _moment(view.form.get("last", ""))
            asked = parse_uuid(view.form.get("id", ""))
            await schedules.backfill(name, first, last, overlap=overlap, backfill_id=asked)
        case "cancel":
            await schedules.cancel_backfills(name)
        case _:
            raise Problem(404, "not-found", f"nothing is called {do!r} here")
    return Redirect(f"/schedule?name={quote(name, safe='')}&done={do}")


def _moment(text: str) -> datetime:
    """Return a moment of a form, which is in UTC. Raises Problem 422."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem(422, "invalid-input", f"{text!r} is not a moment") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
