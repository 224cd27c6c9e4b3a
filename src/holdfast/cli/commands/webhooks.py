"""`holdfast runs webhooks`: the URLs of a run that wait for a POST."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import command

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


@command("webhooks", examples=("holdfast runs webhooks checkout/order-7",))
@click.argument("reference", metavar="RUN")
async def webhooks(link: Link, reference: str) -> Answer:
    """List the URLs of a run that wait for a POST. A program that has one can post to it."""
    from holdfast.cli.finding import find_run

    run = await find_run(link.client, reference)
    found = await link.client.webhooks.list(run.run_id)

    def write() -> None:
        for each in found:
            click.echo(f"{each.key}  {each.url}")

    return Answer(found, write, none=f"run {run.run_id} waits for no POST")
