"""Operations about limits: list, set and remove them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.definitions.limits import Ageing, AnyLimit, Fairness, Limit, Rate
from holdfast.errors import AmbiguousWorkflow, ConfigurationError, UnknownWorkflow
from holdfast.server.api.fields import Changed, Key, Length, Name
from holdfast.server.operations import Body, Call, Nothing, Operation, Query
from holdfast.types import Holds, LimitKind, LimitRule, LimitScope
from holdfast.values.composing import shaped


class LimitShape(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, and how it is used. If `more_wait`, counting of what waits was ended."""

    rule: LimitRule
    is_declared: bool
    changed_at: datetime
    held: int
    full_keys: int
    waiting: int
    more_wait: bool
    used: int | None = None


class LimitList(msgspec.Struct, frozen=True):
    """All limits."""

    limits: list[LimitShape]


class NewLimit(Body, frozen=True):
    """A limit of a queue, a workflow or an activity: the field `scope` says which."""

    scope: LimitScope
    name: Name
    kind: LimitKind
    most: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    per: Length | None = None
    key: Key | None = None
    holds: Holds | None = None
    smooth: bool = False
    units: Key | None = None


class LimitQuery(Query, frozen=True):
    """Which limit: it is known by its kind and its key."""

    scope: LimitScope
    name: Name
    kind: LimitKind
    key: Key | None = None


_CLASSES: Final[dict[LimitKind, type[AnyLimit]]] = {
    "concurrency": Limit,
    "rate": Rate,
    "units": Rate,
    "fairness": Fairness,
    "ageing": Ageing,
}


async def list_limits(call: Call[Nothing, None]) -> LimitList:
    """List all limits, and how they are used."""
    found = await call.site.reader.limits.list()
    return LimitList([shaped(LimitShape, each) for each in found])


async def set_limit(call: Call[Nothing, NewLimit]) -> Changed:
    """Set a limit for what workers claim from now on."""
    body = call.body
    where = {body.scope: body.name}
    return Changed(await call.site.client.limits.set(_limit(body), **where))


async def remove_limit(call: Call[LimitQuery, None]) -> Changed:
    """Remove a limit; what waits for it may run at once."""
    query, where = call.query, {call.query.scope: call.query.name}
    removed = await call.site.client.limits.remove(
        _CLASSES[query.kind], key=query.key, units=query.kind == "units", **where
    )
    return Changed(removed)


def _limit(body: NewLimit) -> AnyLimit:
    """Return the limit. Raises ConfigurationError for fields that its kind does not have."""
    if body.kind == "fairness" and body.key is not None:
        return Fairness(body.key)
    if body.kind == "ageing" and body.per is not None:
        return Ageing(body.per)
    if body.kind == "concurrency" and body.most is not None:
        return Limit(body.most, key=body.key, holds=body.holds)
    if body.kind == "rate" and body.most is not None and body.per is not None:
        return Rate(body.most, per=body.per, key=body.key, smooth=body.smooth)
    if body.kind == "units" and None not in (body.most, body.per, body.units):
        return Rate(body.most or 0, per=body.per or 0, key=body.key, units=body.units)
    needs = {"fairness": "key", "ageing": "per", "concurrency": "most", "rate": "most and per"}
    needs["units"] = "most, per and units"
    raise ConfigurationError(f"a limit of the kind {body.kind} needs {needs[body.kind]}")


OPERATIONS: Final = (
    Operation("GET /v1/limits", "read", list_limits),
    Operation("PUT /v1/limits", "admin", set_limit, problems=(UnknownWorkflow, AmbiguousWorkflow)),
    Operation(
        "DELETE /v1/limits", "admin", remove_limit, problems=(UnknownWorkflow, AmbiguousWorkflow)
    ),
)
