"""`holdfast rules`: what singletons, debounces and throttles hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.types import HeldKey


@command("rules", examples=("holdfast rules checkout", "holdfast rules shop/checkout --json"))
@click.argument("workflow")
@click.option("--limit", type=click.IntRange(1), default=100, help="At most N keys of each rule.")
@click.pass_context
def rules(context: click.Context, workflow: str, limit: int) -> None:
    """Show what the rules for starts of WORKFLOW hold now: for which key, and until when.

    Of a singleton the active run and how many wait for it, of a debounce the run that is to begin,
    of a throttle the moment before which no further run begins.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json

    settings = settings_of(context)
    held = with_link(settings, lambda link: link.client.workflows.held_keys(workflow, limit))
    if settings.json:
        write_json(held)
    elif not held:
        click.echo(f"no rule of {workflow} holds a start now", err=True)
    else:
        click.echo("\n".join(_lines(held)))


def _lines(held: list[HeldKey]) -> Iterator[str]:
    from holdfast.insight.wording import moment

    for each in held:
        key = f"key {each.key!r}" if each.key else "all starts"
        if each.rule == "singleton":
            yield f"singleton  {key}: run {each.run_id} is active, {each.waiting} wait for its end"
        elif each.rule == "debounce":
            yield f"debounce   {key}: run {each.run_id} begins at {moment(each.until or 0)}"
        else:
            yield f"throttle   {key}: no further run begins before {moment(each.until or 0)}"
