"""Payloads that are objects outside of the database."""

from __future__ import annotations

from uuid import UUID

from holdfast.types.base import Value


class UnneededPayloads(Value, frozen=True):
    """All objects of an owner at a URL: nobody needs them any more."""

    owner: UUID
    url: str
