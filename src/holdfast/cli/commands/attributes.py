"""`holdfast runs set-attributes` and `holdfast runs set-tags`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, answer
from holdfast.cli.finding import find_run
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import attribute_values

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


@command(
    "set-attributes",
    examples=(
        "holdfast runs set-attributes checkout/order-7 customer=acme seats=12",
        "holdfast runs set-attributes 3f9a --remove trial",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("attributes", metavar="[NAME=VALUE]...", nargs=-1)
@option("--remove NAME...", "Remove this attribute; may be repeated.")
def set_attributes(reference: str, attributes: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Set attributes of a run, open or ended, by which lists find it.

    VALUE is a number, true or false, and else a text; a number in double quotes is a text.
    """
    from holdfast.values.attributes import attribute_filters

    changes = {**attribute_values(attributes), **dict.fromkeys(remove)}
    if not changes:
        raise click.UsageError("give NAME=VALUE, or --remove NAME")

    async def work(link: Link) -> Answer:
        run_id = (await find_run(link.client, reference)).run_id
        found = await link.client.runs.set_attributes(run_id, changes)
        text = ", ".join(attribute_filters(found)) or "no attributes"
        return Answer({"run_id": run_id, "attributes": found}, f"run {run_id}: {text}")

    answer(work)


@command(
    "set-tags",
    examples=(
        "holdfast runs set-tags checkout/order-7 --add reviewed --remove new",
        "holdfast runs set-tags 3f9a mail urgent",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@option("--add TAG...", "Add this tag; may be repeated.")
@option("--remove TAG...", "Remove this tag; may be repeated.")
def set_tags(
    reference: str, tags: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Change the tags of a run, open or ended.

    With TAGs it has these and no others; without, --add and --remove change those that it has.
    """
    if not (tags or add or remove):
        raise click.UsageError("give tags, --add or --remove")

    async def work(link: Link) -> Answer:
        run_id = (await find_run(link.client, reference)).run_id
        found = await link.client.runs.set_tags(run_id, tags or None, add=add, remove=remove)
        text = f"run {run_id}: {', '.join(found) or 'no tags'}"
        return Answer({"run_id": run_id, "tags": found}, text)

    answer(work)
