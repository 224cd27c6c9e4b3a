"""`holdfast queue why`: what holds up the messages of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.queue import with_client
from holdfast.cli.framework import command

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.insight.messages import MessageExplanation, QueueExplanation


@command("why", examples=("holdfast queue why parcels", "holdfast queue why parcels 17"))
@click.argument("name")
@click.argument("message", required=False, type=click.IntRange(min=0))
@click.pass_context
def why(context: click.Context, name: str, message: int | None) -> None:
    """Say what the messages of a queue wait for, or the one with the id MESSAGE.

    A pause, a moment, the end of a receive, an older message of the group, or a receive: and what
    would move it. Ids are in `holdfast queue show`.
    """
    from holdfast.cli.render.console import write_json
    from holdfast.cli.render.hints import with_database
    from holdfast.insight.messages import explain_message, explain_queue

    async def work(link: Link) -> QueueExplanation | MessageExplanation:
        if message is None:
            return await explain_queue(link.store, name)
        return await explain_message(link.store, name, message)

    found, as_json = with_client(context, work, name)
    if as_json:
        write_json(found)
        return
    click.echo(f"{found.state.replace('_', ' ')}: {found.because}")
    for detail in found.details:
        click.echo(f"  {with_database(detail)}")
