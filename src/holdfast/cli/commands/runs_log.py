"""`holdfast runs log`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


@command(
    "log",
    examples=(
        "holdfast runs log checkout/order-7 --follow",
        "holdfast runs log 3f9a --json | jq 'select(.type == \"StepFailed\")'",
    ),
)
@click.argument("reference", metavar="RUN")
@click.option("--follow", is_flag=True, help="Go on until the run has ended.")
@click.pass_context
def log(context: click.Context, reference: str, follow: bool) -> None:
    """Write a run's log, one entry a line.

    With --json each line is an object.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json
    from holdfast.cli.finding import find_run
    from holdfast.cli.render_runs import event_line, event_object
    from holdfast.types import LoggedEvent, RunRecord

    settings = settings_of(context)

    def write(entry: LoggedEvent, run: RunRecord) -> None:
        if settings.json:
            write_json(event_object(entry))
        else:
            click.echo(event_line(entry, run.created_at))

    async def work(link: Link) -> None:
        run = await find_run(link.client, reference)
        if not follow:
            for entry in await link.client.log(run.run_id):
                write(entry, run)
            return
        async with aclosing(link.client.follow_log(run.run_id)) as entries:
            async for entry in entries:
                write(entry, run)

    with_link(settings, work)
