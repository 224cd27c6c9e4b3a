"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from holdfast.client.naming import RunRef
from holdfast.client.webhooks import OpenWebhook, Webhooks
from holdfast.sync.base import SyncGroup


class SyncWebhooks(SyncGroup[Webhooks]):
    """The webhooks of all runs: what `ctx.webhook` opens."""

    def list(self, run: RunRef) -> builtins.list[OpenWebhook]:
        """Return the webhooks of a run that wait for their POST, in the order of their opening.

        Raises RunNotFound.

        ```python
        for hook in client.webhooks.list(("checkout", "order-7")):
            print(hook.key, hook.url)
        ```
        """
        return self._call(self._target.list, run)

    def receive(
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
            client.webhooks.receive(url, b'{"amount": 42}')
        except WebhookNotFound:
            print("answer with 404")
        ```
        """
        return self._call(self._target.receive, url, body, headers=headers, secrets=secrets)
