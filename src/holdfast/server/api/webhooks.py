"""The operation by which others post to a URL that a run has given them."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import (
    InvalidInput,
    SignatureInvalid,
    WebhookClosed,
    WebhookNotFound,
    WebhookSecretMissing,
)
from holdfast.server.operations import Call, Nothing, Operation
from holdfast.webhooks import HOOKS


class Taken(msgspec.Struct, frozen=True):
    """What became of a POST: `changed` is false if the run has had its POST."""

    changed: bool
    detail: str


async def receive_webhook(call: Call[Nothing, bytes]) -> Taken:
    """Give a run what it waits for at a URL of its own. The first POST counts.

    It needs no token but the one in the URL. The body is read and the signature checked as the run
    has said when it opened the URL.
    """
    changed = await call.site.client.webhooks.receive(
        call.path["token"], call.body, headers=call.request.headers
    )
    return Taken(changed, "received" if changed else "already received")


OPERATIONS: Final = (
    Operation(
        f"POST {HOOKS}{{token}}",
        "open",
        receive_webhook,
        problems=(
            WebhookNotFound,
            WebhookClosed,
            SignatureInvalid,
            WebhookSecretMissing,
            InvalidInput,
        ),
    ),
)
