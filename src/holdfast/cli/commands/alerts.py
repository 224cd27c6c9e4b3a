"""`holdfast alerts`: conditions that workers look at, and tell of by events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import Group, command, option
from holdfast.cli.render.console import folding, plain, table

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.types import AlertInfo

_HERE = "holdfast.cli.commands.alerts"


@click.group(
    "alerts",
    cls=Group,
    sources={"list": f"{_HERE}:list_alerts"},
    examples=("holdfast alerts list", "holdfast alerts list --active"),
)
def alerts() -> None:
    """List alerts: which are active, and what was seen.

    The code of an app declares them with app.alert(). Events tell of their changes.
    """


@command(
    "list", examples=("holdfast alerts list", "holdfast alerts list --active && echo 'look at it'")
)
@option("--active", "Only those that are active; exit code 1 if none is.")
async def list_alerts(link: Link, *, active: bool) -> Answer:
    """List the alerts of all apps, as they were seen when a worker looked last."""
    found = [each for each in await link.client.alerts.list() if each.is_active or not active]
    now = await link.store.now()
    none = "no alert is active" if active else "no alerts"
    objects = [plain(each) for each in found]
    return Answer(objects, lambda: _table(found, now), none=none, ok=bool(found) or not active)


def _table(found: list[AlertInfo], now: int) -> Table:
    """Return alerts as a table, a row each."""
    from holdfast.insight.alerts import rule_text, state_text

    shown = table(folding("", "alert", "app", "begins when", "topic", "seen"))
    for each in found:
        state = "[red]ACTIVE[/]" if each.is_active else "ok"
        texts = (each.rule.name, each.app, rule_text(each.app, each.rule), each.rule.topic)
        shown.add_row(state, *texts, state_text(each, now))
    return shown
