"""`holdfast runs show` and `holdfast runs why`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import JSON, LoggedEvent, Run, WorkerInfo


@command("show", examples=("holdfast runs show checkout/order-7", "holdfast runs show 3f9a --json"))
@click.argument("reference", metavar="RUN")
@click.pass_context
def show(context: click.Context, reference: str) -> None:
    """Show a run: what it is, what it has set, and its timeline.

    \b
    ✓ step done    ✗ step failed   ↻ step being tried again   ☠ worker lost
    ◷ timer        ✉ signal        = value                    ⊘ cancel asked for
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, write_json
    from holdfast.cli.finding import find_run
    from holdfast.cli.render_runs import event_object, run_object, summary
    from holdfast.cli.render_timeline import timeline
    from holdfast.cli.timeline import read_spans

    async def work(link: Link) -> tuple[Run, list[LoggedEvent], Mapping[str, JSON], int]:
        run = await find_run(link.client, reference)
        log = await link.client.log(run.run_id)
        return run, log, await link.client.values(run.run_id), await link.store.now()

    settings = settings_of(context)
    run, log, values, now = with_link(settings, work)
    if settings.json:
        events = [event_object(entry) for entry in log]
        write_json({**run_object(run), "values": values, "log": events})
        return
    output = console()
    output.print(summary(run, values, now))
    spans = read_spans((entry.event for entry in log), run.completed_at)
    if spans:
        output.print()
        output.print(timeline(spans, run.created_at, run.completed_at, now))


@command("why", examples=("holdfast runs why checkout/order-7",))
@click.argument("reference", metavar="RUN")
@click.pass_context
def why(context: click.Context, reference: str) -> None:
    """Say what a run is doing or waiting for, and what would move it."""
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, write_json
    from holdfast.cli.finding import find_run
    from holdfast.cli.render_why import write_explanation
    from holdfast.cli.timeline import read_spans
    from holdfast.cli.why import explain

    async def work(link: Link) -> tuple[Run, list[LoggedEvent], list[WorkerInfo], int]:
        run = await find_run(link.client, reference)
        log = await link.client.log(run.run_id)
        return run, log, await link.store.list_workers(), await link.store.now()

    settings = settings_of(context)
    run, log, workers, now = with_link(settings, work)
    spans = read_spans((entry.event for entry in log), run.completed_at)
    explanation = explain(run, spans, workers, now)
    if settings.json:
        fields = ("state", "because", "details", "commands")
        answer = {name: getattr(explanation, name) for name in fields}
        write_json({"run_id": run.run_id, **answer})
    else:
        write_explanation(console(), explanation)
