"""Timers of a run, and retries of its steps: which are due, and when the next one is."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.events import TIMER_FIRED, TIMER_SCHEDULED, write_timer
from holdfast.runtime.code.steps import Executions
from holdfast.runtime.code.timers import Timers
from holdfast.runtime.log.virtual_log import VirtualLog
from holdfast.runtime.loop.tasks import WorkflowTimer
from holdfast.runtime.turn.replayer import Replayer
from holdfast.types import Event


def fire_timers(replayer: Replayer, clock: Callable[[], int]) -> None:
    """Fire the timers that are due, one after the other; none if the run is paused."""
    instance = replayer.instance
    timers = instance.timers
    while timers.live and replayer.receptive:
        now = clock()
        timer = timers.due(now)  # also while paused: it sets the deadlines of new timers
        if timer is None or instance.paused_events is not None:
            return
        text = write_timer(timer.key, timer.fire_at or now, timer.delay)
        replayer.append(Event(TIMER_FIRED, timer.key, text, now))


def record_timer(log: VirtualLog, timer: WorkflowTimer) -> None:
    """Add the deadline of a timer to the log."""
    timer.recorded = True
    text = write_timer(timer.key, timer.fire_at or 0, timer.delay)
    log.record(TIMER_SCHEDULED, timer.key, text)


def next_due(timers: Timers, executions: Executions, certain: int, now: int) -> int | None:
    """Return when a timer or a retry that may start is next due; not before `now`."""
    deadline = timers.next_at() if timers.live else None
    retry = executions.next_retry(certain) if executions.pausing else None
    moments = [at for at in (deadline, retry) if at is not None]
    return max(now, min(moments)) if moments else None


def first_due(timers: Timers, executions: Executions) -> int | None:
    """Return when a suspended run is due: at its first timer, or its next retry."""
    deadline = timers.first_deadline() if timers.live else None
    retry = executions.next_retry() if executions.pausing else None
    return min((at for at in (deadline, retry) if at is not None), default=None)
