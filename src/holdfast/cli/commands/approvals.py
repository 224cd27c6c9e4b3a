"""`holdfast approvals`: what waits for a person's decision."""

from __future__ import annotations

import click

from holdfast.cli.framework import Group

_HERE = "holdfast.cli.commands"


@click.group(
    "approvals",
    cls=Group,
    invoke_without_command=True,
    sources={
        "list": f"{_HERE}.approvals_list:list_approvals",
        "decide": f"{_HERE}.approvals_decide:decide",
    },
    examples=(
        "holdfast approvals",
        "holdfast approvals decide refund/order-7",
        "holdfast approvals decide refund/order-7 --reject --feedback 'too late'",
    ),
)
@click.pass_context
def approvals(context: click.Context) -> None:
    """List what waits for a person's decision, and decide it."""
    if context.invoked_subcommand is None:
        from holdfast.cli.commands.approvals_list import list_approvals

        context.invoke(list_approvals)
