"""Operations on one message of a queue, by its id: look at it, change it, cancel it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from holdfast.codec import raw
from holdfast.errors import MessageInFlight, MessageNotFound, UnknownQueue
from holdfast.server.api.fields import Changed, Length, Moment
from holdfast.server.operations import Body, Call, Nothing, Operation
from holdfast.server.problems import Problem
from holdfast.types import FoundMessage
from holdfast.values.composing import shaped


class FailedReceive(msgspec.Struct, frozen=True):
    """A receive that failed."""

    failed_at: datetime
    error: str


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits or is in flight; of a dead letter, `origin` is where it comes from.

    `failures` are the newest 20 of its receives that failed.
    """

    message_id: int
    in_flight: bool
    payload: msgspec.Raw | None
    group: str | None
    priority: int
    attempts: int
    visible_at: datetime
    sent_at: datetime
    origin: str | None
    headers: dict[str, str]
    error: str | None
    failures: list[FailedReceive]

    @classmethod
    def of(cls, found: FoundMessage) -> QueuedMessage:
        """Return what the API says of a message."""
        return shaped(
            cls,
            found,
            payload=raw(found.payload),
            headers=dict(found.headers or {}),
            failures=[shaped(FailedReceive, each) for each in found.failures],
        )


class ChangeBody(Body, frozen=True):
    """What to change; the rest stays. `delay` counts from now."""

    payload: Any | UnsetType = UNSET
    delay: Length | None = None
    at: Moment | None = None
    priority: Annotated[int, Meta(ge=0, le=4)] | None = None


async def get_queued_message(call: Call[Nothing, None]) -> QueuedMessage:
    """Return a message that waits in a queue or is in flight."""
    found = await call.site.reader.messages.get(call.path["name"], _number(call))
    return QueuedMessage.of(found)


async def change_queued_message(call: Call[Nothing, ChangeBody]) -> Changed:
    """Change a message that waits; false if the queue does not have it."""
    changed = await call.site.client.messages.change(
        call.path["name"], _number(call), **asdict(call.body)
    )
    return Changed(changed)


async def cancel_queued_message(call: Call[Nothing, None]) -> Changed:
    """Delete a message that waits; false if the queue does not have it."""
    return Changed(await call.site.client.messages.cancel(call.path["name"], _number(call)))


def _number(call: Call[Nothing, Any]) -> int:
    """Return the id of the message. Raises Problem 422."""
    text = call.path["message"]
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Problem(422, "bad-message", f"{text!r} is not the id of a message: a send returns it")
    return int(text)


_MESSAGE: Final = "/v1/message-queues/{name}/messages/{message}"

OPERATIONS: Final = (
    Operation(
        f"GET {_MESSAGE}", "read", get_queued_message, problems=(MessageNotFound, UnknownQueue)
    ),
    Operation(
        f"PATCH {_MESSAGE}",
        "write",
        change_queued_message,
        problems=(MessageInFlight, UnknownQueue),
    ),
    Operation(
        f"DELETE {_MESSAGE}",
        "write",
        cancel_queued_message,
        problems=(MessageInFlight, UnknownQueue),
    ),
)
