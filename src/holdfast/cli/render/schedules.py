"""Schedules and what their ticks did, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.cli.render.console import numbers, plain, table, whole
from holdfast.codec import raw
from holdfast.insight.schedules import target_text
from holdfast.insight.wording import ago, length_of, several
from holdfast.types import Bucket, RunTarget, ScheduleRecord, SendTarget, SkipCause, Target, When
from holdfast.values.attributes import attribute_filters
from holdfast.values.moments import maybe_datetime, to_datetime

if TYPE_CHECKING:
    from rich.table import Table

_CAUSES: Final[dict[SkipCause, str]] = {
    "overlap": "a run had not ended",
    "replaced": "a later tick took its place",
    "too_late": "missed, and older than the catch-up window",
    "too_many": "missed, and later ticks were enough",
    "buffer_full": "too many ticks waited",
    "cancelled": "its backfill was cancelled",
}


def describe_when(when: When) -> str:
    """Return when a schedule fires in a few words: `0 9 * * 1-5 Europe/Berlin`, `every 15 m`."""
    if when.cron is not None:
        return f"{when.cron} {when.timezone}"
    return f"every {length_of(when.every_seconds or 0)}"


def schedule_object(record: ScheduleRecord) -> dict[str, object]:
    """Return a schedule as JSON has it: moments in RFC 3339, the input as a value."""
    when, target = plain(record.when), plain(record.target)
    for name in ("anchor", "starts_at", "ends_at"):
        when[name] = maybe_datetime(getattr(record.when, name))
    target["input"] = raw(record.target.input)
    position = to_datetime(record.position)
    return plain(record) | {"when": when, "target": target, "position": position}


def bucket_object(bucket: Bucket) -> dict[str, object]:
    """Return what a tick did as JSON has it."""
    return plain(bucket) | {"until": maybe_datetime(bucket.until)}


def schedules_table(found: Sequence[ScheduleRecord], now: int) -> Table:
    """Return schedules as a table."""
    shown = table(whole("schedule"), ["fires", "target"], numbers("last", "next"))
    for each in found:
        last = "" if each.last_tick_at is None else ago(each.last_tick_at, now)
        shown.add_row(
            each.name,
            describe_when(each.when),
            target_text(each.target),
            last,
            next_text(each, now),
        )
    return shown


def next_text(record: ScheduleRecord, now: int) -> str:
    """Return when a schedule fires next, or why it does not."""
    if record.paused_at is not None:
        return "paused"
    if record.error is not None:
        return "error"
    if not record.is_computed:
        return "not computed yet"
    return "never" if record.next_tick_at is None else ago(record.next_tick_at, now)


def schedule_lines(record: ScheduleRecord, now: int) -> Iterator[str]:
    """Give the lines that describe one schedule."""
    target, policy = record.target, record.policy
    yield f"{record.name}  {describe_when(record.when)}"
    yield from _target_lines(target)
    yield (
        f"  overlap {policy.overlap}, catch_up {_seconds(policy.catch_up_seconds)}, "
        f"max_missed {policy.max_missed}, jitter {_seconds(policy.jitter_seconds)}"
    )
    for name, at in (("start", record.when.starts_at), ("end", record.when.ends_at)):
        if at is not None:
            yield f"  {name} {local_text(to_datetime(at), record.when.timezone)}"
    source = "code" if record.from_code else "a client"
    yield f"  from {source}, changed {ago(record.updated_at, now)}"
    if record.paused_at is not None:
        why = "the code no longer has it" if record.paused_by == "code" else record.note or ""
        yield f"  paused {ago(record.paused_at, now)}" + (f": {why}" if why else "")
    elif record.note:
        yield f"  note: {record.note}"
    if record.error is not None:
        yield f"  its ticks cannot be computed: {record.error}"
    if record.buffered:
        until = "for the end of a run"
        if record.paused_at is not None:
            until += ", or of the pause if they were not asked for"
        yield f"  {several(record.buffered, 'tick')} wait {until}"
    if record.backfills:
        yield f"  {several(record.backfills, 'backfill')} under way"


def _target_lines(target: Target) -> Iterator[str]:
    if isinstance(target, SendTarget):
        does = "publishes to" if target.kind == "topic" else "sends to"
        yield f"  {does} {target_text(target)}: {target.input}"
        values: list[tuple[str, object]] = [("group", target.group)]
    else:
        version = "" if target.version is None else f"@{target.version}"
        yield f"  starts {target.kind} {target.name}{version} with input {target.input}"
        values = [("queue", target.queue), ("tags", ", ".join(target.tags) or None)]
    values.insert(1, ("priority", target.priority))
    if given := [f"{name} {value}" for name, value in values if value is not None]:
        yield f"  {', '.join(given)}"
    if isinstance(target, RunTarget) and target.attributes:
        yield f"  attributes {', '.join(attribute_filters(target.attributes))}"


def bucket_line(bucket: Bucket, timezone: str) -> str:
    """Return what a tick did as one line."""
    at = local_text(to_datetime(bucket.tick_at), timezone)
    origin = "" if bucket.origin == "tick" else f" ({bucket.origin})"
    return f"{at}  {_outcome(bucket)}{origin}"


def local_text(moment: datetime, timezone: str) -> str:
    """Return a moment as clocks of a time zone show it; in UTC if the zone is not known here."""
    try:
        shown = moment.astimezone(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        shown = moment
    return shown.isoformat(sep=" ", timespec="milliseconds" if moment.microsecond else "seconds")


def _outcome(bucket: Bucket) -> str:
    match bucket.outcome:
        case "started":
            stopped = bucket.stopped_run_id
            return f"started {bucket.run_id}" + (f", stopped {stopped}" if stopped else "")
        case "sent" if bucket.message_id is not None:
            return f"sent message {bucket.message_id}"
        case "sent":
            return f"published, and reached {several(bucket.reached or 0, 'target')}"
        case "buffered":
            return "waits for the end of a run"
        case "failed":
            return f"failed: {bucket.error}"
        case "skipped":
            why = "" if bucket.cause is None else f": {_CAUSES[bucket.cause]}"
            if bucket.until is None:
                return f"skipped{why}"
            count = "ticks" if bucket.ticks is None else several(bucket.ticks, "tick")
            return f"skipped{why} ({count} until {to_datetime(bucket.until).isoformat()})"


def _seconds(seconds: float) -> str:
    return length_of(seconds) if seconds else "0"
