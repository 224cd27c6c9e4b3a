"""`holdfast queue`: message queues and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import exits
from holdfast.cli.framework import Group, command
from holdfast.cli.inputs import duration, read_json
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.connecting import Link
    from holdfast.client import Message
    from holdfast.types import ListedMessage, QueueInfo, QueueMetrics

_HERE = "holdfast.cli.commands.queue"
_WRITING = "holdfast.cli.commands.queue_write"
_MOST = 10_000


@click.group(
    "queue",
    cls=Group,
    sources={
        "create": f"{_WRITING}:create",
        "update": f"{_WRITING}:update",
        "list": f"{_HERE}:list_queues",
        "show": f"{_HERE}:show",
        "why": "holdfast.cli.commands.queue_why:why",
        "send": f"{_HERE}:send",
        "receive": f"{_HERE}:receive",
        "ack": f"{_HERE}:ack",
        "nack": f"{_HERE}:nack",
        "dead": f"{_HERE}:dead",
        "redrive": f"{_WRITING}:redrive",
        "purge": f"{_WRITING}:purge",
        "delete": f"{_WRITING}:delete",
    },
    examples=(
        "holdfast queue create parcels --max-receives 5",
        """holdfast queue send parcels '{"id": 7}'""",
        "holdfast queue receive parcels --limit 10 --ack",
        "holdfast queue show parcels",
        "holdfast queue why parcels",
        "holdfast queue dead parcels",
    ),
)
def queue() -> None:
    """Send messages, receive them, and look into message queues.

    A message is received, then acknowledged. Until then it is in flight; when its visibility ends,
    others receive it. One that was received too often moves to the dead letters. `holdfast
    queues` is about pauses, and the queues that workers serve.
    """


_limit_option = click.option(
    "--limit", type=click.IntRange(1, _MOST), default=20, show_default=True, help="At most so many."
)


def with_client(
    context: click.Context, work: Callable[[Link], Awaitable[Any]], name: str | None = None
) -> tuple[Any, bool]:
    """Return what `work` returns, and True if JSON is to be written.

    If there is no message queue of this name, the error has similar names.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.finding import unknown_queue
    from holdfast.errors import UnknownQueue

    async def named(link: Link) -> Any:
        try:
            return await work(link)
        except UnknownQueue:
            if name is None:
                raise
            raise await unknown_queue(link.client, name) from None

    settings = settings_of(context)
    return with_link(settings, named), settings.json


@command("list", examples=("holdfast queue list", "holdfast queue list --json"))
@click.pass_context
def list_queues(context: click.Context) -> None:
    """List the message queues, and how much is in each; counts end at 10,000."""
    from holdfast.cli.render.console import console, plain, write_json
    from holdfast.cli.render.queues import queue_table

    async def work(link: Link) -> tuple[list[QueueInfo], list[QueueMetrics], int]:
        queues = link.client.queues
        return await queues.list(), await queues.metrics(), await link.store.now()

    (found, counted, now), as_json = with_client(context, work)
    if as_json:
        counts = {each.name: each for each in counted}
        write_json([plain(each) | {"metrics": counts.get(each.settings.name)} for each in found])
    elif found:
        console().print(queue_table(found, counted, now))
    else:
        click.echo("no message queues", err=True)


@command("show", examples=("holdfast queue show parcels", "holdfast queue show parcels --json"))
@click.argument("name")
@_limit_option
@click.pass_context
def show(context: click.Context, name: str, limit: int) -> None:
    """Show a message queue: its settings, how much is in it, and messages, not received by it."""
    from holdfast.cli.render.console import console, write_json
    from holdfast.cli.render.queues import message_json, message_table, queue_lines

    async def work(link: Link) -> tuple[QueueInfo, QueueMetrics, list[ListedMessage], int]:
        queues = link.client.queues
        info = await queues.get(name)
        [counted] = await queues.metrics(name)
        return info, counted, await queues.messages(name, limit), await link.store.now()

    (info, counted, found, now), as_json = with_client(context, work, name)
    if as_json:
        write_json(
            {"queue": info, "metrics": counted, "messages": [message_json(each) for each in found]}
        )
        return
    click.echo("\n".join(queue_lines(info, counted, now)))
    if found:
        console().print(message_table(found, now))


@command(
    "send",
    examples=(
        """holdfast queue send parcels '{"id": 7}'""",
        "holdfast queue send parcels @parcel.json --delay 10m --id parcel-7",
        "holdfast queue send moves '\"load\"' --group customer-7",
    ),
)
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--delay", metavar="TIME", type=duration, help="Due so much later.")
@click.option("--group", metavar="GROUP", help="Of a FIFO queue: whose order is kept.")
@click.option("--id", "dedup_id", metavar="ID", help="A second send with this id does nothing.")
@click.option("--priority", type=click.IntRange(0, 4), help="0 is the most urgent.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated."
)
@click.pass_context
def send(
    context: click.Context,
    /,
    name: str,
    payload: str | None,
    headers: tuple[str, ...],
    **options: Any,
) -> None:
    """Send a message: JSON, `@file`, or `-` for stdin."""
    import msgspec

    from holdfast.cli.render.console import write_json

    value = msgspec.json.decode(read_json(payload, "payload"))
    given = dict(_header(text) for text in headers)
    sent, as_json = with_client(
        context,
        lambda link: link.client.queues.send(name, value, headers=given or None, **options),
        name,
    )
    if as_json:
        write_json({"message_id": sent})
    else:
        click.echo(f"sent message {sent} to {name}")


@command(
    "receive",
    examples=(
        "holdfast queue receive parcels --limit 10 --ack",
        "holdfast queue receive parcels --wait 20s --json",
        """holdfast queue receive alarms --contains '{"site": "south"}'""",
    ),
)
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, _MOST), default=1, help="At most so many.")
@click.option(
    "--wait", metavar="TIME", type=duration, default="0s", help="Wait so long for a message."
)
@click.option("--visibility", metavar="TIME", type=duration, help="How long they are in flight.")
@click.option("--contains", metavar="JSON", help="Only messages that contain this.")
@click.option("--ack", "acks", is_flag=True, help="Acknowledge them once they are written.")
@click.pass_context
def receive(
    context: click.Context, /, name: str, contains: str | None, acks: bool, **options: Any
) -> None:
    """Receive messages. Exit code 1 if there is none.

    Without --ack they are in flight: acknowledge each with its receipt, or give it back.
    """
    import msgspec

    from holdfast.cli.render.queues import write_received

    pattern = None if contains is None else msgspec.json.decode(read_json(contains, "condition"))
    as_json = settings_of(context).json

    async def work(link: Link) -> list[Message]:
        queues = link.client.queues
        found = await queues.receive(name, contains=pattern, **options)
        write_received(found, as_json)
        if acks:
            await queues.ack(found)
        return found

    found, _ = with_client(context, work, name)
    if not found and not as_json:
        click.echo("no message is due", err=True)
    context.exit(exits.OK if found else exits.FAILED)


@command("ack", examples=("holdfast queue ack RECEIPT",))
@click.argument("receipts", nargs=-1, required=True)
@click.pass_context
def ack(context: click.Context, receipts: tuple[str, ...]) -> None:
    """Acknowledge messages by their receipts. Exit code 1 if one is not in flight any more."""
    parsed = _parsed(receipts)
    acked, as_json = with_client(context, lambda link: link.client.queues.ack(parsed))
    _write_outcomes(context, acked, as_json, "acknowledged")


@command("nack", examples=("holdfast queue nack RECEIPT --delay 10s --error 'no van'",))
@click.argument("receipts", nargs=-1, required=True)
@click.option(
    "--delay", metavar="TIME", type=duration, default="0s", help="Due again so much later."
)
@click.option("--error", metavar="TEXT", help="Why.")
@click.pass_context
def nack(
    context: click.Context, receipts: tuple[str, ...], delay: float, error: str | None
) -> None:
    """Give messages back by their receipts. Exit code 1 if one is not in flight any more."""
    parsed = _parsed(receipts)
    returned, as_json = with_client(
        context, lambda link: link.client.queues.nack(parsed, delay=delay, error=error)
    )
    _write_outcomes(context, returned, as_json, "given back")


@command("dead", examples=("holdfast queue dead parcels", "holdfast queue dead parcels --json"))
@click.argument("name")
@_limit_option
@click.pass_context
def dead(context: click.Context, name: str, limit: int) -> None:
    """List the dead letters of a queue, each with the reason of the last time."""
    from holdfast.cli.render.console import console, write_json
    from holdfast.cli.render.hints import with_database
    from holdfast.cli.render.queues import message_json, message_table
    from holdfast.insight.wording import several

    async def work(link: Link) -> tuple[list[ListedMessage], int | None, int]:
        queues = link.client.queues
        settings = (await queues.get(name)).settings
        letters = settings.dead_letters
        found = [] if letters is None else await queues.messages(letters, _MOST)
        own = [each for each in found if each.origin == name]
        return own[:limit], settings.max_receives, await link.store.now()

    (found, most, now), as_json = with_client(context, work, name)
    if as_json:
        write_json([message_json(each) for each in found])
    elif found:
        console().print(message_table(found, now, dead=True))
        if most is not None:
            click.echo(f"a message moves here after {several(most, 'receive')}", err=True)
        click.echo(with_database(f"move them back: holdfast queue redrive {name}"), err=True)
    else:
        click.echo(f"{name} has no dead letters", err=True)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not a header: write NAME=VALUE")
    return name, value


def _parsed(texts: tuple[str, ...]) -> list[Any]:
    from holdfast.types import Receipt

    try:
        return [Receipt.parse(text) for text in texts]
    except ValueError:
        raise click.BadParameter(
            "a receipt is what `holdfast queue receive` writes with each message"
        ) from None


def _write_outcomes(context: click.Context, done: list[bool], as_json: bool, what: str) -> None:
    from holdfast.cli.render.console import write_json

    if as_json:
        write_json(done)
    else:
        late = done.count(False)
        click.echo(f"{done.count(True)} {what}")
        if late:
            click.echo(f"{late} not: no longer in flight; others may have it", err=True)
    context.exit(exits.OK if all(done) else exits.FAILED)
