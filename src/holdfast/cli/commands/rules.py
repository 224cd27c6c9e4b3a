"""`holdfast rules`: what singletons, debounces and throttles hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import command, option
from holdfast.insight.wording import moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.cli.connecting import Link
    from holdfast.types import HeldKey


@command("rules", examples=("holdfast rules checkout", "holdfast rules shop/checkout --json"))
@click.argument("workflow")
@option(
    "--limit N",
    "At most N keys of each rule.",
    type=click.IntRange(1),
    default=100,
    show_default=False,
)
async def rules(link: Link, workflow: str, limit: int) -> Answer:
    """Show what the rules for starts of WORKFLOW hold now: for which key, and until when.

    Of a singleton the active run and how many wait for it, of a debounce the run that is to begin,
    of a throttle the moment before which no further run begins.
    """
    held = await link.client.workflows.held_keys(workflow, limit)
    none = f"no rule of {workflow} holds a start now"
    return Answer(held, lambda: click.echo("\n".join(_lines(held))), none=none)


def _lines(held: list[HeldKey]) -> Iterator[str]:
    for each in held:
        key = f"key {each.key!r}" if each.key else "all starts"
        if each.rule == "singleton":
            yield f"singleton  {key}: run {each.run_id} is active, {each.waiting} wait for its end"
        elif each.rule == "debounce":
            yield f"debounce   {key}: run {each.run_id} begins at {moment(each.until or 0)}"
        else:
            yield f"throttle   {key}: no further run begins before {moment(each.until or 0)}"
