"""What a driver must do after an input of a turn: one frozen value."""

from __future__ import annotations

import enum

from holdfast.errors import DeterminismError, PayloadError
from holdfast.runtime.code.steps import Call
from holdfast.types import Finish, Notice, TurnCommit, Value


class State(enum.Enum):
    """The state of a turn.

    SUSPENDING, ENDING: the commit that suspends or ends the run was not answered yet. LOST: the run
    has ended, or another worker has its lease. STUCK: the code cannot continue. NEEDS_LOG: the turn
    needs the whole log to continue; give it to `rebuild`.
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
    """What the driver must do after an input, and the state of the turn.

    The driver, in this order:

    1. logs the warnings in `problems`;
    2. sends the `notices`: they are about entries that are durable;
    3. cancels the steps with the keys in `cancel`;
    4. sends the `commit`, and later calls `committed`, `conflict` or `invalid` with the answer;
    5. starts the steps in `start`;
    6. calls `wake` at `next_due`.

    A SUSPENDED run is due again at `visible_at` (None: only an event wakes it). `end` says how an
    ENDED run has ended, and `error` why a run is STUCK. Moments are µs since 1970 UTC.
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
