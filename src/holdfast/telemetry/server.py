"""What a server counts, and what it asks the database for when it is asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from holdfast.errors import DatabaseError
from holdfast.insight.serving import live_workers
from holdfast.store.port import Store
from holdfast.telemetry.sending import hint_families, signals_counter
from holdfast.telemetry.tallies import Family, Histogram, Labels, gauge
from holdfast.types import HintUse
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.server")

LIMIT: Final = 10_001  # counts end here

_LEAST_SECONDS: Final = 15.0  # an answer is used for so long,
_REST: Final = 20.0  # and for so many times the time that it took
_ANSWER_SECONDS: Final = 10.0
_HTTP_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ServerMetrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.http_seconds = Histogram(
            "holdfast_http_seconds",
            "Time until an answer of the API began.",
            ("route",),
            _HTTP_BOUNDS,
        )
        self.signals = signals_counter()
        self.gauges = CachedGauges()

    async def families(
        self, store: Store | None, hints: HintUse | None, streams: int
    ) -> list[Family]:
        """Return all metrics. Those that the database does not answer are left out."""
        return [
            self.http_seconds.family(),
            self.signals.family(),
            gauge("holdfast_streams", "Streams of events that are open.", streams),
            *hint_families(hints),
            *([] if store is None else await self.gauges.read(lambda: read_gauges(store))),
        ]


class CachedGauges:
    """Asks for gauges now and then, so that monitors cannot keep a database busy.

    A failure leaves them out: no number is better than an old one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, asyncio.Lock()
        self._kept: list[Family] = []
        self._until = -1.0

    async def read(self, ask: Callable[[], Awaitable[list[Family]]]) -> list[Family]:
        """Return the gauges; ask for them if the last answer is too old."""
        async with self._lock:
            began = self._clock()
            if began >= self._until:
                self._kept = await self._ask(ask)
                took = self._clock() - began
                self._until = self._clock() + max(_LEAST_SECONDS, _REST * took)
            return self._kept

    async def _ask(self, ask: Callable[[], Awaitable[list[Family]]]) -> list[Family]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await ask()
        except (DatabaseError, TimeoutError) as error:
            logger.warning("gauges are left out of the metrics: %s", error or "no answer in time")
            return []


async def read_gauges(store: Store) -> list[Family]:
    """Ask the database how things stand."""
    seen, now = await store.read_gauges(limit=LIMIT), await store.now()
    workers = live_workers(await store.list_workers(), now)
    unserved = await store.unserved()
    capped = f"at most {LIMIT:,}"
    return [
        gauge(
            "workflow_runs_in_flight",
            f"Runs that have not ended, {capped} of a workflow.",
            _by_label((name.rpartition("/")[2], runs) for name, runs in seen.in_flight.items()),
            "workflow",
        ),
        gauge(
            "holdfast_queue_due",
            f"Tasks that are due, {capped}.",
            _by_label(seen.due.items()),
            "queue",
        ),
        gauge(
            "holdfast_queue_oldest_due_seconds",
            "For how long the oldest due task has waited.",
            _by_label(seen.oldest_due_seconds.items()),
            "queue",
        ),
        gauge(
            "holdfast_unserved_tasks",
            "Tasks that no live worker serves, at most 1,000 of a workflow.",
            _by_label((queue, tasks) for queue, _, tasks in unserved),
            "queue",
        ),
        gauge("holdfast_workers", "Workers that are live.", len(workers)),
        gauge("holdfast_approvals_open", f"Open approvals, {capped}.", seen.approvals_open),
        gauge("holdfast_runs_stuck", f"Runs that are stuck, {capped}.", seen.runs_stuck),
    ]


def _by_label(values: Iterable[tuple[str, float]]) -> dict[Labels, float]:
    """Return sums by label; the names of two apps may be the same."""
    sums: defaultdict[str, float] = defaultdict(float)
    for label, value in values:
        sums[label] += value
    return {(label,): value for label, value in sums.items()}
