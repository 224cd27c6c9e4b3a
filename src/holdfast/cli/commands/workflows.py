"""`holdfast workflows`: which there are, and pausing them."""

from __future__ import annotations

import click

from holdfast.cli.framework import Group, command
from holdfast.cli.settings import settings_of

_HERE = "holdfast.cli.commands.workflows"


@click.group(
    "workflows",
    cls=Group,
    sources={
        "list": f"{_HERE}:list_workflows",
        "pause": f"{_HERE}:pause",
        "resume": f"{_HERE}:resume",
    },
    examples=("holdfast workflows list", "holdfast workflows pause checkout"),
)
def workflows() -> None:
    """Look at workflows, pause them, and let them go on."""


@command("list", examples=("holdfast workflows list", "holdfast workflows list --json"))
@click.pass_context
def list_workflows(context: click.Context) -> None:
    """List the workflows that live workers serve, that are paused, or that runs wait for."""
    from holdfast.cli.served import show_served

    show_served(settings_of(context), "workflow")


@command("pause", examples=('holdfast workflows pause checkout --reason "wrong prices"',))
@click.argument("names", metavar="WORKFLOW...", nargs=-1, required=True)
@click.option("--reason", help="Shown wherever the pause is.")
@click.pass_context
def pause(context: click.Context, names: tuple[str, ...], reason: str | None) -> None:
    """Let no worker begin a turn of these workflows' runs, of any version.

    A run that a worker holds goes on until it waits. A workflow that nobody knows yet is paused
    too, with a warning. Exit code 1 where one was paused before.
    """
    from holdfast.cli import pausing

    pausing.pause(context, "workflow", names, reason)


@command("resume", examples=("holdfast workflows resume checkout",))
@click.argument("names", metavar="WORKFLOW...", nargs=-1, required=True)
@click.pass_context
def resume(context: click.Context, names: tuple[str, ...]) -> None:
    """Let the runs of these workflows go on.

    Exit code 1 where one was not paused.
    """
    from holdfast.cli import pausing

    pausing.resume(context, "workflow", names)
