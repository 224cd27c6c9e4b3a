"""The part of the port for webhooks: URLs of runs, each of which takes one POST."""

from __future__ import annotations

from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import FoundWebhook, Notice, WebhookOutcome, WebhookPost


class WebhookStore(Protocol):
    """Finds webhooks, and takes what is posted to them."""

    @readable
    async def find_webhook(self, digest: str) -> FoundWebhook | None:
        """Return the webhook whose token has this digest, None if there is none."""
        ...

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        """Append WebhookReceived to the run's log, and wake the run. The first POST counts.

        The outcome is `duplicate` if there was one before, `closed` if the run takes none any more,
        `moved` if another run has the webhook by now, `missing` if there is none.
        """
        ...
