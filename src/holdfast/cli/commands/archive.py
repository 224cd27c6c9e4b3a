"""`holdfast archive`: the runs that were archived before they were deleted."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, call
from holdfast.cli.framework import FilePath, Group, command, option, sources
from holdfast.cli.inputs import duration
from holdfast.cli.render.console import console, plain, table, whole
from holdfast.insight.wording import moment, shorten
from holdfast.values.moments import to_micros

if TYPE_CHECKING:
    from uuid import UUID

    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.retention import ArchivedRun, ArchiveEntry


@click.group(
    "archive",
    cls=Group,
    sources=sources(__name__, "list:list_archived", "show", "export", "restore", "forget"),
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
    "list", examples=("holdfast archive list", "holdfast archive list --workflow checkout --json")
)
@option("--workflow NAME", "Only runs of this workflow or flow.")
@option("--limit N", "List at most N runs.", type=click.IntRange(1), default=50)
async def list_archived(link: Link, workflow: str | None, limit: int) -> Answer:
    """List archived runs, those that were archived last first."""
    found: list[ArchiveEntry] = []
    async with aclosing(link.client.archive.list(workflow)) as entries:
        async for entry in entries:
            found.append(entry)
            if len(found) == limit:
                break

    def write() -> None:
        console().print(_table(found))
        if len(found) == limit:
            click.echo("there may be more: --limit", err=True)

    none = f"no such run in {await link.client.archive.url()}"
    return Answer([plain(each) for each in found], write, none=none)


@command("show", examples=("holdfast archive show 0198c0de-7000-7000-8000-000000000000",))
@click.argument("reference", metavar="RUN")
async def show(link: Link, reference: str) -> Answer:
    """Show an archived run, also if the database has one with the same id.

    RUN is an id, or workflow/key.
    """
    from holdfast.cli.render.runs import event_line, event_object, run_object, summary
    from holdfast.types import LoggedEvent

    archived, now = await _get(link, reference), await link.store.now()
    record = archived.record
    entries = [LoggedEvent(record.run_id, idx, each) for idx, each in enumerate(archived.events)]

    def write() -> None:
        console().print(summary(record, {}, now))
        click.echo()
        for entry in entries:
            click.echo(event_line(entry, record.created_at))

    log = [event_object(entry) for entry in entries]
    return Answer({**run_object(record), "log": log}, write)


@command(
    "export",
    examples=(
        "holdfast archive export checkout/order-7 > order-7.jsonl",
        "holdfast archive export --workflow checkout --output checkout.jsonl",
    ),
)
@click.argument("references", metavar="[RUN]...", nargs=-1)
@option("--workflow NAME", "All archived runs of this workflow or flow.")
@option("--output FILE", "A new file; the default is stdout.", type=FilePath(path_type=Path))
def export(references: tuple[str, ...], workflow: str | None, output: Path | None) -> None:
    """Write archived runs as lines of JSON, as they stand in the archive.

    A line has a run with its log; a long log continues in the next lines.
    """
    if bool(references) == (workflow is not None):
        raise click.UsageError("give either runs or --workflow")
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: name a new file")

    async def work(link: Link) -> int:
        written = 0
        name = "-" if output is None else str(output)
        with click.open_file(name, "w", lazy=True) as file:
            if workflow is None:
                for reference in references:
                    lines = (await _get(link, reference)).lines
                    file.writelines(f"{line}\n" for line in lines)  # opens it
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

    count = call(work)
    click.echo(f"exported {count:,} run{'' if count == 1 else 's'}", err=True)


@command("restore", examples=("holdfast archive restore checkout/order-7 --retention 7d",))
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@option(
    "--retention TIME",
    "How long they are kept now; the default is what they were started with.",
    type=duration,
)
async def restore(link: Link, references: tuple[str, ...], retention: float | None) -> Answer:
    """Make archived runs ended runs of the database again, to fork or to retry them.

    Their parents and children are not restored. The archive keeps them as well.
    """
    restored = [
        await link.client.archive.restore(_reference(reference), retention)
        for reference in references
    ]
    objects = [{"run_id": run_id, "outcome": "restored"} for run_id in restored]
    return Answer(objects, "\n".join(f"restored {run_id}" for run_id in restored))


@command("forget", examples=("holdfast archive forget",))
async def forget(link: Link) -> Answer:
    """Let runs of this database be deleted without being archived from now on.

    The archive keeps what it has. First take HOLDFAST_ARCHIVE and App(archive=…) away from the
    workers: one that has it archives again.
    """
    url = await link.client.archive.forget()
    text = "runs were not archived" if url is None else f"runs are not archived in {url} now"
    return Answer({"forgotten": url}, text)


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
    from rich.text import Text

    from holdfast.cli.render.runs import STYLES

    shown = table(whole("run"), ["workflow", "key", "state"], whole("created", "ended"))
    for each in entries:
        shown.add_row(
            str(each.run_id),
            each.name,
            shorten(each.key or "", 24),
            Text(each.status.replace("_", " "), STYLES.get(each.status, "")),
            moment(to_micros(each.created_at)),
            moment(to_micros(each.completed_at)),
        )
    return shown
