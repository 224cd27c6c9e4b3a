"""Change the queue, the start and the deadline of runs that have not ended."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final, TypedDict

from holdfast.client.control import change_open, noted
from holdfast.client.naming import RunRef
from holdfast.client.session import Session
from holdfast.definitions.options import check_options
from holdfast.errors import ConfigurationError, RescheduleRefused
from holdfast.types import Delivery, Reschedule
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import checked_micros
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import true_or_false


class RescheduleOptions(TypedDict, total=False):
    """What to change of runs; what is left out, or None, stays as it is."""

    queue: str | None
    """The queue of their turns from now on."""
    delay: Duration | None
    """How long after now a run becomes due that has not begun."""
    start_at: datetime | None
    """The moment at which a run becomes due that has not begun, with a time zone."""
    deadline: datetime | None
    """The moment at which a run is ended, with a time zone."""
    timeout: Duration | None
    """How long after now, or after the start that it waits for, a run is ended."""
    no_deadline: bool
    """True takes the deadline away."""


_REASONS: Final[dict[Delivery, str]] = {
    "begun": "it has begun, so only its queue and its deadline can change",
    "ruled": "it waits for a rule of its workflow (singleton, debounce or throttle), so only its "
    "queue can change until it begins",
    "flow": "it is a run of a flow, whose steps have their own queues and begin with it, so only "
    "its deadline can change",
}


def read_change(options: RescheduleOptions) -> Reschedule:
    """Check a change, and return it for the store.

    Raises ConfigurationError if it changes nothing or one thing twice, InvalidName, and TypeError
    for an unknown option.
    """
    check_options(options, RescheduleOptions.__annotations__, "reschedule")
    queue, delay, start_at = options.get("queue"), options.get("delay"), options.get("start_at")
    deadline, timeout = options.get("deadline"), options.get("timeout")
    no_deadline = true_or_false(options.get("no_deadline", False), "no_deadline")
    if delay is not None and start_at is not None:
        raise ConfigurationError("give either delay or start_at, not both")
    if (deadline is not None) + (timeout is not None) + no_deadline > 1:
        raise ConfigurationError("give one of deadline, timeout and no_deadline")
    change = Reschedule(
        queue=None if queue is None else check_queue_name(queue),
        start_at=None if start_at is None else checked_micros(start_at),
        delay_seconds=None if delay is None else seconds(delay),
        deadline_at=None if deadline is None else checked_micros(deadline),
        timeout_seconds=None if timeout is None else seconds(timeout),
        no_deadline=no_deadline,
    )
    if change == Reschedule():
        raise ConfigurationError(
            "say what to change: queue, delay, start_at, deadline, timeout or no_deadline"
        )
    return change


async def reschedule_run(
    session: Session, run: RunRef, options: RescheduleOptions, reason: str | None, by: str | None
) -> bool:
    """Change a run. Return False if it was so before.

    Raises RunNotFound, RunEnded and RescheduleRefused.
    """
    call = partial(session.store.reschedule_runs, change=read_change(options))
    outcome, run_id = await change_open(session, run, noted(call, reason, by))
    if outcome in _REASONS:
        raise RescheduleRefused(run_id, _REASONS[outcome])
    return outcome == "delivered"
