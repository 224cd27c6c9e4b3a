"""Lengths of time, moments and counts as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.values.durations import length as length
from holdfast.values.durations import length_of as length_of

if TYPE_CHECKING:
    from holdfast.types import QueueMetrics, RunRecord

_SECOND = 1_000_000


def queued_and_worked(run: RunRecord, now: int) -> tuple[str, str]:
    """Say how long a run waited in its queue, also until now, and how long it took from then on.

    The second is empty until the run has ended, the first until it could begin.
    """
    begun_at, ended_at = run.begun_at, run.completed_at
    if begun_at is None:
        waited = (ended_at or now) - run.could_begin_at
        return length(waited) if waited > 0 else "", ""
    worked = "" if ended_at is None else length(max(ended_at - begun_at, 0))
    return length(begun_at - run.could_begin_at), worked


def failed_times(run: RunRecord) -> str:
    """Return how often an open run has failed so far: `failed 2 of 5 times`, else nothing."""
    last = run.last_failure
    if last is None or run.status not in ("running", "continued"):
        return ""
    if last.attempts is None:
        return f"failed {several(last.number, 'time')}"
    return f"failed {last.number} of {several(last.attempts, 'time')}"


def behind(seconds: float | None) -> str:
    """Return how far a replica is behind, in words: `41 s behind`, `less than 1 s behind`."""
    if seconds is None:
        return "it is not known how far behind"
    return f"{length(int(seconds) * _SECOND) if seconds >= 1 else 'less than 1 s'} behind"


def moment(at: int, now: int | None = None) -> str:
    """Return a moment in local time, with its offset from UTC: `2026-11-23 09:21:29+01:00`.

    With `now` it is without the date if it is less than 12 h away.
    """
    local = datetime.fromtimestamp(at / _SECOND, UTC).astimezone()
    if now is not None and abs(at - now) < 43_200 * _SECOND:
        return local.timetz().isoformat("seconds")
    return local.isoformat(" ", "seconds")


def ago(at: int, now: int) -> str:
    """Return how far a moment is from now: `3.2 s ago`, `in 5 m`."""
    if at > now:
        return f"in {length(at - now)}"
    return f"{length(now - at)} ago"


def shorten(text: str, width: int) -> str:
    """Return a text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def number(count: int, *, more: bool = False) -> str:
    """Return a number: `12`, or `10,000+` if there may be more because counting was ended."""
    return f"{count:,}+" if more else f"{count:,}"


def several(count: int, noun: str, *, more: bool = False) -> str:
    """Return a number with its noun: `1 run`, `2 runs`, `1,000+ runs`."""
    return f"{number(count, more=more)} {noun}" + ("" if count == 1 else "s")


def count_text(counted: QueueMetrics, name: str) -> str:
    """Return a count by its name, as `number` does."""
    return number(getattr(counted, name), more=name in counted.more)


def count_of(counted: QueueMetrics, name: str, noun: str) -> str:
    """Return a count by its name with its noun, as `several` does."""
    return several(getattr(counted, name), noun, more=name in counted.more)
