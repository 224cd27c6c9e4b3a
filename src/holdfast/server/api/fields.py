"""Types of fields that several operations have, with their bounds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.types import AttributeValue

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=257)]
Text: TypeAlias = Annotated[str, Meta(max_length=2_000)]
Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
Tags: TypeAlias = Annotated[tuple[Key, ...], Meta(max_length=20)]
Attributes: TypeAlias = Annotated[dict[Key, AttributeValue], Meta(max_length=100)]
Where: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=700)], ...],
    Meta(max_length=20, description="attributes: NAME=VALUE", examples=[["customer=acme"]]),
]
Length: TypeAlias = (
    Annotated[int, Meta(ge=0, le=10**10)]
    | Annotated[float, Meta(ge=0, le=1e10)]
    | Annotated[str, Meta(max_length=50, description="such as 90s, 1h30m or 7d")]
)
"""A length of time: seconds, or numbers with units."""

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A moment with a time zone."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=60)]
"""How long an operation waits."""

Offset: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
"""The place of a value in a stream, 0 before the first."""

Limit: TypeAlias = Annotated[int, Meta(ge=1, le=200)]
Size: Final = 50  # of a page


class Changed(msgspec.Struct, frozen=True):
    """False if everything was so before."""

    changed: bool


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why something is done; it is recorded."""

    reason: Annotated[str, Meta(max_length=2_000)] | None = None
