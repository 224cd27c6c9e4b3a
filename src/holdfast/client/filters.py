"""Check a caller's filters for runs, and make the store's filter of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypedDict, cast, get_args

from holdfast.client.naming import Names, RunRef, WorkflowRef
from holdfast.codec import encode
from holdfast.errors import ConfigurationError
from holdfast.types import AttributeValue, EndStatus, RunFilter, State
from holdfast.values.attributes import check_attributes
from holdfast.values.moments import checked_micros
from holdfast.values.names import check_build, check_queue_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.texts import check_id, check_tags, clipped, several

STATES = ("queued", "running", "waiting", "stuck", "paused", *get_args(EndStatus))
MAX_LIMIT = 1_000

_CURSOR = re.compile(r"\d{1,18}/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RunFilters(TypedDict, total=False):
    """Which runs to list. What is left out does not restrict. A single text is a list of one."""

    states: str | Iterable[str]
    """What the runs are doing: queued, running, waiting, stuck, paused, or how they ended."""
    names: WorkflowRef | Iterable[WorkflowRef]
    """Workflows, or their names, with the app (`app/name`) if several apps have the name."""
    queues: str | Iterable[str]
    """Names of queues."""
    tags: str | Iterable[str]
    """Tags that a run must all have."""
    where: Mapping[str, AttributeValue] | None
    """Attributes that a run must all have. Texts are compared: 7 finds the text, too."""
    build: str | None
    """The build that runs of pinned workflows stay with."""
    key: str | None
    """The run that was started with this key, and all that continued or retried it."""
    since: datetime | None
    """Created then or later."""
    until: datetime | None
    """Created before."""
    parent: RunRef | None
    """The run that started them."""
    input_contains: object
    """A JSON value that the input contains, as PostgreSQL's `jsonb @>` says."""
    limit: int
    """How many runs make a page; 50 unless given, 1,000 at most."""
    cursor: str | None
    """The `cursor` of the page before this one."""
    payloads: bool
    """True for runs with their inputs and outputs, which may be large; False unless given."""


async def run_filter(filters: RunFilters, naming: Names) -> RunFilter:
    """Check filters, and look up what their names mean.

    Raises ConfigurationError for a filter that cannot work, AmbiguousWorkflow for a name that
    several apps have, UnknownWorkflow for one that none has ever had.
    """
    unknown = filters.keys() - RunFilters.__annotations__.keys()
    if unknown:
        raise ConfigurationError(
            f"unknown filter {', '.join(sorted(map(str, unknown)))}: "
            f"there are {', '.join(RunFilters.__annotations__)}"
        )
    states = _several("states", filters.get("states"))
    wrong = [state for state in states if state not in STATES]
    if wrong:
        raise ConfigurationError(f"unknown state {wrong[0]!r}: there are {', '.join(STATES)}")
    limit = filters.get("limit", 50)
    if whole_number(limit, "filter", "limit", 0) not in range(1, MAX_LIMIT + 1):
        raise ConfigurationError(f"a page has 1 to {MAX_LIMIT:,} runs, not {limit}")
    since, until = filters.get("since"), filters.get("until")
    parent, contains = filters.get("parent"), filters.get("input_contains")
    build, key = filters.get("build"), filters.get("key")
    return RunFilter(
        states=cast("tuple[State, ...]", states),
        names=await naming.matching(_workflows(filters.get("names"))),
        queues=tuple(map(check_queue_name, _several("queues", filters.get("queues")))),
        tags=check_tags(_several("tags", filters.get("tags"))),
        attributes=check_attributes(filters.get("where")),
        build=None if build is None else check_build(build),
        key=None if key is None else check_id("key", key),
        since=None if since is None else checked_micros(since),
        until=None if until is None else checked_micros(until),
        parent_run_id=None if parent is None else await naming.run(parent),
        input_contains=None if contains is None else encode(contains),
        limit=limit,
        cursor=_cursor(filters.get("cursor")),
        payloads=true_or_false(filters.get("payloads", False), "payloads"),
    )


def refuse_empty(given: RunFilters, checked: RunFilter) -> None:
    """Refuse a filter that was given and is empty: a change would be one of all runs.

    Raises ConfigurationError.
    """
    for name, value in (
        ("states", checked.states),
        ("names", checked.names),
        ("queues", checked.queues),
        ("tags", checked.tags),
        ("where", checked.attributes),
    ):
        if given.get(name) is not None and not value:
            raise ConfigurationError(
                f"the filter {name} is empty, so it would not restrict which runs are changed: "
                "leave it out if that is meant"
            )


def _cursor(text: str | None) -> str | None:
    if text is None or (isinstance(text, str) and _CURSOR.fullmatch(text)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return text
    raise ConfigurationError(f"{clipped(text)} is not a cursor: pass the one of the page before")


def _workflows(wish: WorkflowRef | Iterable[WorkflowRef] | None) -> tuple[WorkflowRef, ...]:
    if isinstance(wish, Iterable) and not isinstance(wish, str | type):
        return tuple(wish)
    return () if wish is None else (wish,)


def _several(what: str, wish: str | Iterable[str] | None) -> tuple[str, ...]:
    if wish is None:
        return ()
    return (wish,) if isinstance(wish, str) else tuple(several(what, wish, str))
