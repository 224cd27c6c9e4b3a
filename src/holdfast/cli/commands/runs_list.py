"""`holdfast runs list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.filtering import filter_options, read_filters
from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client.runs import RunPage


@command(
    "list",
    examples=(
        "holdfast runs list --state failed --since 24h",
        """holdfast runs list --workflow checkout --input '{"customer": 12}'""",
        "holdfast runs list --limit 1000 --json | jq -r '.runs[].run_id'",
    ),
)
@filter_options
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Continue after a page, with the cursor that it gave.")
@click.option("--payloads", is_flag=True, help="With --json: inputs and outputs too.")
@click.pass_context
def list_runs(
    context: click.Context, /, limit: int, cursor: str | None, payloads: bool, **options: object
) -> None:
    """List runs, newest first.

    --state, --workflow and --queue may be repeated: any of them. A tag, a queue or an input is
    looked for among 20,000 runs at a time; the command says how far it came.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, write_json
    from holdfast.cli.finding import find_parent
    from holdfast.cli.render_runs import run_object, runs_table
    from holdfast.insight.wording import moment
    from holdfast.moments import to_micros

    filters = read_filters(options)
    filters["limit"], filters["cursor"], filters["payloads"] = limit, cursor, payloads

    async def work(link: Link) -> tuple[RunPage, int, str]:
        page = await link.client.list(**await find_parent(link.client, filters))
        return page, await link.store.now(), str(link.database)

    settings = settings_of(context)
    page, now, database = with_link(settings, work)
    runs = [each.record for each in page.runs]
    if settings.json:
        found = {"runs": [run_object(run) for run in runs], "cursor": page.cursor}
        write_json({**found, "searched_until": page.searched_until})
        return
    if runs:
        output = console()
        output.print(runs_table(runs, now, output.width))
    else:
        click.echo(f"no runs in {database}", err=True)
    if page.searched_until is not None:
        click.echo(f"looked at the runs since {moment(to_micros(page.searched_until))}", err=True)
    if page.cursor is not None:
        click.echo(f"more with --cursor {page.cursor}", err=True)
