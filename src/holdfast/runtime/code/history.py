"""How far a run's code has come in its log, and what of the log it has not called yet."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from holdfast.errors import DeterminismError
from holdfast.events import Timer
from holdfast.runtime.code.failures import Failures
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.user_code import place_of
from holdfast.types import Event, Value

STEP: Final = "step"
TIMER: Final = "timer"

_CHANGED_CODE: Final = (
    "the code has changed under this run; roll it back, or take the new path in new runs only "
    "(ctx.patched)"
)
_DIFFERS: Final = (
    "the code has changed under this run, or does not do the same on each replay: look for what "
    "else it depends on than its input and what was recorded"
)
_CHANGED_FORK: Final = (
    "what was changed in this fork leads the code off the log that it copied, or the code has "
    "changed; fork from an earlier index, or roll the code back"
)


class Recorded(Value, frozen=True, gc=False):
    """A call that the log has under a key; an end alone does not say its `name` and `args`.

    `args` is the fingerprint of its arguments, `run_id` is a child's, and `timer` is a timer's.
    """

    family: str
    name: str | None = None
    args: int | None = None
    run_id: UUID | None = None
    timer: Timer | None = None

    def __str__(self) -> str:
        if self.timer is not None:
            return "a timer"
        return f"a call of {self.family}" + (f" {self.name}" if self.name else "")


class History:
    """What one instance has seen of its log, and what it has not called of it.

    The code has been fed `position` of the `length` entries. It had been fed
    `called_at` when it last made a durable call. Some worker's code has seen the first `replayed`
    entries before, and up to `live_from` the code repeats itself. A `forked` log was copied from
    another run's.

    `recorded` are the timers and commands that the code has not called yet, by key, and `ends`
    are the ends of calls that it has not made.
    """

    __slots__ = (
        "_failures",
        "_loop",
        "called_at",
        "ends",
        "forked",
        "length",
        "live_from",
        "position",
        "recorded",
        "replayed",
    )

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self.position = self.length = self.called_at = 0
        self.replayed = self.live_from = 0
        self.forked = False
        self._failures: Failures | None = None
        self.recorded: dict[str, Recorded] = {}
        self.ends: dict[str, Event] = {}

    @property
    def failures(self) -> Failures:
        """The failures of the run's calls, made at their first use: most runs have none."""
        if self._failures is None:
            self._failures = Failures()
        return self._failures

    @property
    def replaying(self) -> bool:
        """Whether the code repeats what it has done before."""
        return self.position <= self.live_from

    def unused(self) -> list[str]:
        """Return the keys that the log has and the code has not called."""
        return sorted({*self.ends, *self.recorded})

    # Differences

    def check(self, key: str, recorded: str, found: str) -> None:
        """Raise DeterminismError if the code differs from what the log has for a key."""
        if recorded != found:
            raise self.differ(f"{key!r} is {found} now, and {recorded} in the log", key)

    def differ(self, how: str, key: str | None = None) -> DeterminismError:
        """Record that the code does not fit the log, and return the error that says so.

        With the key of a call it says too which line of the user's code makes that call.
        """
        loop = self._loop
        cause = _CHANGED_FORK if self.forked else _CHANGED_CODE
        if loop.watch is not None:  # in tests, and in development
            cause = _DIFFERS
        place = None if key is None else place_of(loop, loop.tasks, key)
        at = "" if place is None else f" (at {place})"
        return self.stop_at(DeterminismError(f"{how}{at}: {cause}"))

    def stop_at(self, error: DeterminismError) -> DeterminismError:
        """Record that the code cannot continue from its log; return the first error of them."""
        self._loop.broken = self._loop.broken or error
        return self._loop.broken
