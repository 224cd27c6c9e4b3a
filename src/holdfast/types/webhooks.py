"""Webhooks: URLs that runs give to others, each of which takes one POST."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Value

WebhookBody: TypeAlias = Literal["json", "text", "bytes"]
WebhookScheme: TypeAlias = Literal["standard", "stripe", "github"]
WebhookState: TypeAlias = Literal["open", "received", "closed"]
WebhookOutcome: TypeAlias = Literal["received", "duplicate", "closed", "missing", "moved"]


class FoundWebhook(Value, frozen=True, kw_only=True):
    """A webhook that has the digest of a token: whose it is, and what its run said of it.

    `closed` also stands for one whose run has ended.
    """

    run_id: UUID
    key: str
    body: WebhookBody
    secret: str | None
    scheme: WebhookScheme
    state: WebhookState


class WebhookPost(Value, frozen=True, kw_only=True):
    """A POST for the webhook of a run; `body` is JSON text."""

    run_id: UUID
    key: str
    digest: str
    body: str
