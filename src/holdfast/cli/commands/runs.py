"""`holdfast runs`: look at runs, and act on them."""

from __future__ import annotations

import click

from holdfast.cli.framework import Group

_HERE = "holdfast.cli.commands"


@click.group(
    "runs",
    cls=Group,
    sources={
        "list": f"{_HERE}.runs_list:list_runs",
        "show": f"{_HERE}.runs_show:show",
        "log": f"{_HERE}.runs_log:log",
        "why": f"{_HERE}.runs_show:why",
        "wait": f"{_HERE}.runs_wait:wait",
        "signal": f"{_HERE}.runs_tell:signal",
        "update": f"{_HERE}.runs_tell:update",
        "cancel": f"{_HERE}.runs_act:cancel",
        "terminate": f"{_HERE}.runs_act:terminate",
        "pause": f"{_HERE}.runs_act:pause",
        "resume": f"{_HERE}.runs_act:resume",
        "retry": f"{_HERE}.runs_act:retry",
        "fork": f"{_HERE}.runs_fork:fork",
    },
    examples=(
        "holdfast runs list --state waiting --workflow checkout",
        "holdfast runs show checkout/order-7",
        """holdfast runs signal checkout/order-7 packed '{"boxes": 2}'""",
    ),
)
def runs() -> None:
    """Look at runs, and act on them.

    A RUN is named by its id, by four or more digits of the beginning or end of its id, or by
    its workflow and key: checkout/order-7, or with the app, shop/checkout/order-7.
    """
