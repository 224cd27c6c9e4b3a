"""`holdfast workers`: who is there to run workflows and activities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.hints import spelled
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.types import ThreadUse, WorkerInfo


@command("workers", examples=("holdfast workers", "holdfast workers --json | jq '.[].queues'"))
@click.pass_context
def workers(context: click.Context) -> None:
    """List the workers that are signed on.

    With what they serve, how many of their threads for plain functions are taken, and when they
    were last heard of.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import console, plain, write_json

    async def work(link: Link) -> tuple[list[WorkerInfo], int, str]:
        return await link.store.list_workers(), await link.store.now(), str(link.database)

    settings = settings_of(context)
    found, now, database = with_link(settings, work)
    if settings.json:
        write_json([plain(each) for each in found])
    elif found:
        console().print(_table(found, now))
    else:
        text = f"no worker is signed on in {database}; `holdfast worker MODULE:APP` starts one"
        click.echo(spelled(text), err=True)


def _table(workers: list[WorkerInfo], now: int) -> Table:
    from rich.table import Table

    from holdfast.insight.wording import ago, length

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("worker", "queues", "workflows and activities"):
        table.add_column(column, overflow="fold")
    for column in ("runs", "threads", "up", "heard"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in workers:
        table.add_row(
            each.worker_id,
            ", ".join(each.queues),
            ", ".join(handler.removesuffix("@0") for handler in each.handlers),
            f"≤ {each.concurrency}",
            _threads(each.threads),
            length(now - each.started_at),
            ago(each.heard_at, now),
        )
    return table


def _threads(use: ThreadUse | None) -> str:
    """Return how a worker's threads are used: `3/32`, or `8/8, 5 wait`."""
    if use is None:
        return ""
    return f"{use.taken}/{use.size}" + (f", {use.waiting} wait" if use.waiting else "")
