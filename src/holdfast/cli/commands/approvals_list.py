"""`holdfast approvals list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.insight.approvals import OpenApproval


@command(
    "list",
    examples=(
        "holdfast approvals list",
        "holdfast approvals list refund/order-7",
        "holdfast approvals list --json | jq -r '.[].title'",
    ),
)
@click.argument("reference", metavar="[RUN]", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.pass_context
def list_approvals(context: click.Context, reference: str | None, limit: int) -> None:
    """List the approvals that wait for a decision, with the command that decides each.

    The oldest comes first.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json
    from holdfast.cli.finding import find_run

    settings = settings_of(context)

    async def work(link: Link) -> tuple[list[OpenApproval], int]:
        run = None if reference is None else (await find_run(link.client, reference)).run_id
        return await link.client.approvals(run, limit), await link.store.now()

    found, now = with_link(settings, work)
    if settings.json:
        write_json(found)
    elif not found:
        click.echo("no approval waits for a decision", err=True)
    else:
        _write(found, now)


def _write(found: list[OpenApproval], now: int) -> None:
    from holdfast.cli.console import console
    from holdfast.cli.render_approvals import write_approval

    output = console()
    for each in found:
        write_approval(output, each, now)
