"""List queues and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from holdfast.cli.connecting import with_link
from holdfast.cli.console import console, write_json
from holdfast.cli.settings import Settings
from holdfast.insight.serving import Served, read_served
from holdfast.insight.wording import ago, several
from holdfast.moments import to_micros
from holdfast.types import Scope

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link


def show_served(settings: Settings, scope: Scope) -> None:
    """List the queues or the workflows."""

    async def work(link: Link) -> tuple[list[Served], int]:
        return await read_served(link.store, scope), await link.store.now()

    found, now = with_link(settings, work)
    if settings.json:
        write_json(found)
    elif found:
        console().print(served_table(scope, found, now))
    else:
        click.echo(f"no live worker serves a {scope}, and none is paused", err=True)


def served_table(scope: Scope, found: Sequence[Served], now: int) -> Table:
    """List queues or workflows, a row each."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(scope, no_wrap=True)
    if scope == "workflow":
        table.add_column("versions", no_wrap=True)
    table.add_column("workers", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in found:
        versions = [", ".join(map(str, each.versions))] if scope == "workflow" else []
        table.add_row(each.name, *versions, str(each.workers), _notes(each, now))
    return table


def _notes(served: Served, now: int) -> Text:
    notes: list[Text] = []
    if served.paused_at is not None:
        reason = f": {served.reason}" if served.reason else ""
        notes.append(Text(f"paused {ago(to_micros(served.paused_at), now)}{reason}", "yellow"))
    if served.unserved:
        notes.append(Text(f"{several(served.unserved, 'task')} nobody serves", "bold red"))
    return Text("; ").join(notes)
