"""`holdfast sweep`: delete ended runs whose retention is over, or show which these are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, answer, call, current_settings
from holdfast.cli.framework import command, option
from holdfast.cli.render.console import console, folding, numbers, plain, table, write_json
from holdfast.cli.render.hints import with_database
from holdfast.insight.wording import ago, several

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.types import SweepShare

_PREVIEWED = 100_000


@command(
    "sweep",
    examples=(
        "holdfast sweep --dry-run",
        "holdfast sweep",
        "holdfast sweep --dry-run --json | jq '.[] | {name, due}'",
    ),
)
@option("--dry-run", "Show what would be deleted, and change nothing.")
def sweep(dry_run: bool) -> None:
    """Delete ended runs whose retention is over, now.

    Workers do this in the background, every 5 minutes. A run is kept for the `retention` that it
    was started with, 30 days after its end by default. It is kept longer while a child of it has
    not ended, and while the run that continues or retries it is there.

    With HOLDFAST_ARCHIVE (s3://bucket/prefix or file:///folder), or if the workers of this database
    use an archive, runs are written there before they are deleted.
    """
    if dry_run:
        answer(_preview)
    else:
        call(_sweep)


async def _preview(link: Link) -> Answer:
    shares, now = await link.store.preview_sweep(limit=_PREVIEWED), await link.store.now()
    objects = [{**plain(each), "kept": each.kept} for each in shares]
    return Answer(objects, lambda: _write_preview(shares, now, str(link.database)))


async def _sweep(link: Link) -> None:
    """Sweep, and say what was deleted, also if it fails in the end.

    Without --json, say every 10 batches how many runs were deleted until then.
    """
    from holdfast.cli.connecting import refuse_several

    refuse_several(link.database, "sweep", "the workers of each shard sweep, every 5 minutes")
    as_json = current_settings().json
    deleted = kept = batches = 0
    try:
        async for swept in link.client.retention.batches():
            deleted, kept, batches = deleted + swept.deleted, kept + swept.kept, batches + 1
            if swept.has_more and batches % 10 == 0 and not as_json:
                click.echo(f"deleted {several(deleted, 'run')} …", err=True)
    finally:  # some runs cannot be archived, and others are deleted
        rest = f"; {several(kept, 'run')} kept for runs that belong to them" if kept else ""
        if batches and as_json:
            write_json({"deleted": deleted, "kept": kept})
        elif batches:
            click.echo(f"deleted {several(deleted, 'run')}{rest}")


def _write_preview(shares: list[SweepShare], now: int, database: str) -> None:
    due, kept = sum(each.due for each in shares), sum(each.kept for each in shares)
    if not due:
        click.echo(f"nothing to delete in {database}")
        return
    console().print(_table(shares, now))
    text = f"{several(due - kept, 'run')} would be deleted"
    if due >= _PREVIEWED:
        text = f"of the first {due:,} runs that are due, {text}"
    click.echo(with_database(f"{text}; `holdfast sweep` deletes them now"))


def _table(shares: list[SweepShare], now: int) -> Table:
    counts = numbers("to delete", "kept", "oldest due")
    shown = table(folding("workflow"), counts, folding("kept because"))
    for each in shares:
        shown.add_row(
            each.name,
            f"{each.due - each.kept:,}",
            f"{each.kept:,}",
            "" if each.oldest is None else ago(each.oldest, now),
            _reasons(each),
        )
    return shown


def _reasons(share: SweepShare) -> str:
    """Return why runs are kept, as `2 have open children, 1 was continued`."""
    reasons = (
        (share.kept_for_child, "with a child that has not ended"),
        (share.kept_for_successor, "whose next run is there"),
        (share.kept_for_retry, "whose retry is there"),
    )
    return ", ".join(f"{count:,} {reason}" for count, reason in reasons if count)
