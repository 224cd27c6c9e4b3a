"""What callers do with message queues. Calls that met a lock are repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from holdfast.client.session import Session
from holdfast.client.transactions import ack_within, send_within
from holdfast.codec import check_open, decoder, encode, storable
from holdfast.definitions.options import option_seconds
from holdfast.errors import ConfigurationError, InvalidInput, QueueExists
from holdfast.store.shared_calls import MAX_BATCH, persist
from holdfast.types import (
    MessageReturn,
    NewMessage,
    QueueSettings,
    Receipt,
    Receive,
    StoredMessage,
    Value,
)
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import checked_micros, to_datetime
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.texts import check_headers, check_id, check_text, clipped, several

_PURGED_AT_ONCE: Final = 10_000
_MOVED_AT_ONCE: Final = 1000


class Outgoing(Value, frozen=True):
    """A message to send with others; see `Queues.send_many`."""

    payload: object = None
    delay: Duration | None = None
    group: str | None = None
    dedup_id: str | None = None
    priority: int | None = None
    headers: Mapping[str, str] | None = None
    at: datetime | None = None


@dataclass(frozen=True)
class MessageData:
    """What was received: the values of a message."""

    queue: str
    receipt: Receipt
    group: str | None
    stored: StoredMessage
    type: object

    @property
    def id(self) -> int:
        """Its id, which is the same for all its receives."""
        return self.stored.message_id

    @property
    def attempts(self) -> int:
        """How often it was received, with this time."""
        return self.stored.attempts

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent beside the payload."""
        return self.stored.headers or {}

    @property
    def sent_at(self) -> datetime:
        """When it was sent, in UTC."""
        return to_datetime(self.stored.sent_at)

    @property
    def error(self) -> str | None:
        """Why it was given back last."""
        return self.stored.error

    @cached_property
    def payload(self) -> object:
        """What was sent, of the type that the receive asked for.

        Raises InvalidInput if it does not fit the type, and PayloadLocked without its key.
        """
        check_open((self.stored.payload,))
        return decoder(self.type)(self.stored.payload)


def encode_message(message: Outgoing) -> NewMessage:
    """Check and encode a message to send. Raises InvalidInput, PayloadError, ConfigurationError."""
    for what, text in (("group", message.group), ("deduplication id", message.dedup_id)):
        if text is not None:
            check_id(what, text)
    if message.delay is not None and message.at is not None:
        raise ConfigurationError("give either delay or at, not both")
    return NewMessage(
        encode(message.payload),
        None if message.delay is None else seconds(message.delay),
        message.group,
        message.dedup_id,
        message.priority,
        None if message.headers is None else check_headers(message.headers),
        None if message.at is None else checked_micros(message.at),
    )


def encode_messages(messages: Iterable[Outgoing]) -> list[NewMessage]:
    """Check and encode messages to send; raises what `encode_message` raises."""
    return [encode_message(each) for each in several("Outgoing messages", messages, Outgoing)]


def check_page(limit: int, clip: int | None = None, origin: str | None = None) -> None:
    """Raise ConfigurationError for what cannot say which messages are listed, and InvalidName."""
    whole_number(limit, "a list of messages", "limit", 0)
    if clip is not None:
        whole_number(clip, "a list of messages", "clip", 0)
    if origin is not None:
        check_queue_name(origin)


def encode_receive(
    queue: str,
    limit: int,
    visibility: Duration | None,
    contains: object,
    per_group: int,
    consumer: str | None = None,
) -> Receive:
    """Check and encode a receive. Raises InvalidName, ConfigurationError and PayloadError."""
    return Receive(
        queue=check_queue_name(queue),
        limit=whole_number(limit, f"a receive from {queue}", "limit", 0),
        visibility_seconds=None if visibility is None else seconds(visibility),
        consumer=None if consumer is None else check_text("consumer", consumer),
        contains=None if contains is None else encode(contains),
        per_group=whole_number(per_group, f"a receive from {queue}", "per_group", 0),
    )


Messages: TypeAlias = MessageData | Receipt | Iterable[MessageData | Receipt]
"""Messages that were received, or their receipts: one or more."""


def receipts_of(messages: Messages) -> list[Receipt]:
    """Return the receipts of messages."""
    given = [messages] if isinstance(messages, MessageData | Receipt) else messages
    given = several("messages that were received", given, MessageData | Receipt)
    return [each.receipt if isinstance(each, MessageData) else each for each in given]


def changes_of(
    name: str,
    visibility: Duration | None,
    max_receives: int | None,
    dead_letters: str | None,
    deduplication: Duration | None,
    keep: Duration | None,
) -> dict[str, object]:
    """Return the settings of a queue that a caller of `Queues.update` wants, by field."""
    of, changes = f"message queue {name}", dict[str, object]()
    if visibility is not None:
        changes["visibility_seconds"] = option_seconds(visibility, of, "visibility")
    if max_receives is not None:
        changes["max_receives"] = whole_number(max_receives, of, "max_receives", 0) or None
    if max_receives == 0 or dead_letters is not None:
        changes["dead_letters"] = dead_letters and check_queue_name(dead_letters)
    if deduplication is not None:
        changes["dedup_seconds"] = option_seconds(deduplication, of, "deduplication")
    if keep is not None:
        changes["keep_seconds"] = option_seconds(keep, of, "keep") or None
    return changes


def _other_settings(wanted: QueueSettings, found: QueueSettings) -> QueueExists:
    """Return the error for a queue that exists with other settings; it names those."""
    if wanted.max_receives is not None and wanted.dead_letters is None:
        wanted = replace(wanted, dead_letters=f"{wanted.name}.dead")
    pairs = {
        each: (getattr(found, each), getattr(wanted, each)) for each in wanted.__struct_fields__
    }
    differ = [f"{each} is {has}, not {to}" for each, (has, to) in pairs.items() if has != to]
    return QueueExists(
        f"there is a message queue {wanted.name} with other settings: {', '.join(differ)}. "
        "Update it, or delete it first"
    )


async def ack_messages(session: Session, messages: Messages, connection: object) -> list[bool]:
    """Acknowledge messages. Return what `Queues.ack` says."""
    receipts = receipts_of(messages)
    if connection is not None:
        return await ack_within(connection, receipts, schema=session.schema)
    return await session.change(partial(session.store.ack_messages, receipts))


async def nack_messages(
    session: Session, messages: Messages, delay: Duration, error: str | None, counted: bool
) -> list[bool]:
    """Give messages back. Return what `Queues.nack` says."""
    if error is not None and not isinstance(error, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"error {clipped(error)} is not a str: of an exception, give its text")
    true_or_false(counted, "counted")
    why = None if error is None else storable(error)
    returns = [MessageReturn(each, seconds(delay), why, counted) for each in receipts_of(messages)]
    return await session.change(partial(session.store.return_messages, returns))


async def create_queue(session: Session, settings: QueueSettings) -> bool:
    """Create a queue. Return False if one with the same settings exists.

    Raises QueueExists, which names the settings that differ.
    """
    try:
        return await persist(partial(session.store.create_queue, settings))
    except QueueExists:
        for found in await session.store.list_queues(settings.name):
            raise _other_settings(settings, found.settings) from None
        raise


async def purge_messages(session: Session, queue: str) -> int:
    """Delete all messages that wait in a queue. Return how many."""
    name, limit = check_queue_name(queue), _PURGED_AT_ONCE
    purge = partial(session.store.purge_messages, name, limit=limit)
    return await _until_fewer(limit, lambda: persist(purge))


async def redrive_messages(session: Session, queue: str, message_ids: Iterable[int] | None) -> int:
    """Move dead letters back to their queue, all or these. Return how many."""
    name, limit, store = check_queue_name(queue), _MOVED_AT_ONCE, session.store
    ids = None if message_ids is None else several("message_ids", message_ids, int)
    now = await persist(store.now)
    move = partial(store.redrive_messages, name, limit=limit, message_ids=ids, before=now)
    return await _until_fewer(limit, lambda: session.change(move))


async def _until_fewer(limit: int, call: Callable[[], Awaitable[int]]) -> int:
    """Repeat a call until it has found fewer than its limit; return how many there were in all.

    Not until there is none: meanwhile others send messages, and what was moved may fail again.
    """
    total = 0
    while True:
        count = await call()
        total += count
        if count < limit:
            return total


async def extend_messages(session: Session, messages: Messages, visibility: Duration) -> list[bool]:
    """Keep messages in flight. Return what `Queues.extend` says."""
    call = partial(
        session.store.extend_deliveries, receipts_of(messages), seconds=seconds(visibility)
    )
    return await persist(call)


async def send_messages(
    session: Session, queue: str, messages: Sequence[NewMessage], connection: object, notify: bool
) -> list[int]:
    """Send messages, within the transaction of a connection if one is given. Return their ids.

    Else one message is sent in a transaction with others of the same moment, many in chunks.
    """
    check_queue_name(queue)
    if connection is not None:
        sealed = session.sealed_messages(queue, messages)
        return await send_within(connection, queue, sealed, schema=session.schema, notify=notify)
    if notify:
        raise ConfigurationError("notify is for a send within a connection's transaction")
    sends = session.sends(queue)
    if len(messages) == 1:
        return [await sends.submit(messages[0])]
    return [
        message_id
        for at in range(0, len(messages), MAX_BATCH)
        for message_id in await sends.send(messages[at : at + MAX_BATCH])
    ]
