"""What a turn wants done after an input: one frozen value, which its driver matches once."""

from __future__ import annotations

import enum

from holdfast.errors import DeterminismError, PayloadError
from holdfast.runtime.code.steps import Call
from holdfast.types import Finish, Notice, TurnCommit, Value


class State(enum.Enum):
    """The state of a turn.

    SUSPENDING and ENDING: the commit that suspends or ends the run has not been answered. LOST:
    the run has ended, or its lease is another worker's. STUCK: the code cannot continue. In
    NEEDS_LOG the turn can continue only with the whole log, to be given to `rebuild`.
    """

    RUNNING = "running"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    ENDING = "ending"
    ENDED = "ended"
    STUCK = "stuck"
    LOST = "lost"
    NEEDS_LOG = "needs_log"


class Effects(Value, frozen=True, gc=False):
    """What a turn wants done, in this order, and its state then.

    `problems` are warnings to log. `notices` are to be sent: what they tell of is durable. Then
    the steps with the keys in `cancel` are cancelled, the `commit` is sent, to be answered with
    `committed`, `conflict` or `invalid`, and the steps in `start` are started. At `next_due`,
    `wake` is to be called. A SUSPENDED run is due again at `visible_at` (None: only an event
    wakes it), `end` is how an ENDED run has ended, and `error` is why a run is STUCK.
    """

    state: State
    next_due: int | None = None
    commit: TurnCommit | None = None
    start: tuple[Call, ...] = ()
    cancel: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    problems: tuple[str, ...] = ()
    visible_at: int | None = None
    end: Finish | None = None
    error: DeterminismError | PayloadError | None = None
