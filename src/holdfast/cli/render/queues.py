"""Write message queues and messages: as tables and lines for people, as JSON for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.render.console import console, folding, numbers, plain, table, whole, write_json
from holdfast.codec import raw
from holdfast.insight.limits import use_text
from holdfast.insight.wording import ago, count_text, length, length_of, several
from holdfast.values.moments import to_datetime

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.client import Message
    from holdfast.types import FoundMessage, LimitInfo, ListedMessage, QueueInfo, QueueMetrics

WIDEST: Final = 60  # characters of a payload


def queue_table(found: Sequence[QueueInfo], counted: Sequence[QueueMetrics], now: int) -> Table:
    """Return message queues as a table, a row each."""
    counts = {each.name: each for each in counted}
    times = numbers("due", "oldest", "delayed", "in flight", "dead")
    shown = table(folding("queue"), times, whole(""))
    for info in found:
        count = counts.get(info.settings.name)
        cells = ["", "", "", "", ""]
        if count is not None:
            since = count.oldest_due_at
            cells = [
                count_text(count, "due"),
                "" if since is None else length(now - since),
                *(count_text(count, name) for name in ("delayed", "in_flight", "dead")),
            ]
        shown.add_row(info.settings.name, *cells, ", ".join(_marks(info)))
    return shown


def _marks(info: QueueInfo) -> list[str]:
    settings = info.settings
    marks = {
        "FIFO": settings.fifo,
        "priorities": settings.has_priorities,
        "filters": settings.has_filters,
        "paused": info.is_paused,
    }
    return [mark for mark, has in marks.items() if has]


def queue_lines(
    info: QueueInfo, count: QueueMetrics, limits: Sequence[LimitInfo], now: int
) -> list[str]:
    """Return the lines that describe a message queue and its limits."""
    settings = info.settings
    lines = [
        " ".join([settings.name, *(f"[{mark}]" for mark in _marks(info))]),
        f"  {count_text(count, 'due')} due, {count_text(count, 'delayed')} delayed, "
        f"{count_text(count, 'in_flight')} in flight, {count_text(count, 'dead')} dead",
        f"  in flight for {length_of(settings.visibility_seconds)}",
    ]
    if count.oldest_due_at is not None:
        lines.append(f"  the oldest is due since {length(now - count.oldest_due_at)}")
    if settings.max_receives is not None:
        lines.append(
            f"  after {settings.max_receives} receives a message moves to {settings.dead_letters}"
        )
    if settings.keep_seconds is not None:
        kept = length_of(settings.keep_seconds)
        lines.append(f"  acknowledged messages are kept for {kept}")
    return [*lines, *(f"  limit: {use_text(each)}" for each in limits)]


def message_json(message: ListedMessage) -> dict[str, object]:
    """Return a message for JSON, its payload as JSON."""
    return plain(message) | {"payload": raw(message.payload)}


def message_lines(message: FoundMessage, now: int) -> list[str]:
    """Return the lines that describe a message, with all of its payload."""
    times = several(int(message.receives), "receive")
    lines = [f"message {message.message_id}: {_state(message, now)}, {times}"]
    if message.origin is not None:
        lines.append(f"  a dead letter of {message.origin}")
    if message.group is not None:
        lines.append(f"  group {message.group}")
    if message.priority != 2:
        lines.append(f"  priority {message.priority}")
    lines.append(f"  sent {ago(message.sent_at, now)}")
    lines += [f"  {name}: {text}" for name, text in (message.headers or {}).items()]
    lines += [f"  failed {ago(each.failed_at, now)}: {each.error}" for each in message.failures]
    if message.error and not message.failures:
        lines.append(f"  error: {message.error}")
    return [*lines, message.payload]


def message_table(found: Sequence[ListedMessage], now: int, *, dead: bool = False) -> Table:
    """Return messages as a table, a row each."""
    attempts = numbers("receives" if dead else "attempts")
    shown = table(whole("message", "state"), attempts, folding("payload", "error"))
    for each in found:
        text = each.payload if len(each.payload) <= WIDEST else f"{each.payload[:WIDEST]}…"
        named = text if each.group is None else f"{each.group}: {text}"
        times = each.receives if dead else str(each.attempts)
        shown.add_row(str(each.message_id), _state(each, now), times, named, each.error or "")
    return shown


def write_messages(
    found: Sequence[ListedMessage], now: int, as_json: bool, *, dead: bool = False
) -> None:
    """Write a page of messages: as a table, or as JSON, a line each."""
    if as_json:
        for each in found:
            write_json(message_json(each))
    elif found:
        console().print(message_table(found, now, dead=dead))


def _state(message: ListedMessage, now: int) -> str:
    left = message.visible_at - now
    if message.in_flight:
        return f"in flight, {length(left)} left" if left > 0 else "in flight, time is up"
    return f"due in {length(left)}" if left > 0 else "due"


def write_received(found: Sequence[Message], as_json: bool, *, receipts: bool = True) -> None:
    """Write messages that were received, each with its receipt."""
    if as_json:
        write_json(
            [
                {
                    "message_id": each.id,
                    **({"receipt": str(each.receipt)} if receipts else {}),
                    "group": each.group,
                    "attempts": each.attempts,
                    "sent_at": to_datetime(each.stored.sent_at),
                    "payload": raw(each.stored.payload),
                    "headers": each.headers,
                    "error": each.error,
                }
                for each in found
            ]
        )
        return
    for each in found:
        click.echo(each.stored.payload)
        receipt = f", receipt {each.receipt}" if receipts else ""
        console().print(
            f"message {each.id}, attempt {each.attempts}{receipt}", style="dim", soft_wrap=True
        )
