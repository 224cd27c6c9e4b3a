"""What a schedule does that has to be looked at: which ticks fire, and which are skipped."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.schedules.ticks import last_ticks, ticks_between
from holdfast.schedules.ticks import next_after as compute_next
from holdfast.types import (
    BackfillFiring,
    DueBackfill,
    DueSchedule,
    Firing,
    SkipCause,
    SkippedTicks,
    When,
)
from holdfast.values.composing import compose

PROMPT: Final = 10_000_000  # µs; a tick that is at most so late counts as in time
_ONE_BY_ONE: Final = 100  # skipped ticks in a row that have a bucket each
_COUNTED: Final = 1_000  # more skipped ticks in a row are not counted
_BACKFILLED: Final = 50  # ticks that one call fires


# Many schedules have the same expression, and come due at the same moment.
next_after: Final = lru_cache(maxsize=4096)(compute_next)


def plan_firing(due: DueSchedule, now: int) -> Firing:
    """Return what a schedule does: now, or at its next tick if that comes first.

    The firing is to be carried out at its `position`, or as soon as possible after it. What is
    wrong with an expression or a time zone becomes the firing's `error`.
    """
    try:
        return _plan(due, now)
    except (HoldfastError, ValueError, OverflowError) as error:
        return compose(Firing, due, next_tick_at=None, error=f"{error}"[:1000])


def plan_backfill(due: DueBackfill) -> BackfillFiring:
    """Return the next ticks of a backfill; what is wrong with its schedule ends it."""
    try:
        ticks = ticks_between(due.when, due.position, due.until, _BACKFILLED)
        error = None
    except (HoldfastError, ValueError, OverflowError) as problem:
        ticks, error = [], f"{problem}"[:1000]
    return BackfillFiring(
        backfill_id=due.backfill_id,
        position=due.position,
        new_position=ticks[-1] if len(ticks) == _BACKFILLED else due.until,
        ticks=ticks,
        error=error,
    )


def _plan(due: DueSchedule, now: int) -> Firing:
    first = due.expected
    if first is None:
        first = next_after(due.when, due.position)
        if first is None or first > now:
            return compose(Firing, due, next_tick_at=first)
    at = max(now, first)
    following = next_after(due.when, first)
    if at - first <= PROMPT and (following is None or following > at):
        return compose(Firing, due, position=at, next_tick_at=following, ticks=[first])
    return _plan_late(due, at)


def _plan_late(due: DueSchedule, at: int) -> Firing:
    """Plan ticks of which some are late: those within the window, and of them the last ones."""
    prompt_after = max(due.position, at - PROMPT - 1)
    window_after = max(due.position, min(at - round(due.catch_up_seconds * 1e6) - 1, prompt_after))
    made_up = last_ticks(due.when, window_after, prompt_after, due.max_missed)
    many_until = made_up[0] - 1 if made_up else prompt_after
    ticks = [*made_up, *ticks_between(due.when, prompt_after, at, _COUNTED)]
    skipped = [
        *_skip(due.when, due.position, window_after, "too_late"),
        *_skip(due.when, window_after, many_until, "too_many"),
    ]
    return compose(
        Firing,
        due,
        position=at,
        next_tick_at=next_after(due.when, at),
        ticks=ticks or (),
        skipped=skipped or (),
    )


def _skip(when: When, after: int, until: int, cause: SkipCause) -> list[SkippedTicks]:
    """Record skipped ticks: one by one, or as a range if there are many."""
    ticks = ticks_between(when, after, until, _COUNTED + 1)
    if len(ticks) <= _ONE_BY_ONE:
        return [SkippedTicks(tick, tick, 1, cause) for tick in ticks]
    if len(ticks) <= _COUNTED:
        return [SkippedTicks(ticks[0], ticks[-1], len(ticks), cause)]
    return [SkippedTicks(ticks[0], last_ticks(when, after, until, 1)[-1], None, cause)]
