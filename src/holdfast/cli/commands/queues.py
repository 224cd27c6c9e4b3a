"""`holdfast queues`: which there are, and pausing them."""

from __future__ import annotations

import click

from holdfast.cli.framework import Group, command
from holdfast.cli.settings import settings_of

_HERE = "holdfast.cli.commands.queues"


@click.group(
    "queues",
    cls=Group,
    sources={
        "list": f"{_HERE}:list_queues",
        "pause": f"{_HERE}:pause",
        "resume": f"{_HERE}:resume",
    },
    examples=("holdfast queues list", "holdfast queues pause mail"),
)
def queues() -> None:
    """Look at queues, pause them, and let them go on."""


@command("list", examples=("holdfast queues list", "holdfast queues list --json"))
@click.pass_context
def list_queues(context: click.Context) -> None:
    """List the queues that live workers serve, that are paused, or that tasks wait in."""
    from holdfast.cli.served import show_served

    show_served(settings_of(context), "queue")


@command("pause", examples=('holdfast queues pause mail --reason "the mail server is down"',))
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.option("--reason", help="Shown wherever the pause is.")
@click.pass_context
def pause(context: click.Context, names: tuple[str, ...], reason: str | None) -> None:
    """Let no worker begin anything of these queues.

    What runs already is not disturbed. A queue that nobody knows yet is paused too, with a
    warning. Exit code 1 where one was paused before.
    """
    from holdfast.cli import pausing

    pausing.pause(context, "queue", names, reason)


@command("resume", examples=("holdfast queues resume mail",))
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@click.pass_context
def resume(context: click.Context, names: tuple[str, ...]) -> None:
    """Let workers go on with these queues.

    Exit code 1 where one was not paused.
    """
    from holdfast.cli import pausing

    pausing.resume(context, "queue", names)
