"""`holdfast runs wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.inputs import duration
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import RunRecord


@command("wait", examples=("holdfast runs wait checkout/order-7 --timeout 10m",))
@click.argument("reference", metavar="RUN")
@click.option(
    "--timeout", metavar="TIME", type=duration, help="Stop waiting after so long (exit code 5)."
)
@click.pass_context
def wait(context: click.Context, reference: str, timeout: float | None) -> None:
    """Wait for a run's end, and write its output.

    Of a run that continued as new, the newest is waited for. The exit code says how it ended.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.finding import find_run
    from holdfast.cli.outcome import report_end
    from holdfast.cli.progress import watch_run

    settings = settings_of(context)

    async def work(link: Link) -> RunRecord:
        run = await find_run(link.client, reference)
        return await watch_run(link, run, timeout, quiet=True)

    context.exit(report_end(settings, with_link(settings, work)))
