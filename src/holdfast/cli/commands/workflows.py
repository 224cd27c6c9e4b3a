"""`holdfast workflows`: which there are, and pausing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import Group, command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.client import Client

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

    A run that a worker holds goes on until it waits. Exit code 1 where one was paused before.
    """
    from holdfast.cli.pausing import set_pause

    async def change(client: Client, name: str) -> bool:
        return await client.pause_workflow(name, reason)

    set_pause(context, "workflow", names, change, "paused", "it was paused before")


@command("resume", examples=("holdfast workflows resume checkout",))
@click.argument("names", metavar="WORKFLOW...", nargs=-1, required=True)
@click.pass_context
def resume(context: click.Context, names: tuple[str, ...]) -> None:
    """Let the runs of these workflows go on.

    Exit code 1 where one was not paused.
    """
    from holdfast.cli.pausing import set_pause

    async def change(client: Client, name: str) -> bool:
        return await client.resume_workflow(name)

    set_pause(context, "workflow", names, change, "resumed", "it was not paused")
