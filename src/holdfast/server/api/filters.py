"""The parameters by which runs are listed, and the client's filters that they mean."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta

from holdfast.client.filters import RunFilters
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.server.api.fields import Key, Limit, Name, Size, Where
from holdfast.server.operations import Call, Query
from holdfast.server.reading import bad_parameter
from holdfast.types import AttributeValue, State
from holdfast.values.attributes import read_attributes
from holdfast.values.durations import seconds
from holdfast.values.moments import to_datetime, to_micros

Moment = Annotated[
    str, Meta(max_length=50, description="RFC 3339, or how long ago: 2h", examples=["2h"])
]


class OfWorkflow(Query, frozen=True):
    """The app of the workflow of a path: needed if several apps have one of its name."""

    app: Name | None = None


class _Conditions(Query, frozen=True):
    status: tuple[State, ...] = ()
    queue: tuple[Name, ...] = ()
    tag: tuple[Key, ...] = ()
    where: Where = ()
    build: Name | None = None
    key: Key | None = None
    parent: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None


class RunConditions(_Conditions, frozen=True):
    """Which runs are meant: those that match all that is given."""

    workflow: tuple[Name, ...] = ()


class RunQuery(RunConditions, frozen=True):
    """Which runs to list, newest first."""

    limit: Limit = Size
    cursor: Annotated[str, Meta(max_length=100)] | None = None


class WorkflowRunQuery(_Conditions, frozen=True):
    """Which runs of one workflow to list, newest first."""

    app: Name | None = None
    limit: Limit = Size
    cursor: Annotated[str, Meta(max_length=100)] | None = None


async def filters_of(call: Call[Any, Any]) -> RunFilters:
    """Return the client's filters. Raises Problem 400 for what cannot be read."""
    query: RunConditions | WorkflowRunQuery = call.query
    names = (call.full_name,) if isinstance(query, WorkflowRunQuery) else query.workflow
    if query.key is not None and not names:
        raise bad_parameter("key", "name its workflow as well: keys are those of one workflow")
    filters: RunFilters = {
        "states": query.status,
        "names": names,
        "queues": query.queue,
        "tags": query.tag,
        "where": _attributes(query.where),
        "build": query.build,
        "key": query.key,
        "since": await _moment(call, "since", query.since),
        "until": await _moment(call, "until", query.until),
        "parent": query.parent,
        "input_contains": call.inputs,
    }
    if not isinstance(query, RunQuery | WorkflowRunQuery):
        return filters
    return {**filters, "limit": query.limit, "cursor": query.cursor}


def _attributes(texts: tuple[str, ...]) -> dict[str, AttributeValue]:
    try:
        return read_attributes(texts)
    except InvalidInput as error:
        raise bad_parameter("where", str(error)) from None


async def _moment(call: Call[Any, Any], name: str, text: str | None) -> datetime | None:
    """Return a moment, or one that lies so long before the engine's."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    try:
        return to_datetime(await call.site.store.now()) - timedelta(seconds=seconds(text))
    except (ConfigurationError, OverflowError):
        raise bad_parameter(name, f"{text!r} is neither a moment nor a length of time") from None


async def moment_of(call: Call[Any, Any], name: str, text: str) -> int:
    """Return a moment in microseconds since 1970 UTC. Raises Problem 400."""
    found = await _moment(call, name, text)
    assert found is not None
    return to_micros(found)
