"""Topics: events that are published, and who is subscribed to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Value
from holdfast.types.schedules import PausedBy, RunTarget
from holdfast.values.moments import to_datetime

SubscriptionKind: TypeAlias = Literal["workflow", "queue", "url", "run"]


class UrlTarget(Value, frozen=True, kw_only=True, tag="url"):
    """Events are sent to a URL, signed with a secret, which nothing shows.

    Inner addresses (of private networks, of this machine) are refused unless `allow_inner`.
    """

    url: str
    secret: str | None = None  # None in a record
    allow_inner: bool = False

    def __repr__(self) -> str:
        return f"UrlTarget(url={self.url!r}, allow_inner={self.allow_inner})"


class QueueTarget(Value, frozen=True, kw_only=True, tag="queue"):
    """Events are sent to a message queue; in a FIFO queue, the topic is the group."""

    queue: str


EventTarget: TypeAlias = RunTarget | QueueTarget | UrlTarget


class NewEvent(Value, frozen=True, kw_only=True):
    """An event to publish. `payload` is JSON text. With an id, it is published once.

    One that another shard has forwarded is not passed on to others.
    """

    topic: str
    payload: str = "null"
    event_id: str | None = None
    forwarded: bool = False


class Published(Value, frozen=True, kw_only=True):
    """What an event has reached: the number of targets of each kind.

    `is_new` is False if the event, by its id, had been published before: then nothing was done.
    `refused` is the number of starts that a rule of their workflow refused.
    """

    event_id: str
    is_new: bool = True
    workflows: int = 0
    runs: int = 0
    queues: int = 0
    urls: int = 0
    refused: int = 0


class NewSubscription(Value, frozen=True, kw_only=True):
    """A subscription to make: events of topics that fit `pattern`, that contain `match`.

    `match` is JSON text; None for any payload.
    """

    pattern: str
    target: EventTarget
    match: str | None = None


class SubscriptionRecord(Value, frozen=True, kw_only=True):
    """A subscription in the database.

    `target` is what an event starts; None for the subscription of a run, which `run_id` names.
    `app` is set if the code of an app declares it; it is paused by `code` if that no longer does.
    """

    subscription_id: int
    pattern: str
    match: str | None
    kind: SubscriptionKind
    target: EventTarget | None
    run_id: UUID | None
    app: str | None
    paused_at: int | None
    paused_by: PausedBy | None
    created_at: int


class DeclaredSubscriptions(Value, frozen=True):
    """What a declaration has changed: patterns that were added, paused and resumed."""

    added: Sequence[str] = ()
    paused: Sequence[str] = ()
    resumed: Sequence[str] = ()


class ClaimedDelivery(Value, frozen=True, kw_only=True):
    """An event to send to a URL, and the number of the attempt."""

    delivery_id: int
    attempt: int
    subscription_id: int
    event_id: str
    topic: str
    payload: str
    published_at: int
    url: str
    secret: str
    allow_inner: bool

    def body(self) -> bytes:
        """Return the body of the request."""
        moment = to_datetime(self.published_at).isoformat()
        head = f'"type":{json.dumps(self.topic)},"timestamp":{json.dumps(moment)}'
        return f'{{{head},"data":{self.payload}}}'.encode()


class EndedDelivery(Value, frozen=True):
    """What came of an attempt: the status of the answer, and an error if it failed.

    The next attempt begins after `retry_after` seconds at the earliest.
    """

    delivery_id: int
    attempt: int
    status: int | None = None
    error: str | None = None
    retry_after: float = 0.0


class DeliveryRecord(Value, frozen=True, kw_only=True):
    """An event that was not yet delivered to a URL.

    `attempts` have begun; the next is due at `due_at`. After five that failed it is dead: `dead_at`
    says since when, `status` and `error` why.
    """

    delivery_id: int
    subscription_id: int
    event_id: str
    topic: str
    payload: str
    published_at: int
    attempts: int
    due_at: int | None
    status: int | None
    error: str | None
    dead_at: int | None
    url: str | None
