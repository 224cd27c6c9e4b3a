"""`client.webhooks`: the URLs that runs give to others, and what is posted to them."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from holdfast.client.naming import RunRef
from holdfast.client.session import Group
from holdfast.codec import encode
from holdfast.errors import RunNotFound, WebhookClosed, WebhookNotFound
from holdfast.events import TERMINAL, WEBHOOK_CLOSED, WEBHOOK_OPENED, WEBHOOK_RECEIVED
from holdfast.insight.spans import read_details, text_of
from holdfast.types import Value, WebhookOutcome, WebhookPost
from holdfast.values.moments import to_datetime
from holdfast.values.texts import check_headers, check_text
from holdfast.webhooks import digest_of, read_post, secret_of, verify_as


class OpenWebhook(Value, frozen=True):
    """A URL of a run that waits for its POST. A program that has the `url` can post.

    `opened_at` is in UTC.
    """

    run_id: UUID
    key: str
    opened_at: datetime
    url: str


class Webhooks(Group):
    """The webhooks of all runs: what `ctx.webhook` opens."""

    async def list(self, run: RunRef) -> builtins.list[OpenWebhook]:
        """Return the webhooks of a run that wait for their POST, in the order of their opening.

        Raises RunNotFound.

        ```python
        for hook in await client.webhooks.list(("checkout", "order-7")):
            print(hook.key, hook.url)
        ```
        """
        run_id = await self._session.newest_of(run)
        log = (await self._session.store.read_events([(run_id, 0)])).get(run_id, [])
        if not log:
            raise RunNotFound(run_id)
        hooks: dict[str, OpenWebhook] = {}
        for event in log:
            key = event.key or ""
            if event.type == WEBHOOK_OPENED:
                url = text_of(read_details(event.details), "url")
                hooks[key] = OpenWebhook(run_id, key, to_datetime(event.at), url)
            elif event.type in (WEBHOOK_CLOSED, WEBHOOK_RECEIVED):
                hooks.pop(key, None)
            elif event.type in TERMINAL:
                return []
        return builtins.list(hooks.values())

    async def receive(
        self,
        url: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> bool:
        """Give a run what was posted to its URL. `holdfast server` does this; so can yours.

        `url` is the URL, or the token that ends it, and `headers` are those of the request, in any
        case: Content-Type says how the body is read, others have its signature. Returns False if
        the run has had its POST. `secrets` has the secrets of signatures by name; by default it is
        the environment.

        Raises WebhookNotFound, WebhookClosed, SignatureInvalid, WebhookSecretMissing, and
        InvalidInput for a body that cannot be read.

        ```python
        url = "https://shop.example.com/v1/hooks/1wbzHcMbU0DwTkxLMzQdSQ1nL6W0yT7YQ7pSxTnQwXo"
        try:
            await client.webhooks.receive(url, b'{"amount": 42}')
        except WebhookNotFound:
            print("answer with 404")
        ```
        """
        given = check_headers(headers) or {}
        given = {name.lower(): value for name, value in given.items()}
        digest = digest_of(check_text("url", url))
        while digest is not None:
            found = await self._session.store.find_webhook(digest)
            if found is None:
                break
            if found.secret is not None:
                secret = secret_of(found.secret, os.environ if secrets is None else secrets)
                verify_as(found.scheme, secret, given, body)
            outcome: WebhookOutcome = "duplicate" if found.state == "received" else "closed"
            if found.state == "open":
                read = encode(read_post(found.body, given.get("content-type", ""), body))
                outcome = await self._take(
                    WebhookPost(run_id=found.run_id, key=found.key, digest=digest, body=read)
                )
            if outcome == "closed":
                raise WebhookClosed(found.run_id, found.key)
            if outcome in ("received", "duplicate"):
                return outcome == "received"
        raise WebhookNotFound

    async def _take(self, post: WebhookPost) -> WebhookOutcome:
        return await self._session.change(lambda: self._session.store.receive_webhook(post))
