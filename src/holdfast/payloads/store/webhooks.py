"""Webhooks: what is posted to a run."""

from __future__ import annotations

from holdfast.payloads.store.part import PayloadPart
from holdfast.types import Notice, WebhookOutcome, WebhookPost


class PayloadWebhooks(PayloadPart):
    """Encodes the bodies of POSTs."""

    async def receive_webhook(self, post: WebhookPost) -> tuple[WebhookOutcome, list[Notice]]:
        outgoing = self._outgoing()
        what = f"the body of webhook {post.key} of run {post.run_id}"
        sealed = self._sealed(outgoing, post, post.run_id, body=what)
        await outgoing.put()
        return await self._store.receive_webhook(sealed)
