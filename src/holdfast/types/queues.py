"""Message queues: what they are, what is sent to them and received from them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Self, TypeAlias
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput
from holdfast.types.base import Notice, Value

# Of a dead letter: how often it was received in the queue that it comes from.
RECEIVES_HEADER: Final = "holdfast-receives"


class QueueSettings(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a message queue is.

    In a queue that is `fifo`, each message has a group, and one delivery of a group at a time is
    in flight. With `has_priorities` a message may be more or less urgent; with `has_filters` a
    receive may have a condition. A message is in flight for `visibility_seconds`. If it was
    received `max_receives` times and given back each time, it moves to the queue `dead_letters`.
    A deduplication id is known for `dedup_seconds`. Acknowledged messages are kept for
    `keep_seconds`; None: they are deleted at once.
    """

    name: str
    fifo: bool = False
    has_priorities: bool = False
    has_filters: bool = False
    visibility_seconds: float = 30.0
    max_receives: int | None = None
    dead_letters: str | None = None
    dedup_seconds: float = 300.0
    keep_seconds: float | None = None


class QueueInfo(Value, frozen=True):
    """A message queue. While it `is_paused`, receives find nothing."""

    settings: QueueSettings
    created_at: int
    is_paused: bool


class NewMessage(Value, frozen=True, omit_defaults=True):
    """A message to send. `payload` is JSON text.

    It is due `delay_seconds` from now, or at the moment `due_at`. A message whose `dedup_id` is
    known is not sent again. The most urgent priority is 0; None is 2.
    """

    payload: str
    delay_seconds: float | None = None
    group: str | None = None
    dedup_id: str | None = None
    priority: int | None = None
    headers: Mapping[str, str] | None = None
    due_at: int | None = None


class MessageChange(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What to change of a message that waits; None leaves it as it is. `payload` is JSON text.

    It is due `delay_seconds` from now, or at the moment `due_at`.
    """

    payload: str | None = None
    delay_seconds: float | None = None
    due_at: int | None = None
    priority: int | None = None


class Receive(Value, frozen=True, kw_only=True):
    """What to receive: up to `limit` messages; of a FIFO queue, so many groups.

    Of each group come up to `per_group` messages. `visibility_seconds` None is the queue's. Only
    messages that contain the JSON text `contains`. `since` is the `newest` of an earlier answer:
    what came due before is not looked at. Callers pass None now and then: only then are messages
    found that were committed late, and those whose visibility ended given back. `acks` are
    deliveries of the queue that are acknowledged in the same transaction. With `pops`, so is what
    is received.
    """

    queue: str
    limit: int = 1
    visibility_seconds: float | None = None
    consumer: str | None = None
    since: Sequence[int | None] | None = None
    contains: str | None = None
    per_group: int = 1
    acks: Sequence[UUID] = ()
    pops: bool = False


class StoredMessage(Value, frozen=True):
    """A message in flight. `payload` is JSON text; `attempts` counts receives with this one.

    `error` says why it was given back last.
    """

    message_id: int
    payload: str
    attempts: int
    sent_at: int
    headers: Mapping[str, str] | None = None
    error: str | None = None


class MessageDelivery(Value, frozen=True):
    """What one receive took from a plain queue, or from one group of a FIFO queue."""

    queue_id: int
    delivery_id: UUID
    group: str | None
    messages: Sequence[StoredMessage]


class Received(Value, frozen=True, kw_only=True):
    """The answer to a receive.

    `next_due_at` is when to ask again, None for never: at `now` or before if there may be more.
    `newest` is what the next receive passes as `since`. `acked` says of each of the receive's acks
    if it was in flight still. The notices wake other receivers.
    """

    now: int
    next_due_at: int | None = None
    newest: Sequence[int | None] | None = None
    acked: Sequence[bool] = ()
    deliveries: Sequence[MessageDelivery] = ()
    notices: Sequence[Notice] = ()


class Receipt(Value, frozen=True):
    """Proof of a receive: the place of a message in its delivery, from 1 on.

    Without a place it stands for all of the delivery that is in flight still. What was given back
    is not in the delivery any more, so an old receipt changes nothing.
    """

    queue_id: int
    delivery_id: UUID
    place: int | None = None

    def __str__(self) -> str:
        """Return it as a text, as SQL and the command line have it."""
        return f"{self.queue_id}.{self.delivery_id}.{self.place}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Return the receipt of a text. Raises ValueError, also for numbers that no receipt has.

        >>> str(Receipt.parse("1.00000000-0000-0000-0000-000000000001.2"))
        '1.00000000-0000-0000-0000-000000000001.2'
        """
        queue_text, delivery_id, place_text = text.split(".")
        queue_id, place = int(queue_text), int(place_text)
        if not (0 < queue_id < 2**31 and 0 < place < 2**15):
            raise ValueError(text)
        return cls(queue_id, UUID(delivery_id), place)


class MessageReturn(Value, frozen=True):
    """A message to give back: due again after a delay, or a dead letter.

    `error` says why. If it is not `counted`, the receive does not count as an attempt. One that is
    `discarded` is a dead letter now; of a queue without dead letters, it is acknowledged.
    """

    receipt: Receipt
    delay_seconds: float | None = None
    error: str | None = None
    counted: bool = True
    discarded: bool = False


class QueueMetrics(Value, frozen=True):
    """How much is in a message queue; counts end at a limit, and `more` names those that did.

    `due` may be received, `delayed` waits for its moment, `in_flight` was received, `dead` waits in
    the queue of the dead letters. `oldest_due_at` is since when the oldest of what is due has been.
    """

    name: str
    due: int
    delayed: int
    in_flight: int
    dead: int
    oldest_due_at: int | None
    more: tuple[str, ...] = ()

    @classmethod
    def counted(
        cls,
        name: str,
        due: int,
        delayed: int,
        in_flight: int,
        dead: int,
        oldest_due_at: int | None,
        *,
        limit: int,
    ) -> Self:
        """Return what was counted to a limit, which `due` and `delayed` have together."""
        ended = {
            "due": due + delayed >= limit,
            "delayed": due + delayed >= limit,
            "in_flight": in_flight >= limit,
            "dead": dead >= limit,
        }
        more = tuple(each for each, is_so in ended.items() if is_so)
        return cls(name, due, delayed, in_flight, dead, oldest_due_at, more)


class ListedMessage(Value, frozen=True, kw_only=True):
    """A message that was looked at, not received. `origin` is the queue whose dead letter it is.

    `visible_at` is when it may be received: of one in flight, the end of its visibility.
    """

    message_id: int
    in_flight: bool
    group: str | None
    priority: int
    attempts: int
    visible_at: int
    sent_at: int
    origin: str | None
    payload: str
    headers: Mapping[str, str] | None
    error: str | None

    @property
    def receives(self) -> str:
        """How often it was received: a dead letter, in the queue that it comes from."""
        known = None if self.origin is None else (self.headers or {}).get(RECEIVES_HEADER)
        return str(self.attempts) if known is None else known


class MessageFailure(Value, frozen=True):
    """A receive that failed: when it was given back, in microseconds, and with which error."""

    failed_at: int
    error: str


class FoundMessage(ListedMessage, frozen=True, kw_only=True):
    """A message that was looked at alone: also the errors of its receives, the newest 20 of them.

    Those of a dead letter are of the queue that it comes from, and then of its own.
    """

    failures: tuple[MessageFailure, ...] = ()


class MessagePage(Value, frozen=True):
    """Messages that were looked at; `cursor` continues after them, None if there are no more."""

    messages: list[ListedMessage]
    cursor: str | None


class KeptMessage(Value, frozen=True, kw_only=True):
    """A message that was acknowledged, and is kept for a time."""

    message_id: int
    acked_at: int
    group: str | None
    attempts: int
    sent_at: int
    payload: str
    headers: Mapping[str, str] | None


def write_place(place: Sequence[str | None]) -> str:
    """Return the cursor that continues after a place among the messages of a queue."""
    return urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def read_place(cursor: str) -> list[str | None]:
    """Return the place that a cursor has. Raises InvalidInput."""
    try:
        if not isinstance(cursor, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(cursor)
        place = _decode_place(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        flying, *numbers = place[0] or "", *(each or "0" for each in (*place[1:3], place[4]))
        if flying.lower() == "true":
            UUID(place[3] or "")
        if flying.lower() not in ("true", "false") or max(map(int, numbers)) >= 2**63:
            raise ValueError(cursor)
        return place
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput(f"{cursor!r} is not a cursor of a list of messages") from None


_Place: TypeAlias = Annotated[list[str | None], msgspec.Meta(min_length=5, max_length=5)]
_decode_place: Final[Callable[[bytes], list[str | None]]] = msgspec.json.Decoder(_Place).decode
