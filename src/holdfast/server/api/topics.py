"""The operation that publishes an event to a topic.

Subscriptions to URLs are not made here: nothing in the server opens what a request names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from holdfast.server.api.fields import Key
from holdfast.server.api.runs import one_id
from holdfast.server.operations import Body, Call, Nothing, Operation
from holdfast.types import Published


class NewEventBody(Body, frozen=True):
    """An event. With an `event_id`, or the Idempotency-Key, it is published once an hour."""

    topic: Annotated[str, Meta(min_length=1, max_length=500)]
    payload: Any = None
    event_id: Key | None = None


async def publish_event(call: Call[Nothing, NewEventBody]) -> Published:
    """Publish an event: all that is subscribed to its topic gets it, in one transaction."""
    body = call.body
    event_id = one_id(call, body.event_id, "event_id")
    return await call.site.client.topics.publish(body.topic, body.payload, event_id=event_id)


OPERATIONS: Final = (Operation("POST /v1/topics/publish", "write", publish_event, keyed=True),)
