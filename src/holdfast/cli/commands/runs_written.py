"""`holdfast runs logs` and `stream`: what the code of a run has logged, and what it streams."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.answers import Answer, call, current_settings
from holdfast.cli.finding import find_run
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import after_option
from holdfast.cli.render.console import write_json

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client.run_logs import LogOptions
    from holdfast.client.streams import StreamOptions
    from holdfast.types import LogLevel, LogLine, Restarted, StreamItem

_NOTHING = (
    "no such lines: workers keep lines with --run-logs, as `holdfast dev` does; --call takes a "
    "name of a step or an activity, or the key of a call as `holdfast runs log` shows it"
)


@command(
    "logs",
    examples=(
        "holdfast runs logs checkout/order-7 --follow",
        "holdfast runs logs 3f9a --level warning",
        "holdfast runs logs 3f9a --call charge --json | jq -r .message",
    ),
)
@click.argument("reference", metavar="RUN")
@option("--follow", "Write what comes, until the run has ended.")
@option(
    "--level",
    "Write lines of this level and higher.",
    type=click.Choice(("debug", "info", "warning", "error", "critical")),
    default="debug",
)
@option(
    "--call KEY",
    "Write the lines of one step or activity: its name, or the key of one call in the run's "
    "log. Empty: those of the workflow's own code.",
    name="key",
)
@after_option
def logs(reference: str, follow: bool, level: LogLevel, key: str | None, after: int) -> None:
    """Write the lines that the code of a run has logged, of all attempts.

    They are kept by workers with --run-logs, as that of `holdfast dev` is. With --json each line is
    an object. For the log of the run itself there is `holdfast runs log`.
    """

    async def work(link: Link) -> None:
        run_id = (await find_run(link.client, reference)).run_id
        options: LogOptions = {"after": after, "level": level}
        if key is not None:
            options["call"] = key
        if follow:
            async with aclosing(link.client.runs.follow_log_lines(run_id, **options)) as lines:
                async for line in lines:
                    _write_line(line)
            return
        found = False
        while True:
            page = await link.client.runs.read_log_lines(run_id, **options)
            found = found or bool(page.lines)
            if page.dropped:
                click.echo(f"{page.dropped:,} earlier lines are not kept", err=True)
            for line in page.lines:
                _write_line(line)
            if page.ended or page.next == options.get("after"):
                break
            options["after"] = page.next
        if not (found or after):
            click.echo(_NOTHING, err=True)

    call(work)


def _write_line(line: LogLine) -> None:
    from holdfast.cli.render.runs import log_line

    if current_settings().json:
        write_json(line)
    else:
        click.echo(log_line(line))


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
@option("--follow", "Write what comes, until the stream has ended.")
@after_option
@option("--all-attempts", "Write what failed attempts wrote, too.")
def stream(reference: str, name: str | None, follow: bool, after: int, all_attempts: bool) -> None:
    """Write a stream of a run; without NAME, list its streams.

    Texts are written as they are, one after another; other values as JSON, each on a line. With
    --json each value is an object with its offset. If an attempt is followed by another, --follow
    writes an object without a value: forget what you have of its `key` after the offset `after`.
    """

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
                    _write_item(each)
            return
        while True:
            page = await handle.read_stream(name, **options)
            for item in page.items:
                _write_item(item)
            if page.ended or not page.items:
                return
            options["after"] = page.next

    call(work)


def _write_item(each: StreamItem[Any] | Restarted) -> None:
    from holdfast.types import Restarted

    if current_settings().json:
        write_json(each)
    elif isinstance(each, Restarted):
        first = "its worker was lost, or its run is tried again"
        what = first if each.attempt == 1 else f"attempt {each.attempt}"
        click.echo(f"\n{each.key} begins again: {what}", err=True)
    elif isinstance(each.value, str):
        click.echo(each.value, nl=False)
    else:
        write_json(each.value)
