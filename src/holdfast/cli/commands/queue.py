"""`holdfast queue`: message queues and what is in them."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.answers import Answer, call, current_settings
from holdfast.cli.finding import unknown_queue
from holdfast.cli.framework import Group, command, option
from holdfast.cli.inputs import duration, future_moment, json_of
from holdfast.cli.render.console import plain, write_json
from holdfast.cli.render.hints import with_database
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.cli.connecting import Link
    from holdfast.client import Message
    from holdfast.insight.messages import MessageExplanation, QueueExplanation
    from holdfast.types import QueueInfo, QueueMetrics, Receipt

T = TypeVar("T")

_HERE = "holdfast.cli.commands.queue"
_WRITING = "holdfast.cli.commands.queue_write"
_MOST = 10_000
_PAGE = 500  # messages that are read at a time


@click.group(
    "queue",
    cls=Group,
    sources={
        "create": f"{_WRITING}:create",
        "update": f"{_WRITING}:update",
        "list": f"{_HERE}:list_queues",
        "show": f"{_HERE}:show",
        "why": f"{_HERE}:why",
        "send": f"{_HERE}:send",
        "receive": f"{_HERE}:receive",
        "pop": f"{_WRITING}:pop",
        "ack": f"{_HERE}:ack",
        "nack": f"{_HERE}:nack",
        "message": f"{_HERE}:message",
        "cancel": f"{_WRITING}:cancel",
        "change": f"{_WRITING}:change",
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


def _headers(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str] | None:
    """Return the headers of `NAME=VALUE` options, None without one."""
    for text in texts:
        if "=" not in text:
            raise click.UsageError(f"Invalid value: {text!r} is not a header: write NAME=VALUE")
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts} or None


_limit_option = option("--limit N", "At most N.", type=click.IntRange(1, _MOST), default=20)
_cursor_option = option("--cursor CURSOR", "Continue a list: the cursor that it ended with.")
_all_option = option("--all", "All of them; with --json each is a line of its own.", name="all_")


def names_similar(work: Callable[..., Awaitable[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Return `work` with a better error for an unknown message queue: it names similar ones."""

    @wraps(work)
    async def named(link: Link, name: str, *args: Any, **given: Any) -> T:
        from holdfast.errors import UnknownQueue

        try:
            return await work(link, name, *args, **given)
        except UnknownQueue:
            raise await unknown_queue(link.client, name) from None

    return named


@command("list", examples=("holdfast queue list", "holdfast queue list --json"))
async def list_queues(link: Link) -> Answer:
    """List the message queues, and how much is in each; counts end at 10,000."""
    from holdfast.cli.render.queues import queue_table

    queues = link.client.queues
    found, counted, now = await queues.list(), await queues.metrics(), await link.store.now()
    counts = {each.name: each for each in counted}
    objects = [plain(each) | {"metrics": counts.get(each.settings.name)} for each in found]
    return Answer(objects, lambda: queue_table(found, counted, now), none="no message queues")


@command(
    "show",
    examples=(
        "holdfast queue show parcels",
        "holdfast queue show parcels --json",
        "holdfast queue show parcels --all --json | jq .payload",
    ),
)
@click.argument("name")
@_limit_option
@_cursor_option
@_all_option
def show(name: str, limit: int, cursor: str | None, all_: bool) -> None:
    """Show a message queue: settings, limits, how much is in it, and messages, not received."""
    from holdfast.cli.render.queues import queue_lines
    from holdfast.insight.limits import limits_of_messages

    as_json = current_settings().json

    @names_similar
    async def work(link: Link, name: str) -> None:
        queues, now = link.client.queues, await link.store.now()
        info: QueueInfo = await queues.get(name)
        counted: QueueMetrics
        [counted] = await queues.metrics(name)
        limits = limits_of_messages(await link.client.limits.list(), name)
        if not as_json:
            click.echo("\n".join(queue_lines(info, counted, limits, now)))
        found, _, rest = await _write(link, name, None if all_ else limit, cursor)
        if as_json and not all_:
            told = plain(info) | {"settings": info.settings}
            shown = {"queue": told, "metrics": counted, "limits": limits}
            write_json(shown | {"messages": found, "cursor": rest})
        elif rest is not None:
            click.echo(f"more with --cursor {rest}", err=True)

    call(lambda link: work(link, name))


async def _write(
    link: Link, queue: str, limit: int | None, cursor: str | None, origin: str | None = None
) -> tuple[list[dict[str, object]], int, str | None]:
    """Write messages page by page, at most `limit`, for people the beginnings of payloads.

    So no more than a page is held. Return the messages that are not written, how many there were,
    and the cursor after them: with --json and a limit they are a part of one answer.
    """
    from holdfast.cli.render.queues import WIDEST, message_json, write_messages

    as_json, now = current_settings().json, await link.store.now()
    clip = None if as_json else WIDEST + 1
    read = partial(link.client.queues.page, queue, clip=clip, origin=origin)
    found, count = list[dict[str, object]](), 0
    left, last = limit, False
    while not last:
        many = _PAGE if left is None or origin is not None else min(_PAGE, left)
        page = await read(limit=many, cursor=cursor)
        if left is not None:
            if len(page.messages) > left:  # of one origin: others may stand between them
                page = await read(limit=left, cursor=cursor)
            left -= len(page.messages)
        cursor, last = page.cursor, page.cursor is None or left == 0
        count += len(page.messages)
        if limit is None or not as_json:
            write_messages(page.messages, now, as_json, dead=origin is not None)
        else:
            found += map(message_json, page.messages)
    return found, count, cursor


@command(
    "send",
    examples=(
        """holdfast queue send parcels '{"id": 7}'""",
        "holdfast queue send parcels @parcel.json --delay 10m --id parcel-7",
        "holdfast queue send parcels 7 --at 2030-01-31T12:00",
        "holdfast queue send moves '\"load\"' --group customer-7",
    ),
)
@click.argument("name")
@click.argument("payload", required=False, callback=json_of("payload"))
@option("--delay TIME", "Due after TIME.", type=duration)
@option("--at MOMENT", "Due at MOMENT: 2030-01-31T12:00.", type=future_moment)
@option("--group GROUP", "Of a FIFO queue: whose order is kept.")
@option("--id ID", "A second send with this id does nothing.", name="dedup_id")
@option("--priority", "0 is the most urgent.", type=click.IntRange(0, 4))
@option("--header NAME=VALUE...", "A header; may be repeated.", name="headers", callback=_headers)
@names_similar
async def send(link: Link, name: str, payload: object, **options: Any) -> Answer:
    """Send a message: JSON, `@file`, or `-` for stdin."""
    sent = await link.client.queues.send(name, payload, **options)
    return Answer({"message_id": sent}, f"sent message {sent} to {name}")


@command(
    "receive",
    examples=(
        "holdfast queue receive parcels --limit 10 --ack",
        "holdfast queue receive parcels --wait 20s --json",
        """holdfast queue receive alarms --contains '{"site": "south"}'""",
    ),
)
@click.argument("name")
@option("--limit N", "At most N.", type=click.IntRange(1, _MOST), default=1, show_default=False)
@option(
    "--wait TIME", "Wait up to TIME for a message.", type=duration, default="0s", show_default=False
)
@option("--visibility TIME", "How long they are in flight.", type=duration)
@option("--contains JSON", "Only messages that contain this.", callback=json_of("condition"))
@option("--ack", "Acknowledge them once they are written.", name="acks")
def receive(name: str, acks: bool, **options: Any) -> None:
    """Receive messages. Exit code 1 if there is none.

    Without --ack they are in flight: acknowledge each with its receipt, or give it back.
    """
    from holdfast.cli.render.queues import write_received

    @names_similar
    async def work(link: Link, name: str) -> list[Message]:
        queues = link.client.queues
        found = await queues.receive(name, **options)
        write_received(found, current_settings().json)
        if acks:
            await queues.ack(found)
        return found

    end_of_receive(bool(call(lambda link: work(link, name))))


def end_of_receive(found: bool) -> None:
    """End a command that receives: with exit code 1 if there was no message."""
    if not found and not current_settings().json:
        click.echo("no message is due", err=True)
    click.get_current_context().exit(exits.OK if found else exits.FAILED)


def _receipts(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> list[Receipt]:
    """Return what receipts are read of. Raises click.UsageError."""
    from holdfast.types import Receipt

    try:
        return [Receipt.parse(text) for text in texts]
    except ValueError:
        raise click.UsageError(
            "Invalid value: a receipt is what `holdfast queue receive` writes with each message"
        ) from None


@command("ack", examples=("holdfast queue ack RECEIPT",))
@click.argument("receipts", nargs=-1, required=True, callback=_receipts)
async def ack(link: Link, receipts: list[Receipt]) -> Answer:
    """Acknowledge messages by their receipts. Exit code 1 if one is not in flight any more."""
    return _outcomes(await link.client.queues.ack(receipts), "acknowledged")


@command("nack", examples=("holdfast queue nack RECEIPT --delay 10s --error 'no van'",))
@click.argument("receipts", nargs=-1, required=True, callback=_receipts)
@option("--delay TIME", "Due again after TIME.", type=duration, default="0s", show_default=False)
@option("--error TEXT", "Why.")
async def nack(link: Link, receipts: list[Receipt], delay: float, error: str | None) -> Answer:
    """Give messages back by their receipts. Exit code 1 if one is not in flight any more."""
    returned = await link.client.queues.nack(receipts, delay=delay, error=error)
    return _outcomes(returned, "given back")


@command(
    "dead",
    examples=(
        "holdfast queue dead parcels",
        "holdfast queue dead parcels --json",
        "holdfast queue dead parcels --all --json | jq .error",
    ),
)
@click.argument("name")
@_limit_option
@_cursor_option
@_all_option
def dead(name: str, limit: int, cursor: str | None, all_: bool) -> None:
    """List the dead letters of a queue, each with the reason of the last time."""
    as_json = current_settings().json

    @names_similar
    async def work(link: Link, name: str) -> None:
        settings = (await link.client.queues.get(name)).settings
        letters, most = settings.dead_letters, None if all_ else limit
        found, count, rest = list[dict[str, object]](), 0, None
        if letters is not None:
            found, count, rest = await _write(link, letters, most, cursor, name)
        if as_json and not all_:
            write_json(found)
        elif not count:
            click.echo(f"{name} has no dead letters", err=True)
        elif not as_json:
            if settings.max_receives is not None:
                times = several(settings.max_receives, "receive")
                click.echo(f"a message moves here after {times}", err=True)
            click.echo(with_database(f"all errors: holdfast queue message {letters} ID"), err=True)
            click.echo(with_database(f"move them back: holdfast queue redrive {name}"), err=True)
        if rest is not None:
            click.echo(f"more with --cursor {rest}", err=True)

    call(lambda link: work(link, name))


@command(
    "message",
    examples=("holdfast queue message parcels 17", "holdfast queue message parcels.dead 17 --json"),
)
@click.argument("name")
@click.argument("message_id", metavar="ID", type=int)
@names_similar
async def message(link: Link, name: str, message_id: int) -> Answer:
    """Show a message that waits or is in flight, whole, with the errors of its receives.

    A dead letter is in the queue of the dead letters.
    """
    from holdfast.cli.render.queues import message_json, message_lines

    found = await link.client.messages.get(name, message_id)
    now = await link.store.now()
    shown = message_json(found) | {"failures": [plain(each) for each in found.failures]}
    return Answer(shown, lambda: click.echo("\n".join(message_lines(found, now))))


@command("why", examples=("holdfast queue why parcels", "holdfast queue why parcels 17"))
@click.argument("name")
@click.argument("message", required=False, type=click.IntRange(min=0))
@names_similar
async def why(link: Link, name: str, message: int | None) -> Answer:
    """Say what the messages of a queue wait for, or the one with the id MESSAGE.

    A pause, a moment, the end of a receive, an older message of the group, or a receive: and what
    would move it. Ids are in `holdfast queue show`.
    """
    from holdfast.insight.messages import explain_message, explain_queue

    found: QueueExplanation | MessageExplanation
    if message is None:
        found = await explain_queue(link.store, name)
    else:
        found = await explain_message(link.store, name, message)
    lines = [f"{found.state.replace('_', ' ')}: {found.because}"]
    lines += [f"  {with_database(detail)}" for detail in found.details]
    return Answer(found, "\n".join(lines))


def _outcomes(done: list[bool], what: str) -> Answer:
    late = done.count(False)

    def write() -> None:
        click.echo(f"{done.count(True)} {what}")
        if late:
            click.echo(f"{late} not: no longer in flight; others may have it", err=True)

    return Answer(done, write, ok=not late)
