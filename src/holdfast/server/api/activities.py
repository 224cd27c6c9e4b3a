"""Operations that end attempts of activities from outside, by their tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.errors import TokenUnknown
from holdfast.server.api.fields import Changed, Text
from holdfast.server.operations import Body, Call, Nothing, Operation


class Completion(Body, frozen=True):
    """The result of the attempt that has this token."""

    token: Annotated[str, Meta(min_length=1, max_length=1_500)]
    result: Any = None


class Failure(Body, frozen=True):
    """The error of the attempt that has this token."""

    token: Annotated[str, Meta(min_length=1, max_length=1_500)]
    error: Text
    retryable: bool = True


class Failed(msgspec.Struct, frozen=True):
    """`retried` is true if the activity will be tried again."""

    retried: bool


async def complete_activity(call: Call[Nothing, Completion]) -> Changed:
    """Complete an attempt of an activity, by its token."""
    await call.site.client.activities.complete(call.body.token, call.body.result)
    return Changed(True)


async def fail_activity(call: Call[Nothing, Failure]) -> Failed:
    """Fail an attempt of an activity, by its token."""
    body = call.body
    retried = await call.site.client.activities.fail(
        body.token, body.error, retryable=body.retryable
    )
    return Failed(retried)


OPERATIONS: Final = (
    Operation("POST /v1/activities/complete", "write", complete_activity, problems=(TokenUnknown,)),
    Operation("POST /v1/activities/fail", "write", fail_activity, problems=(TokenUnknown,)),
)
