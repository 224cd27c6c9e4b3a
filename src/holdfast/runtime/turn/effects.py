"""What a turn wants done after an input: one frozen value, which its driver matches once."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import CHILD_CANCEL, COMMANDS, SIGNAL_SENT, read_target
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call
from holdfast.types import Event, Finish, Notice, Suspend, TurnCommit, Value


class State(enum.Enum):
    """Where a turn stands.

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
    """What a turn wants done, in this order, and where it stands then.

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


def make_part(
    info: RunInfo,
    lease_no: int,
    expected: int,
    events: Sequence[Event],
    then: Suspend | Finish | None,
    commands: Commands | None,
    after_others: bool,
) -> TurnCommit:
    """Make a commit of events that stand from an expected index on, or after what is there."""
    parent = info.parent_run_id
    status = then.status if isinstance(then, Finish) else None
    if parent is None and commands is None and status != "continued":
        return TurnCommit(info.run_id, lease_no, expected, events, then, after_others=after_others)
    touches = dict.fromkeys(_targets(events))
    if parent is not None and status not in (None, "continued"):
        touches[parent] = None
    return TurnCommit(
        info.run_id,
        lease_no,
        expected,
        events,
        then,
        has_commands=any(event.type in COMMANDS for event in events),
        touches=tuple(touches),
        has_children=status is not None and commands is not None and commands.has_children,
        after_others=after_others,
    )


def _targets(events: Iterable[Event]) -> Iterable[UUID]:
    """Name the runs that commands are about."""
    for event in events:
        if event.type in (CHILD_CANCEL, SIGNAL_SENT):
            target = read_target(event.details or "{}")
            run_id = target.run_id or target.child_run_id
            if run_id is not None:
                yield run_id


def may_follow_others(then: Suspend | Finish | None) -> bool:
    """Return True if nothing is lost if the run has not seen what others wrote just before."""
    return then is None or (isinstance(then, Finish) and then.status != "continued")
