"""`holdfast runs reschedule`."""

from __future__ import annotations

from typing import Any, cast

import click

from holdfast.cli.commands.bulk import change_runs, run_options
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import duration, filled, future_moment


@command(
    "reschedule",
    examples=(
        "holdfast runs reschedule checkout/order-7 --to-queue slow",
        "holdfast runs reschedule 3f9a --delay 2h --timeout 30m",
        "holdfast runs reschedule --workflow report --state queued --start-at 2030-01-31T22:00Z",
        "holdfast runs reschedule checkout/order-7 --no-deadline",
    ),
)
@run_options
@option(
    "--to-queue NAME",
    "Take the turns of the runs from this queue from now on.",
    name="queue",
    callback=filled,
)
@option("--delay TIME", "Let runs that have not begun begin after TIME.", type=duration)
@option(
    "--start-at MOMENT",
    "Let runs that have not begun begin at MOMENT: 2030-01-31T12:00.",
    type=future_moment,
)
@option("--deadline MOMENT", "End the runs at this moment.", type=future_moment)
@option(
    "--timeout TIME",
    "End the runs after TIME, counted from now, or from the start that they wait for.",
    type=duration,
)
@option("--no-deadline", "Take the deadlines of the runs away.")
@option("--reason TEXT", "Why; recorded in the log.")
def reschedule(reason: str | None, **chosen: Any) -> None:
    """Change the queue, the start or the deadline of runs that have not ended.

    Name the runs, or give filters. A run that a worker holds leaves its queue when it next
    suspends. The start of a run can change until a worker has begun it, and its deadline moves
    with it. Exit code 1 if a named run was so before, cannot be changed so, or has ended.
    """
    from holdfast.client.rescheduling import RescheduleOptions, read_change
    from holdfast.errors import ConfigurationError

    change = {name: chosen.pop(name) for name in RescheduleOptions.__annotations__}
    try:
        read_change(cast("RescheduleOptions", change))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    words = ("rescheduled", "rescheduled", "it was so before")
    change_runs("reschedule", *words, chosen, reason=reason, **change)
