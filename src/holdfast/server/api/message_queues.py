"""Operations of message queues: create them, send messages, receive, acknowledge, redrive them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from holdfast.client.message import Message
from holdfast.codec import raw
from holdfast.errors import QueueExists, QueueInUse, UnknownQueue
from holdfast.server.api.fields import Changed, Key, Length, Moment, Name, Seconds, Text
from holdfast.server.api.runs import one_id
from holdfast.server.operations import Body, Call, Nothing, Operation, Reply
from holdfast.server.problems import Problem
from holdfast.server.waiting import place, within
from holdfast.types import QueueSettings, Receipt
from holdfast.values.composing import shaped

Most = Annotated[int, Meta(ge=1, le=100)]


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A message queue."""

    settings: QueueSettings
    created_at: datetime
    is_paused: bool


class MessageQueueList(msgspec.Struct, frozen=True):
    """The message queues, by name."""

    queues: list[MessageQueue]


class NewQueue(Body, frozen=True):
    """What a new message queue is."""

    name: Name
    fifo: bool = False
    priorities: bool = False
    filters: bool = False
    visibility: Length = 30.0
    max_receives: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    dead_letters: Name | None = None
    deduplication: Length = 300.0
    keep: Length | None = None


class NewMessageBody(Body, frozen=True):
    """A message to send. The Idempotency-Key is its deduplication id."""

    payload: Any = None
    delay: Length | None = None
    at: Moment | None = None
    group: Key | None = None
    dedup_id: Key | None = None
    priority: Annotated[int, Meta(ge=0, le=4)] | None = None
    headers: Annotated[dict[Key, Text], Meta(max_length=16)] | None = None


class Sent(msgspec.Struct, frozen=True):
    """The message's id; of a deduplication id that is known, that of the first message."""

    message_id: int


class ReceiveBody(Body, frozen=True):
    """How many messages, for how long they are in flight, and how long to wait for them."""

    limit: Most = 1
    visibility: Length | None = None
    wait: Seconds = 0.0
    contains: Any = None
    per_group: Most = 1


class PopBody(Body, frozen=True):
    """How many messages to receive and acknowledge."""

    limit: Most = 1
    contains: Any = None
    per_group: Most = 1


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in flight; the receipt acknowledges it or gives it back."""

    message_id: int
    receipt: str
    payload: msgspec.Raw | None
    group: str | None
    attempts: int
    sent_at: datetime
    headers: dict[str, str]
    error: str | None


class ReceivedList(msgspec.Struct, frozen=True):
    """Messages that were received, none if nothing is due."""

    messages: list[ReceivedMessage]


Receipts = Annotated[
    tuple[Annotated[str, Meta(max_length=100)], ...], Meta(min_length=1, max_length=100)
]


class AckBody(Body, frozen=True):
    """Messages that are done."""

    receipts: Receipts


class NackBody(Body, frozen=True):
    """Messages to give back: due again after the delay."""

    receipts: Receipts
    delay: Length = 0
    error: Text | None = None


class ExtendBody(Body, frozen=True):
    """Messages to keep in flight for so long from now."""

    receipts: Receipts
    visibility: Length


class InFlight(msgspec.Struct, frozen=True):
    """For each receipt: whether the message was in flight still."""

    in_flight: list[bool]


class Purged(msgspec.Struct, frozen=True):
    """How many messages were deleted."""

    deleted: int


class RedriveBody(Body, frozen=True):
    """Which dead letters to move back; without ids, all of the queue."""

    message_ids: (
        Annotated[
            tuple[Annotated[int, Meta(ge=1, lt=10**18)], ...], Meta(min_length=1, max_length=1000)
        ]
        | None
    ) = None


class Redriven(msgspec.Struct, frozen=True):
    """How many dead letters were moved back."""

    moved: int


async def list_message_queues(call: Call[Nothing, None]) -> MessageQueueList:
    """List the message queues."""
    found = await call.site.reader.queues.list()
    return MessageQueueList([shaped(MessageQueue, each) for each in found])


async def create_message_queue(call: Call[Nothing, NewQueue]) -> Reply:
    """Create a message queue; 200 if one with the same settings exists."""
    created = await call.site.client.queues.create(**asdict(call.body))
    return Reply(Changed(created), 201 if created else 200)


async def delete_message_queue(call: Call[Nothing, None]) -> Changed:
    """Delete a message queue with all that is in it."""
    return Changed(await call.site.client.queues.delete(call.path["name"]))


async def send_message(call: Call[Nothing, NewMessageBody]) -> Reply:
    """Send a message to a queue."""
    given: dict[str, Any] = asdict(call.body)
    given["dedup_id"] = one_id(call, call.body.dedup_id, "dedup_id")
    message_id = await call.site.client.queues.send(call.path["name"], **given)
    return Reply(Sent(message_id), 201)


async def receive_messages(call: Call[Nothing, ReceiveBody]) -> ReceivedList:
    """Receive messages: they are in flight until they are acknowledged, given back, or late."""
    given: dict[str, Any] = asdict(call.body)
    wait = given["wait"] = max(0.0, min(call.body.wait, call.site.stream_seconds - 1))
    with place(call) if wait else nullcontext():
        work = call.site.client.queues.receive(call.path["name"], **given)
        found = await (within(call, work, call.site.stream_seconds) if wait else work)
    return ReceivedList([_message(each) for each in found or ()])


async def pop_messages(call: Call[Nothing, PopBody]) -> ReceivedList:
    """Receive messages and acknowledge them at once: each comes at most once.

    They are lost if the answer is.
    """
    found = await call.site.client.queues.pop(call.path["name"], **asdict(call.body))
    return ReceivedList([_message(each) for each in found])


async def ack_messages(call: Call[Nothing, AckBody]) -> InFlight:
    """Acknowledge messages: they are done."""
    return InFlight(await call.site.client.queues.ack(_read(call.body.receipts)))


async def nack_messages(call: Call[Nothing, NackBody]) -> InFlight:
    """Give messages back; a message that was received too often becomes a dead letter."""
    body, queues = call.body, call.site.client.queues
    return InFlight(await queues.nack(_read(body.receipts), delay=body.delay, error=body.error))


async def extend_messages(call: Call[Nothing, ExtendBody]) -> InFlight:
    """Keep messages in flight for longer; what was received together is kept together."""
    body = call.body
    return InFlight(await call.site.client.queues.extend(_read(body.receipts), body.visibility))


async def purge_messages(call: Call[Nothing, None]) -> Purged:
    """Delete all messages that wait in a queue; what is in flight stays."""
    return Purged(await call.site.client.queues.purge(call.path["name"]))


async def redrive_messages(call: Call[Nothing, RedriveBody]) -> Redriven:
    """Move dead letters back to the queue that they come from: they are due at once."""
    moved = await call.site.client.queues.redrive(call.path["name"], call.body.message_ids)
    return Redriven(moved)


def _message(message: Message) -> ReceivedMessage:
    return ReceivedMessage(
        message_id=message.id,
        receipt=str(message.receipt),
        payload=raw(message.stored.payload),
        group=message.group,
        attempts=message.attempts,
        sent_at=message.sent_at,
        headers=dict(message.headers),
        error=message.error,
    )


def _read(texts: tuple[str, ...]) -> list[Receipt]:
    """Return the receipts that texts mean. Raises Problem 422."""
    found: list[Receipt] = []
    for text in texts:
        try:
            found.append(Receipt.parse(text))
        except ValueError:
            raise Problem(422, "bad-receipt", f"{text!r} is not a receipt") from None
    return found


_QUEUE: Final = "/v1/message-queues/{name}"

OPERATIONS: Final = (
    Operation("GET /v1/message-queues", "read", list_message_queues),
    Operation(
        "POST /v1/message-queues",
        "admin",
        create_message_queue,
        answers=(Changed,),
        statuses=(201, 200),
        problems=(QueueExists,),
    ),
    Operation(
        f"DELETE {_QUEUE}", "admin", delete_message_queue, problems=(QueueInUse, UnknownQueue)
    ),
    Operation(
        f"POST {_QUEUE}/messages",
        "write",
        send_message,
        answers=(Sent,),
        statuses=(201,),
        problems=(UnknownQueue,),
        keyed=True,
    ),
    Operation(
        f"POST {_QUEUE}/receive",
        "write",
        receive_messages,
        body_required=False,
        problems=(UnknownQueue,),
    ),
    Operation(
        f"POST {_QUEUE}/pop", "write", pop_messages, body_required=False, problems=(UnknownQueue,)
    ),
    Operation(f"POST {_QUEUE}/ack", "write", ack_messages, problems=(UnknownQueue,)),
    Operation(f"POST {_QUEUE}/nack", "write", nack_messages, problems=(UnknownQueue,)),
    Operation(f"POST {_QUEUE}/extend", "write", extend_messages, problems=(UnknownQueue,)),
    Operation(
        f"POST {_QUEUE}/redrive",
        "write",
        redrive_messages,
        body_required=False,
        problems=(UnknownQueue,),
    ),
    Operation(f"POST {_QUEUE}/purge", "admin", purge_messages, problems=(UnknownQueue,)),
)
