"""Queues and workflows as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from holdfast.cli.served import Served
from holdfast.cli.wording import ago, several
from holdfast.moments import to_micros
from holdfast.types import Scope


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
