"""`holdfast queue create`, `update`, `redrive`, `purge` and `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import exits
from holdfast.cli.commands.queue import with_client
from holdfast.cli.framework import command
from holdfast.cli.inputs import confirm, duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.connecting import Link

_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@command(
    "create",
    examples=(
        "holdfast queue create parcels --visibility 1m --max-receives 5",
        "holdfast queue create moves --fifo",
    ),
)
@click.argument("name")
@click.option("--fifo", is_flag=True, help="Messages have groups, each handed out in its order.")
@click.option("--priorities", is_flag=True, help="Messages may be more or less urgent.")
@click.option("--filters", is_flag=True, help="A receive may have a condition.")
@click.option(
    "--visibility", metavar="TIME", type=duration, default="30s", help="How long one is in flight."
)
@click.option(
    "--max-receives",
    metavar="N",
    type=click.IntRange(1),
    help="After so many receives a message is a dead letter.",
)
@click.option("--dead-letters", metavar="NAME", help="Their queue. Default: NAME.dead.")
@click.option(
    "--deduplication",
    metavar="TIME",
    type=duration,
    default="5m",
    help="How long a deduplication id is known.",
)
@click.option(
    "--keep", metavar="TIME", type=duration, help="Keep acknowledged messages for so long."
)
@click.pass_context
def create(context: click.Context, /, name: str, **options: Any) -> None:
    """Create a message queue. Exit code 1 if there is one of this name."""
    from holdfast.cli.render.console import write_json

    created, as_json = with_client(context, lambda link: link.client.queues.create(name, **options))
    if as_json:
        write_json({"created": created})
    else:
        click.echo(
            f"created {name}" if created else f"there is {name} already, with these settings"
        )
    context.exit(exits.OK if created else exits.FAILED)


@command(
    "update",
    examples=(
        "holdfast queue update parcels --visibility 5m --max-receives 10",
        "holdfast queue update parcels --max-receives 0    no dead letters any more",
    ),
)
@click.argument("name")
@click.option("--visibility", metavar="TIME", type=duration, help="How long one is in flight.")
@click.option(
    "--max-receives",
    metavar="N",
    type=click.IntRange(0),
    help="After so many receives a message is a dead letter; 0: never.",
)
@click.option("--dead-letters", metavar="NAME", help="Their queue.")
@click.option(
    "--deduplication", metavar="TIME", type=duration, help="How long a deduplication id is known."
)
@click.option(
    "--keep",
    metavar="TIME",
    type=duration,
    help="Keep acknowledged messages for so long; 0: do not.",
)
@click.pass_context
def update(context: click.Context, /, name: str, **options: Any) -> None:
    """Change what is given of a message queue; the rest stays.

    What is in flight stays so for as long as it was received. Whether a queue is FIFO, has
    priorities or filters cannot be changed.
    """
    from holdfast.cli.render.console import write_json

    if all(each is None for each in options.values()):
        raise click.UsageError("give what is to be changed")
    changed, as_json = with_client(
        context, lambda link: link.client.queues.update(name, **options), name
    )
    if as_json:
        write_json({"changed": changed})
    else:
        click.echo(f"{name} is changed" if changed else f"{name} has these settings already")


@command(
    "redrive",
    examples=("holdfast queue redrive parcels", "holdfast queue redrive parcels --message 17"),
)
@click.argument("name")
@click.option("--message", "ids", metavar="ID", type=int, multiple=True, help="Only this one.")
@click.pass_context
def redrive(context: click.Context, name: str, ids: tuple[int, ...]) -> None:
    """Move dead letters back to their queue, due at once. Those in flight stay."""
    _write_count(
        context,
        "moved",
        lambda link: link.client.queues.redrive(name, ids or None),
        "back to",
        name,
    )


@command("purge", examples=("holdfast queue purge parcels --yes",))
@click.argument("name")
@_yes_option
@click.pass_context
def purge(context: click.Context, name: str, yes: bool) -> None:
    """Delete all messages that wait in a queue. What is in flight stays."""
    if not yes:
        _ask(context, name, f"Delete all messages that wait in {name}?")
    _write_count(context, "deleted", lambda link: link.client.queues.purge(name), "of", name)


@command("delete", examples=("holdfast queue delete parcels --yes",))
@click.argument("name")
@_yes_option
@click.pass_context
def delete(context: click.Context, name: str, yes: bool) -> None:
    """Delete a message queue with all that is in it. Exit code 1 if there is none."""
    from holdfast.cli.render.console import write_json

    if not yes:
        _ask(context, name, f"Delete the message queue {name} and its messages?")
    deleted, as_json = with_client(context, lambda link: link.client.queues.delete(name))
    if as_json:
        write_json({"deleted": deleted})
    else:
        click.echo("deleted" if deleted else f"there is no message queue {name}", err=not deleted)
    context.exit(exits.OK if deleted else exits.FAILED)


def _ask(context: click.Context, name: str, question: str) -> None:
    """Ask before something is deleted; a queue that is not there is said first."""
    with_client(context, lambda link: link.client.queues.get(name), name)
    confirm(question)


def _write_count(
    context: click.Context,
    what: str,
    work: Callable[[Link], Awaitable[int]],
    where: str,
    name: str,
) -> None:
    from holdfast.cli.render.console import write_json

    count, as_json = with_client(context, work, name)
    if as_json:
        write_json({what: count})
    else:
        click.echo(f"{what} {count} message{'' if count == 1 else 's'} {where} {name}")
