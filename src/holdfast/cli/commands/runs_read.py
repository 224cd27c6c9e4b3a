"""`holdfast runs list`, `log`, `wait` and `webhooks`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, answer, call, current_settings
from holdfast.cli.finding import find_parent, find_run
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import duration, filter_options, read_filters
from holdfast.cli.render.console import console, write_json
from holdfast.insight.wording import moment
from holdfast.values.moments import to_micros

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import RunRecord


@command(
    "list",
    examples=(
        "holdfast runs list --state failed --since 24h",
        """holdfast runs list --workflow checkout --input '{"customer": 12}'""",
        "holdfast runs list --limit 1000 --json | jq -r '.runs[].run_id'",
    ),
)
@filter_options
@option("--limit N", "List at most N runs.", type=click.IntRange(1, 1000), default=50)
@option("--cursor CURSOR", "Continue a list: the cursor that it ended with.")
@option("--payloads", "With --json: write inputs and outputs, too.")
def list_runs(limit: int, cursor: str | None, payloads: bool, **options: object) -> None:
    """List runs, newest first.

    A run is listed if it matches all filters. --state, --workflow and --queue may be repeated: a
    run must match one of each. With a tag, a queue, a build or an input, 5,000 runs at most are
    searched at a time; the command says how far it searched.
    """
    from holdfast.cli.render.runs import run_object, runs_table

    filters = read_filters(options)
    filters["limit"], filters["cursor"], filters["payloads"] = limit, cursor, payloads

    async def work(link: Link) -> Answer:
        page = await link.client.runs.list(**await find_parent(link.client, filters))
        runs, now = [each.record for each in page.runs], await link.store.now()

        def write() -> None:
            if runs:
                output = console()
                output.print(runs_table(runs, now, output.width))
            else:
                none = "no run fits the filters," if any(options.values()) else "no runs"
                click.echo(f"{none} in {link.database}", err=True)
            if page.searched_until is not None:
                since = moment(to_micros(page.searched_until))
                click.echo(f"searched only runs created since {since}", err=True)
            if page.cursor is not None:
                click.echo(f"more with --cursor {page.cursor}", err=True)

        found = {"runs": [run_object(run) for run in runs], "cursor": page.cursor}
        return Answer({**found, "searched_until": page.searched_until}, write)

    answer(work)


@command(
    "log",
    examples=(
        "holdfast runs log checkout/order-7 --follow",
        "holdfast runs log 3f9a --json | jq 'select(.type == \"StepFailed\")'",
    ),
)
@click.argument("reference", metavar="RUN")
@option("--follow", "Write new entries until the run has ended.")
def log(reference: str, follow: bool) -> None:
    """Write a run's log, one entry on each line.

    With --json each line is an object.
    """
    from holdfast.cli.render.runs import event_line, event_object
    from holdfast.types import LoggedEvent

    as_json = current_settings().json

    def write(entry: LoggedEvent, run: RunRecord) -> None:
        if as_json:
            write_json(event_object(entry))
        else:
            click.echo(event_line(entry, run.created_at))

    async def work(link: Link) -> None:
        run = await find_run(link.client, reference)
        if not follow:
            for entry in await link.client.runs.log(run.run_id):
                write(entry, run)
            return
        async with aclosing(link.client.runs.follow_log(run.run_id)) as entries:
            async for entry in entries:
                write(entry, run)

    call(work)


@command("wait", examples=("holdfast runs wait checkout/order-7 --timeout 10m",))
@click.argument("reference", metavar="RUN")
@option("--timeout TIME", "Stop waiting after this time (exit code 5).", type=duration)
def wait(reference: str, timeout: float | None) -> None:
    """Wait until a run has ended, and write its output.

    If the run continues as a new run, the command waits for the newest one. The exit code says how
    the run ended.
    """
    from holdfast.cli.render.progress import report_end, watch_run

    async def work(link: Link) -> RunRecord:
        run = await find_run(link.client, reference)
        return await watch_run(link, run, timeout, quiet=True)

    code = report_end(current_settings(), call(work))
    click.get_current_context().exit(code)


@command("webhooks", examples=("holdfast runs webhooks checkout/order-7",))
@click.argument("reference", metavar="RUN")
async def webhooks(link: Link, reference: str) -> Answer:
    """List the URLs of a run that wait for a POST. A program that has one can post to it."""
    run = await find_run(link.client, reference)
    found = await link.client.webhooks.list(run.run_id)

    def write() -> None:
        for each in found:
            click.echo(f"{each.key}  {each.url}")

    return Answer(found, write, none=f"run {run.run_id} waits for no POST")
