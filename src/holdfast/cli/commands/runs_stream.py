"""`holdfast runs stream`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.answers import Answer, call, current_settings
from holdfast.cli.framework import command
from holdfast.cli.inputs import after_option

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client.streams import StreamOptions
    from holdfast.types import Restarted, StreamItem


@command(
    "stream",
    examples=(
        "holdfast runs stream checkout/order-7",
        "holdfast runs stream 3f9a tokens",
        "holdfast runs stream 3f9a tokens --follow --json --after 120",
    ),
)
@click.argument("reference", metavar="RUN")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--follow", is_flag=True, help="Write what comes, until the stream has ended.")
@after_option
@click.option("--all-attempts", is_flag=True, help="Write what failed attempts wrote, too.")
def stream(reference: str, name: str | None, follow: bool, after: int, all_attempts: bool) -> None:
    """Write a stream of a run; without NAME, list its streams.

    Texts are written as they are, one after another; other values as JSON, each on a line. With
    --json each value is an object with its offset. If an attempt is followed by another, --follow
    writes an object without a value: forget what you have of its `key` after the offset `after`.
    """
    from holdfast.cli.finding import find_run

    async def work(link: Link) -> None:
        handle = link.client.handle((await find_run(link.client, reference)).run_id)
        if name is None:
            found = await handle.streams()
            lines = [f"{each.name}  {each.values:,} values, {each.bytes:,} bytes" for each in found]
            Answer({"streams": found}, "\n".join(lines) or "the run has no streams").write()
            return
        options: StreamOptions = {"after": after, "restarts": follow}
        if all_attempts:
            options["attempts"] = "all"
        if follow:
            async with aclosing(handle.stream_items(name, **options)) as items:
                async for each in items:
                    _write(each)
            return
        while True:
            page = await handle.read_stream(name, **options)
            for item in page.items:
                _write(item)
            if page.ended or not page.items:
                return
            options["after"] = page.next

    call(work)


def _write(each: StreamItem[Any] | Restarted) -> None:
    from holdfast.cli.render.console import write_json
    from holdfast.types import Restarted

    if current_settings().json:
        write_json(each)
    elif isinstance(each, Restarted):
        what = "its worker was lost" if each.attempt == 1 else f"attempt {each.attempt}"
        click.echo(f"\n{each.key} begins again: {what}", err=True)
    elif isinstance(each.value, str):
        click.echo(each.value, nl=False)
    else:
        write_json(each.value)
