"""Payloads that are objects outside of the database."""

from __future__ import annotations

from uuid import UUID

from holdfast.types.base import Value


class UnneededPayloads(Value, frozen=True):
    """All objects of an owner at a URL: nobody needs them any more."""

    owner: UUID
    url: str


class FailingPut(Value, frozen=True):
    """A URL at which a payload of a run could not be put when it was last tried, and why."""

    url: str
    failed_at: int
    error: str
