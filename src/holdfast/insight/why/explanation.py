"""The answer to "why", and what several reasons share."""

from __future__ import annotations

from uuid import UUID

from holdfast.insight.actions import Action
from holdfast.insight.wording import ago
from holdfast.types import Pause, RunRecord, Value


class Explanation(Value, frozen=True):
    """What a run does or waits for, details, and the actions that would move it.

    `because` is a sentence about the run ("it waits for signal 'packed'"). `traceback` is that of
    the error that the run failed with or is held up by, empty if there is none.
    """

    run_id: UUID
    state: str
    because: str
    details: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    traceback: str = ""


class Reason(Value, frozen=True):
    """Why one call has not ended, and the action that would move it."""

    text: str
    action: Action | None = None


def explanation(
    run: RunRecord,
    because: str,
    details: tuple[str, ...] = (),
    actions: tuple[Action, ...] = (),
    traceback: str = "",
) -> Explanation:
    """Return the explanation of a run in its present state."""
    return Explanation(run.run_id, run.state, because, details, actions, traceback)


def pause_text(pause: Pause, now: int) -> str:
    """Return that a queue or a workflow was paused, when and why: `queue 'mail' was paused …`."""
    why = f" ({pause.reason})" if pause.reason else ""
    return f"{pause.scope} {pause.name!r} was paused {ago(pause.paused_at, now)}{why}"
