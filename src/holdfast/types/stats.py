"""Statistics by minute: what is counted of a workflow, and where it stands among the counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast.types.base import Value

COUNTS: Final = 25
BEGUN: Final = 0  # runs that a worker claimed first; those of flows have no such claim
ENDED: Final = {
    status: place
    for place, status in enumerate(
        ("completed", "failed", "cancelled", "timed_out", "terminated", "continued"), 1
    )
}
RETRIES: Final = 7  # attempts of steps after the first
MILLIS: Final = 8  # that the runs which ended took together, from their first claims
BUCKETS: Final = 9  # from here on: runs by how long they took

BOUNDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600, 21600, 86400, 604800)
"""A run that took less than so many seconds, and no less than the bound before, is in its bucket.

The last bucket has the runs that took longer than all bounds.
"""


class MinuteCounts(Value, frozen=True):
    """What was counted of a workflow in a minute, or a longer part of the time.

    It begins at `minute`, in microseconds since 1970. `name` has the app. `merged` rows of minutes
    and hours are added up in it.
    """

    minute: int
    name: str
    counts: tuple[int, ...]
    merged: int = 1


class LoadSample(Value, frozen=True):
    """What was seen of a queue in a part of the time; `queue` is empty for all queues together.

    `due` is the largest number of tasks that waited for a worker. `busy`, tasks that workers had,
    and `places`, tasks that live workers may have, are sums of `looks` samples.
    """

    part: int
    queue: str
    looks: int
    due: int
    busy: int
    places: int


class Gauges(Value, frozen=True, kw_only=True):
    """How things stand: counts that end at a limit.

    `in_flight` are runs that have not ended, by workflow with its app. `due` are tasks that could
    be claimed now, by queue; `oldest_due_seconds` is for how long the oldest has waited.
    """

    in_flight: dict[str, int]
    due: dict[str, int]
    oldest_due_seconds: dict[str, float]
    approvals_open: int
    runs_stuck: int


def percentile(buckets: Sequence[int], part: float) -> float | None:
    """Return about how long runs took, of which this part took less; None without any.

    Within a bucket it is a geometric mean of the bounds, weighted by where the part falls.
    """
    wanted = part * sum(buckets)
    if not wanted:
        return None
    before = 0
    for place, count in enumerate(buckets):
        if count and before + count >= wanted:
            low = BOUNDS[place - 1] if place else BOUNDS[0] / 10
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return round(low * math.pow(high / low, (wanted - before) / count), 4)
        before += count
    return BOUNDS[-1]
