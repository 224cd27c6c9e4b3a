"""`holdfast runs fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.inputs import named_values, read_json
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client.forking import ForkOptions
    from holdfast.types import RunRecord


@command(
    "fork",
    examples=(
        "holdfast runs fork checkout/order-7 --step charge",
        """holdfast runs fork 3f9a --index 12 --input '{"id": 8}'""",
        """holdfast runs fork 3f9a --step ship --result charge='{"paid": true}'""",
    ),
)
@click.argument("reference", metavar="RUN")
@click.option("--step", metavar="KEY", help="Keep what came before this step, activity or child.")
@click.option("--index", type=click.IntRange(1), help="Keep so many events of the log.")
@click.option("--input", "payload", metavar="JSON", help="Another input: JSON, @FILE, or -.")
@click.option(
    "--result",
    "results",
    metavar="KEY=JSON",
    multiple=True,
    help="Another result of a step or activity that is kept; may be repeated.",
)
@click.option("--workflow-version", type=click.IntRange(1), help="Another version of the workflow.")
@click.option("--app", "app_reference", metavar="MODULE:APP", help="Check the input by this app.")
@click.pass_context
def fork(
    context: click.Context,
    reference: str,
    step: str | None,
    index: int | None,
    payload: str | None,
    results: tuple[str, ...],
    workflow_version: int | None,
    app_reference: str | None,
) -> None:
    """Start a run that goes on from somewhere in another's log, and write its id.

    What had come about by then is kept, so those steps are not executed again; without --step
    and --index it is all that led to the run's end. The other run is not touched. `runs log`
    shows the keys and indexes.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import decoded, write_json
    from holdfast.cli.finding import find_run
    from holdfast.cli.loading import AppReference
    from holdfast.cli.render_runs import run_object

    settings = settings_of(context)
    options: ForkOptions = {"step": step, "index": index, "version": workflow_version}
    options["results"] = named_values(results, "result")
    app = None if app_reference is None else AppReference.parse(app_reference).load()

    async def work(link: Link) -> RunRecord:
        origin = await find_run(link.client, reference)
        if payload is not None:
            text = read_json(payload, "input")
            ours = app if app is not None and app.name == origin.app else None
            known = ours and ours.find(origin.name, workflow_version or origin.version)
            options["input"] = known.decode_input(text) if known else decoded(text)
        forked = await link.client.fork(origin.run_id, **options)
        return (await forked.get()).record

    run = with_link(settings, work, app=app)
    if settings.json:
        write_json(run_object(run))
    else:
        click.echo(str(run.run_id))
