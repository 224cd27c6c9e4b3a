"""What a worker did in each minute, by workflow: it goes to the database with the heartbeats.

It is always on. It is approximate: what a worker counted after its last heartbeat is lost if it is
killed, and counted twice if the answer to a heartbeat is lost.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.definitions.steps import StepContext
from holdfast.types import MinuteCounts
from holdfast.types.stats import BEGUN, BOUNDS, BUCKETS, COUNTS, ENDED, MILLIS, RETRIES
from holdfast.worker.observing import Attempt

_MINUTE: Final = 60_000_000
_MOST_ROWS: Final = 5_000  # while the database is away; what comes then is not counted


class Statistics:
    """Counts, until `take` is called, in a thread of its own or not."""

    claimed = committed = counted_ends = None  # what began and ended is told one by one

    def __init__(self, app: str, now: Callable[[], int]) -> None:
        self._app, self._now = app, now
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, str], list[int]] = {}

    @property
    def waiting(self) -> bool:
        """True if something was counted since the last call of `take`."""
        return bool(self._rows)

    def take(self) -> list[MinuteCounts]:
        """Return what was counted since the last call. Safe from any thread."""
        with self._lock:
            rows, self._rows = self._rows, {}
        return [MinuteCounts(minute, name, tuple(row)) for (minute, name), row in rows.items()]

    def give_back(self, taken: Sequence[MinuteCounts]) -> None:
        """Count again what could not be sent. Safe from any thread."""
        for each in taken:
            self._add(each.name, list(enumerate(each.counts)), each.minute)

    # What the worker tells

    def of_attempts(self, now: Callable[[], int]) -> None:
        """Return None: attempts are not counted."""

    def attempt_repeated(self, attempt: Attempt) -> None:
        """Count an attempt of a step that is not the first."""
        if isinstance(attempt.context, StepContext):
            self._add(f"{self._app}/{attempt.context.workflow}", [(RETRIES, 1)])

    def run_begun(self, workflow: str) -> None:
        """Count a run that begins."""
        self._add(f"{self._app}/{workflow}", [(BEGUN, 1)])

    def replayed(self, workflow: str) -> None:
        """Do nothing."""

    def run_ended(self, workflow: str, status: str, took: int) -> None:
        """Count the end of a run."""
        bucket = BUCKETS + bisect_right(BOUNDS, took / 1e6)
        counts = [(ENDED[status], 1), (MILLIS, round(took / 1000)), (bucket, 1)]
        self._add(f"{self._app}/{workflow}", counts)

    def swept(self, deleted: int) -> None:
        """Do nothing."""

    def _add(self, name: str, counts: Sequence[tuple[int, int]], minute: int | None = None) -> None:
        if minute is None:
            now = self._now()
            minute = now - now % _MINUTE
        with self._lock:
            row = self._rows.get((minute, name))
            if row is None:
                if len(self._rows) >= _MOST_ROWS:
                    return
                row = self._rows[minute, name] = [0] * COUNTS
            for place, count in counts:
                row[place] += count
