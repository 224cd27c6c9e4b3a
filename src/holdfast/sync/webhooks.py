"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from holdfast.client.naming import RunRef
from holdfast.client.webhooks import OpenWebhook, Webhooks
from holdfast.sync.base import SyncGroup


class SyncWebhooks(SyncGroup[Webhooks], of=Webhooks):
    """The webhooks of all runs: what `ctx.webhook` opens."""

    def list(self, run: RunRef) -> builtins.list[OpenWebhook]:
        """Return the webhooks of a run that wait for their POST, in the order of their opening."""
        return self._call(self._target.list, run)

    def receive(
        self,
        url: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> bool:
        """Give a run what was posted to its URL. `holdfast server` does this; so can yours."""
        return self._call(self._target.receive, url, body, headers=headers, secrets=secrets)
