"""Options of a run that is started, by a client or by another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from holdfast.durations import Duration


class AnyRunOptions(TypedDict, total=False):
    """Options of every start; the workflow decides those that are left out.

    Durations are seconds, a text such as `"5m"`, or a `timedelta`.
    """

    priority: int | None
    """0 (most urgent) to 4; 2 unless the workflow says otherwise."""
    queue: str | None
    """The queue whose workers may run it."""
    timeout: Duration | None
    """The time after its start at which the run is ended, whatever it does then."""
    tags: Iterable[str]
    """Labels to list runs by."""
    headers: Mapping[str, str] | None
    """Names and values that travel with the run and its children, such as a trace context."""
