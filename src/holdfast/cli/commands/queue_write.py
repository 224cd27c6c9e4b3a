"""`holdfast queue create`, `purge`, `delete`, `pop`, `change`: what changes queues and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.answers import Answer, answer, call, current_settings
from holdfast.cli.commands.queue import end_of_receive, names_similar
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import confirm, duration, future_moment, json_of, read_json

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link

_yes_option = option("--yes", "Do not ask.")


@command(
    "create",
    examples=(
        "holdfast queue create parcels --visibility 1m --max-receives 5",
        "holdfast queue create moves --fifo",
    ),
)
@click.argument("name")
@option("--fifo", "Messages have groups, each handed out in its order.")
@option("--priorities", "Messages may be more or less urgent.")
@option("--filters", "A receive may have a condition.")
@option(
    "--visibility TIME",
    "How long one is in flight.",
    type=duration,
    default="30s",
    show_default=False,
)
@option("--max-receives N", "After N receives a message is a dead letter.", type=click.IntRange(1))
@option("--dead-letters NAME", "Their queue. Default: NAME.dead.")
@option(
    "--deduplication TIME",
    "How long a deduplication id is known.",
    type=duration,
    default="5m",
    show_default=False,
)
@option("--keep TIME", "Keep acknowledged messages for TIME.", type=duration)
async def create(link: Link, name: str, **options: Any) -> Answer:
    """Create a message queue. Exit code 1 if there is one of this name."""
    created = await link.client.queues.create(name, **options)
    text = f"created {name}" if created else f"there is {name} already, with these settings"
    return Answer({"created": created}, lambda: click.echo(text), ok=created)


@command(
    "update",
    examples=(
        "holdfast queue update parcels --visibility 5m --max-receives 10",
        "holdfast queue update parcels --max-receives 0    no dead letters any more",
    ),
)
@click.argument("name")
@option("--visibility TIME", "How long one is in flight.", type=duration)
@option(
    "--max-receives N",
    "After N receives a message is a dead letter; 0: never.",
    type=click.IntRange(0),
)
@option("--dead-letters NAME", "Their queue.")
@option("--deduplication TIME", "How long a deduplication id is known.", type=duration)
@option("--keep TIME", "Keep acknowledged messages for TIME; 0: do not.", type=duration)
def update(name: str, **options: Any) -> None:
    """Change what is given of a message queue; the rest stays.

    What is in flight stays so for as long as it was received. Whether a queue is FIFO, has
    priorities or filters cannot be changed.
    """
    if all(each is None for each in options.values()):
        raise click.UsageError("give what is to be changed")

    @names_similar
    async def work(link: Link, name: str) -> Answer:
        changed = await link.client.queues.update(name, **options)
        text = f"{name} is changed" if changed else f"{name} has these settings already"
        return Answer({"changed": changed}, text)

    answer(lambda link: work(link, name))


@command(
    "redrive",
    examples=("holdfast queue redrive parcels", "holdfast queue redrive parcels --message 17"),
)
@click.argument("name")
@option("--message ID...", "Only this one.", name="ids", type=int)
@names_similar
async def redrive(link: Link, name: str, ids: tuple[int, ...]) -> Answer:
    """Move dead letters back to their queue, due at once. Those in flight stay."""
    return _count("moved", await link.client.queues.redrive(name, ids or None), "back to", name)


@command("purge", examples=("holdfast queue purge parcels --yes",))
@click.argument("name")
@_yes_option
def purge(name: str, yes: bool) -> None:
    """Delete all messages that wait in a queue. What is in flight stays."""

    @names_similar
    async def work(link: Link, name: str) -> Answer:
        return _count("deleted", await link.client.queues.purge(name), "of", name)

    if not yes:
        _ask(name, f"Delete all messages that wait in {name}?")
    answer(lambda link: work(link, name))


@command("delete", examples=("holdfast queue delete parcels --yes",))
@click.argument("name")
@_yes_option
def delete(name: str, yes: bool) -> None:
    """Delete a message queue with all that is in it. Exit code 1 if there is none."""

    async def work(link: Link) -> Answer:
        deleted = await link.client.queues.delete(name)
        text = "deleted" if deleted else f"there is no message queue {name}"
        return Answer({"deleted": deleted}, text, ok=deleted)

    if not yes:
        _ask(name, f"Delete the message queue {name} and its messages?")
    answer(work)


def _ask(name: str, question: str) -> None:
    """Ask before something is deleted; a queue that is not there is said first."""

    @names_similar
    async def find(link: Link, name: str) -> None:
        await link.client.queues.get(name)

    call(lambda link: find(link, name))
    confirm(question)


def _count(what: str, count: int, where: str, name: str) -> Answer:
    text = f"{what} {count} message{'' if count == 1 else 's'} {where} {name}"
    return Answer({what: count}, text)


@command("cancel", examples=("holdfast queue cancel parcels 17",))
@click.argument("name")
@click.argument("message_id", metavar="ID", type=int)
@names_similar
async def cancel(link: Link, name: str, message_id: int) -> Answer:
    """Delete a message that waits. Exit code 1 if the queue does not have it, or it is in flight.

    Its deduplication id stays known, so that a second send with it does nothing.
    """
    cancelled = await link.client.messages.cancel(name, message_id)
    return _done("cancelled", cancelled, name, message_id)


@command(
    "change",
    examples=(
        """holdfast queue change parcels 17 --payload '{"id": 8}'""",
        "holdfast queue change parcels 17 --delay 0s    due now",
        "holdfast queue change alarms 17 --priority 0",
    ),
)
@click.argument("name")
@click.argument("message_id", metavar="ID", type=int)
@option("--payload JSON", "The new payload: JSON, `@file`, or `-` for stdin.")
@option("--delay TIME", "Due after TIME, from now.", type=duration)
@option("--at MOMENT", "Due at MOMENT: 2030-01-31T12:00.", type=future_moment)
@option("--priority", "0 is the most urgent.", type=click.IntRange(0, 4))
def change(name: str, message_id: int, payload: str | None, **options: Any) -> None:
    """Change a message that waits. Exit code 1 if the queue does not have it, or it is in flight.

    The next receive has what was changed. How often it was received before still counts.
    """
    import msgspec

    given = {each: value for each, value in options.items() if value is not None}
    if payload is not None:
        given["payload"] = msgspec.json.decode(read_json(payload, "payload"))
    if not given:
        raise click.UsageError("say what to change: --payload, --delay, --at or --priority")

    @names_similar
    async def work(link: Link, name: str) -> Answer:
        changed = await link.client.messages.change(name, message_id, **given)
        return _done("changed", changed, name, message_id)

    answer(lambda link: work(link, name))


@command("pop", examples=("holdfast queue pop parcels --limit 10 --json",))
@click.argument("name")
@option("--limit N", "At most N.", type=click.IntRange(1, 10_000), default=1, show_default=False)
@option(
    "--wait TIME", "Wait up to TIME for a message.", type=duration, default="0s", show_default=False
)
@option("--contains JSON", "Only messages that contain this.", callback=json_of("condition"))
def pop(name: str, **options: Any) -> None:
    """Receive messages and acknowledge them at once. Exit code 1 if there is none.

    A message that is lost before this command has written it does not come again. Use
    `holdfast queue receive --ack` to acknowledge messages once they are written.
    """
    from holdfast.cli.render.queues import write_received

    @names_similar
    async def work(link: Link, name: str) -> bool:
        found = await link.client.queues.pop(name, **options)
        write_received(found, current_settings().json, receipts=False)
        return bool(found)

    end_of_receive(call(lambda link: work(link, name)))


def _done(what: str, done: bool, name: str, message_id: int) -> Answer:
    text = f"message {message_id} of {name} is {what}"
    missing = f"{name} has no message {message_id} that waits"
    return Answer({what: done}, text if done else missing, ok=done)
