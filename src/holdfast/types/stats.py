"""What is watched: statistics by minute, what waits, and alerts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

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

AlertKind: TypeAlias = Literal["failed", "stuck", "backlog", "slow", "no_worker"]


class MinuteCounts(Value, frozen=True):
    """What one writer counted of a workflow in a minute, which begins at `minute`.

    `minute` is in microseconds since 1970, `name` has the app. An old row is of a whole hour, as
    `seconds` says.
    """

    minute: int
    name: str
    counts: tuple[int, ...]
    seconds: int = 60


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


class AlertRule(Value, frozen=True, kw_only=True):
    """An alert as an app declares it.

    `subject` is what it is about: a workflow or a flow with its app, or a queue; empty for all
    workflows of the app. It begins when the value, see `AlertInfo`, reaches `threshold`; of
    `no_worker`, when it is below. The change has to last `lasting_seconds`, as has the end of it.
    """

    name: str
    kind: AlertKind
    subject: str
    threshold: float
    topic: str
    within_seconds: float | None = None
    lasting_seconds: float = 0.0


class AlertInfo(Value, frozen=True, kw_only=True):
    """An alert, and how things stand.

    `value` is what was seen last: runs that failed or are stuck, seconds that the oldest task has
    waited or that 95 of 100 runs took less than, workers that live. None if nothing was seen.
    `changed_at` is when it last began or was over, `looked_at` when it was last looked at, in
    microseconds since 1970, None for never. `error` says why an event could not be published,
    which is tried again.
    """

    app: str
    rule: AlertRule
    is_active: bool
    value: float | None
    changed_at: int | None
    looked_at: int | None
    error: str | None = None


class AlertEvent(Value, frozen=True, kw_only=True):
    """The payload of the events of an alert: `active` when it begins, not `active` when it is over.

    `value` is what made the difference, see `AlertInfo`; None if the alert is over because no
    code declares it any more. `at` is when the event was published.

    ```python
    @app.workflow
    async def tell(ctx: Context, alert: AlertEvent) -> None:
        await send_mail("ops@example.org", alert.text)

    app.subscribe("ops", tell)
    ```
    """

    alert: str
    app: str
    active: bool
    kind: AlertKind
    subject: str
    value: float | None
    threshold: float
    within_seconds: float | None
    at: datetime

    @property
    def text(self) -> str:
        """The event as a sentence: `checkout fails: 7 runs of shop/checkout failed in 600 s`."""
        seen = "its code is gone"
        if self.value is not None:
            seen = seen_text(self.kind, self.app, self.subject, self.value, self.within_seconds)
        return f"{self.alert}{'' if self.active else ' is over'}: {seen}"


class AlertChange(Value, frozen=True):
    """What became of an alert: it began or was over, or an error kept its event back.

    One that `is_deleted` is not in the code of its app any more.
    """

    app: str
    name: str
    is_active: bool
    value: float | None = None
    error: str | None = None
    is_deleted: bool = False


class DeclaredAlerts(Value, frozen=True):
    """What a declaration has changed: names of alerts that were added, and changed."""

    added: Sequence[str] = ()
    changed: Sequence[str] = ()


def seen_text(
    kind: AlertKind, app: str, subject: str, value: float, within_seconds: float | None
) -> str:
    """Return what was seen, as a sentence."""
    of = subject or f"app {app}"
    noun = "run" if value == 1 else "runs"
    match kind:
        case "failed":
            return f"{value:g} {noun} of {of} failed in {within_seconds:g} s"
        case "stuck":
            return f"{value:g} {noun} of {of} {'is' if value == 1 else 'are'} stuck"
        case "backlog":
            return f"the oldest task of queue {of} has waited for {value:g} s"
        case "slow":
            return f"95 of 100 runs of {of} took less than {value:g} s"
        case _:
            return f"live workers of queue {of}: {value:g}"
