"""`holdfast runs list`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from holdfast.cli.framework import command
from holdfast.cli.inputs import past_moment, read_json
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client.filters import RunFilters
    from holdfast.types import RunPage


@command(
    "list",
    examples=(
        "holdfast runs list --state failed --since 24h",
        """holdfast runs list --workflow checkout --input '{"customer": 12}'""",
        "holdfast runs list --limit 1000 --json | jq -r '.runs[].run_id'",
    ),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    help="queued, running, waiting, stuck, completed, failed, cancelled, timed_out or terminated.",
)
@click.option("--workflow", "names", multiple=True, help="Runs of this workflow.")
@click.option("--queue", "queues", multiple=True, help="Runs of this queue.")
@click.option("--tag", "tags", multiple=True, help="Runs with this tag; repeated: with all.")
@click.option("--key", help="The run that was started with this key.")
@click.option(
    "--since", metavar="MOMENT", type=past_moment, help="Created then or later: 2030-01-31, 2h."
)
@click.option("--until", metavar="MOMENT", type=past_moment, help="Created before.")
@click.option("--input", "contains", help="Runs whose input contains this JSON.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Go on behind a page, with the cursor that it gave.")
@click.pass_context
def list_runs(
    context: click.Context,
    /,
    names: tuple[str, ...],
    contains: str | None,
    since: datetime | None,
    until: datetime | None,
    **filters: Any,
) -> None:
    """List runs, newest first.

    --state, --workflow and --queue may be repeated: any of them.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, write_json
    from holdfast.cli.render_runs import run_object, runs_table

    filters |= {"names": names, "since": since, "until": until}
    if contains is not None:
        filters["input_contains"] = _decode(contains)

    async def work(link: Link) -> tuple[RunPage, int]:
        page = await link.client.list(**cast("RunFilters", filters))
        return page, await link.store.now()

    settings = settings_of(context)
    page, now = with_link(settings, work)
    if settings.json:
        write_json({"runs": [run_object(run) for run in page.runs], "cursor": page.cursor})
        return
    if not page.runs:
        click.echo("no runs", err=True)
        return
    console().print(runs_table(page.runs, now))
    if page.cursor is not None:
        click.echo(f"more with --cursor {page.cursor}", err=True)


def _decode(text: str) -> object:
    from holdfast.cli.console import decoded

    return decoded(read_json(text, "input to look for"))
