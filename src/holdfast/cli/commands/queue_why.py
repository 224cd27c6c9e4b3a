"""`holdfast queue why`: what holds up the messages of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.commands.queue import names_similar
from holdfast.cli.framework import command

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.insight.messages import MessageExplanation, QueueExplanation


@command("why", examples=("holdfast queue why parcels", "holdfast queue why parcels 17"))
@click.argument("name")
@click.argument("message", required=False, type=click.IntRange(min=0))
@names_similar
async def why(link: Link, name: str, message: int | None) -> Answer:
    """Say what the messages of a queue wait for, or the one with the id MESSAGE.

    A pause, a moment, the end of a receive, an older message of the group, or a receive: and what
    would move it. Ids are in `holdfast queue show`.
    """
    from holdfast.cli.render.hints import with_database
    from holdfast.insight.messages import explain_message, explain_queue

    found: QueueExplanation | MessageExplanation
    if message is None:
        found = await explain_queue(link.store, name)
    else:
        found = await explain_message(link.store, name, message)
    lines = [f"{found.state.replace('_', ' ')}: {found.because}"]
    lines += [f"  {with_database(detail)}" for detail in found.details]
    return Answer(found, "\n".join(lines))
