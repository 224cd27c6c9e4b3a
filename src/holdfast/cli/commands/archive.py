"""`holdfast archive`: the runs that were archived before they were deleted."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import Group, command
from holdfast.cli.inputs import duration
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from uuid import UUID

    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.retention import ArchivedRun, ArchiveEntry

_HERE = "holdfast.cli.commands.archive"


@click.group(
    "archive",
    cls=Group,
    sources={
        "list": f"{_HERE}:list_archived",
        "show": f"{_HERE}:show",
        "export": f"{_HERE}:export",
        "restore": f"{_HERE}:restore",
        "forget": f"{_HERE}:forget",
    },
    examples=(
        "HOLDFAST_ARCHIVE=s3://bucket/runs holdfast sweep   archive and delete what is due",
        "holdfast archive list --workflow checkout",
        "holdfast archive restore checkout/order-7          to fork it, say",
    ),
)
def archive() -> None:
    """Read and restore runs that were archived before they were deleted.

    The archive is that of HOLDFAST_ARCHIVE (s3://bucket/prefix or file:///folder), or else the one
    that the workers of the database use. `holdfast runs show` and `runs log` find archived runs,
    too.
    """


@command(
    "list",
    examples=("holdfast archive list", "holdfast archive list --workflow checkout --json"),
)
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow or flow.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="List at most so many runs.",
)
@click.pass_context
def list_archived(context: click.Context, workflow: str | None, limit: int) -> None:
    """List archived runs, those that were archived last first."""
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import console, plain, write_json

    async def work(link: Link) -> tuple[list[ArchiveEntry], str | None]:
        found: list[ArchiveEntry] = []
        async with aclosing(link.client.archive.list(workflow)) as entries:
            async for entry in entries:
                found.append(entry)
                if len(found) == limit:
                    break
        return found, await link.client.archive.url()

    settings = settings_of(context)
    found, url = with_link(settings, work)
    if settings.json:
        write_json([plain(each) for each in found])
    elif found:
        console().print(_table(found))
        if len(found) == limit:
            click.echo("there may be more: --limit", err=True)
    else:
        click.echo(f"no such run in {url}", err=True)


@command("show", examples=("holdfast archive show 0198c0de-7000-7000-8000-000000000000",))
@click.argument("reference", metavar="RUN")
@click.pass_context
def show(context: click.Context, reference: str) -> None:
    """Show an archived run, also if the database has one with the same id.

    RUN is an id, or workflow/key.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import console, write_json
    from holdfast.cli.render.runs import event_line, event_object, run_object, summary
    from holdfast.types import LoggedEvent

    async def work(link: Link) -> tuple[ArchivedRun, int]:
        return await _get(link, reference), await link.store.now()

    settings = settings_of(context)
    archived, now = with_link(settings, work)
    record = archived.record
    entries = [LoggedEvent(record.run_id, idx, each) for idx, each in enumerate(archived.events)]
    if settings.json:
        write_json({**run_object(record), "log": [event_object(entry) for entry in entries]})
        return
    console().print(summary(record, {}, now))
    click.echo()
    for entry in entries:
        click.echo(event_line(entry, record.created_at))


@command(
    "export",
    examples=(
        "holdfast archive export checkout/order-7 > order-7.jsonl",
        "holdfast archive export --workflow checkout --output checkout.jsonl",
    ),
)
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--workflow", metavar="NAME", help="All archived runs of this workflow or flow.")
@click.option("--output", metavar="FILE", type=Path, help="A new file; the default is stdout.")
@click.pass_context
def export(
    context: click.Context, references: tuple[str, ...], workflow: str | None, output: Path | None
) -> None:
    """Write archived runs as lines of JSON, as they stand in the archive.

    A line has a run with its log; a long log continues in the next lines.
    """
    from holdfast.cli.connecting import with_link

    if bool(references) == (workflow is not None):
        raise click.UsageError("give either runs or --workflow")
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: name a new file")

    async def work(link: Link) -> int:
        written = 0
        with click.open_file("-" if output is None else str(output), "w") as file:
            if workflow is None:
                for reference in references:
                    file.writelines(f"{line}\n" for line in (await _get(link, reference)).lines)
                    written += 1
                return written
            done: set[UUID] = set()
            async with aclosing(link.client.archive.list(workflow)) as entries:
                async for entry in entries:
                    if entry.run_id not in done:
                        done.add(entry.run_id)
                        lines = (await link.client.archive.get(entry.run_id)).lines
                        file.writelines(f"{line}\n" for line in lines)
            return len(done)

    count = with_link(settings_of(context), work)
    click.echo(f"exported {count:,} run{'' if count == 1 else 's'}", err=True)


@command(
    "restore",
    examples=("holdfast archive restore checkout/order-7 --retention 7d",),
)
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--retention",
    metavar="TIME",
    type=duration,
    help="How long they are kept now; the default is what they were started with.",
)
@click.pass_context
def restore(context: click.Context, references: tuple[str, ...], retention: float | None) -> None:
    """Make archived runs ended runs of the database again, to fork or to retry them.

    Their parents and children are not restored. The archive keeps them as well.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json

    async def work(link: Link) -> list[UUID]:
        return [
            await link.client.archive.restore(_reference(reference), retention)
            for reference in references
        ]

    settings = settings_of(context)
    restored = with_link(settings, work)
    if settings.json:
        write_json([{"run_id": run_id, "outcome": "restored"} for run_id in restored])
    else:
        for run_id in restored:
            click.echo(f"restored {run_id}")


@command("forget", examples=("holdfast archive forget",))
@click.pass_context
def forget(context: click.Context) -> None:
    """Let runs of this database be deleted without being archived from now on.

    The archive keeps what it has. First take HOLDFAST_ARCHIVE and App(archive=…) away from the
    workers: one that has it archives again.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.render.console import write_json

    async def work(link: Link) -> str | None:
        return await link.client.archive.forget()

    settings = settings_of(context)
    url = with_link(settings, work)
    if settings.json:
        write_json({"forgotten": url})
    else:
        click.echo(
            "runs were not archived" if url is None else f"runs are not archived in {url} now"
        )


async def _get(link: Link, reference: str) -> ArchivedRun:
    return await link.client.archive.get(_reference(reference))


def _reference(text: str) -> UUID | tuple[str, str]:
    """Return the run that an argument names: an id, workflow/key or app/workflow/key."""
    from uuid import UUID

    if "/" not in text:
        try:
            return UUID(text)
        except ValueError:
            raise click.UsageError(
                f"{text!r} is not a run of the archive: give a whole id, or workflow/key"
            ) from None
    parts = text.split("/", 2)
    if len(parts) == 3:
        return f"{parts[0]}/{parts[1]}", parts[2]
    return parts[0], parts[1]


def _table(entries: list[ArchiveEntry]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.render.runs import STYLES
    from holdfast.insight.wording import moment, shorten
    from holdfast.values.moments import to_micros

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("run", "workflow", "key", "state", "created", "ended"):
        table.add_column(column, overflow="ellipsis", no_wrap=column in ("run", "created", "ended"))
    for each in entries:
        table.add_row(
            str(each.run_id),
            each.name,
            shorten(each.key or "", 24),
            Text(each.status.replace("_", " "), STYLES.get(each.status, "")),
            moment(to_micros(each.created_at)),
            moment(to_micros(each.completed_at)),
        )
    return table
