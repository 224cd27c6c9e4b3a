"""What becomes of the entries of a commit that was not written.

The code has seen them. Those that are also true in another order are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.codec import describe
from holdfast.errors import PayloadError
from holdfast.events import (
    COMMANDS,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    STEPS,
    UPDATE_COMPLETED,
    can_wait,
    with_role,
    without_mark,
    write_step_failed,
)
from holdfast.runtime.code.begun import call_begun
from holdfast.runtime.code.history import DECISIONS
from holdfast.types import Event

# Facts: the code is not fed them, so they may also come after other events.
_FACTS: Final = with_role("command", "withdrawal", "fact")
# The last entry of a commit that ends or suspends the run.
_LAST: Final = with_role("suspension", "end")
_UNFED: Final = _FACTS | _LAST
_call: Final = re.compile(r'"name":"([^"]*)","args":(\d+),')

Way: TypeAlias = Literal["next", "after", "again"]


class Kept(NamedTuple):
    """The refused entries that are kept, and how the code continues with what others wrote.

    `next`: the code has seen only durable entries, so it is fed what others wrote, and the kept
    facts come before it. `after`: what others wrote can wait, so it is fed after what the code has
    seen. `again`: the code is replayed with what others wrote, and fed the kept ends after it.
    """

    way: Way
    entries: list[Event]


def keep(refused: Sequence[Event], tail: Sequence[Event], *, is_broken: bool) -> Kept:
    """Return what is kept of the entries that were refused because of `tail`.

    With `is_broken` the code cannot continue: only a replay shows if it can with the tail.
    """
    known = {event.key for event in tail if event.type == STEP_COMPLETED}
    if known and any(_has_failed(event, known) for event in refused):
        # A transaction was committed after all: its failure never was, nor what followed.
        return Kept("again", [each for each in ends(refused) if not _has_failed(each, known)])
    if is_broken:
        return Kept("again", ends(refused))
    if all(event.type in _UNFED for event in refused):
        decided = {event.key for event in tail if event.type in DECISIONS}
        facts = (event for event in refused if event.type in _FACTS)
        return Kept("next", [event for event in facts if event.key not in decided])
    if all(map(can_wait, tail)):
        return Kept("after", without_last(refused))
    return Kept("again", ends(refused))


def ends(refused: Iterable[Event]) -> list[Event]:
    """Return the ends of attempts: they are facts, whatever the code has seen before them."""
    return [without_mark(event) for event in refused if event.type in STEPS]


def without_last(refused: Iterable[Event]) -> list[Event]:
    """Return the entries without the one that ends or suspends the run."""
    return [event for event in refused if event.type not in _LAST]


def without_commands(fresh: Sequence[Event], *, keeps_answers: bool) -> list[Event]:
    """Return the entries of stuck code without its commands, and without what was to begin.

    The handler of an update gives its commands before its answer, which is dropped with them unless
    the code `keeps_answers`.
    """
    dropped = COMMANDS
    if not keeps_answers and any(event.type in COMMANDS for event in fresh):
        dropped = COMMANDS | {UPDATE_COMPLETED}
    return [event for event in fresh if event.type not in dropped and call_begun(event) is None]


def unstorable(completed: Event, message: str) -> Event:
    """Return the failure of a step whose result the database refuses to store."""
    # Its result is not parsed: it may be what cannot be read.
    found = _call.search((completed.details or "")[:1000])
    assert found is not None, "a step's end begins with its name and the arguments' fingerprint"
    error = describe(PayloadError(f"the result of {completed.key} cannot be stored: {message}"))
    text = write_step_failed(found[1], int(found[2]), 1, error, completed.at, False)
    return Event(STEP_FAILED, completed.key, text, completed.at)


def _has_failed(event: Event, keys: Collection[str | None]) -> bool:
    """Return True for the failed attempt of a call with one of these keys."""
    return event.type in (STEP_FAILED, STEP_RETRY) and event.key in keys
