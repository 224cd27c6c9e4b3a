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
_BOUNDS: Final = [round(seconds * 1_000_000) for seconds in BOUNDS]  # as runs are timed
_MOST_ROWS: Final = 5_000  # while the database is away; what comes then is not counted


class Statistics:
    """Counts, until `take` is called, in a thread of its own or not."""

    claimed = committed = counted_ends = None  # what began and ended is told one by one

    def __init__(self, app: str, now: Callable[[], int]) -> None:
        self._app, self._now = app, now
        self._lock = threading.Lock()
        self._rows: dict[tuple[int, str], list[int]] = {}  # by minute and workflow

    @property
    def waiting(self) -> bool:
        """True if something was counted since the last call of `take`."""
        return bool(self._rows)

    def take(self) -> list[MinuteCounts]:
        """Return what was counted since the last call. Safe from any thread."""
        with self._lock:
            rows, self._rows = self._rows, {}
        app = self._app
        return [MinuteCounts(at, f"{app}/{name}", tuple(row)) for (at, name), row in rows.items()]

    def give_back(self, taken: Sequence[MinuteCounts]) -> None:
        """Count again what could not be sent. Safe from any thread."""
        with self._lock:
            for each in taken:
                row = self._row(each.minute, each.name.removeprefix(f"{self._app}/"))
                for place, count in enumerate(each.counts):
                    row[place] += count

    # What the worker tells

    def of_attempts(self, now: Callable[[], int]) -> None:
        """Return None: attempts are not counted."""

    def attempt_repeated(self, attempt: Attempt) -> None:
        """Count an attempt of a step that is not the first."""
        if isinstance(attempt.context, StepContext):
            with self._lock:
                self._row(self._now(), attempt.context.workflow)[RETRIES] += 1

    def run_begun(self, workflow: str, at: int) -> None:
        """Count a run that begins."""
        with self._lock:
            row = self._rows.get((at - at % _MINUTE, workflow)) or self._row(at, workflow)
            row[BEGUN] += 1

    def replayed(self, workflow: str) -> None:
        """Do nothing."""

    def run_ended(self, workflow: str, status: str, at: int, took: int) -> None:
        """Count the end of a run."""
        with self._lock:
            row = self._rows.get((at - at % _MINUTE, workflow)) or self._row(at, workflow)
            row[ENDED[status]] += 1
            row[MILLIS] += round(took / 1000)
            row[BUCKETS + bisect_right(_BOUNDS, took)] += 1

    def swept(self, deleted: int) -> None:
        """Do nothing."""

    def _row(self, at: int, workflow: str) -> list[int]:
        """Return the counts of a workflow in the minute of a moment. The caller has the lock."""
        key = at - at % _MINUTE, workflow
        row = self._rows.get(key)
        if row is None:
            row = [0] * COUNTS
            if len(self._rows) < _MOST_ROWS:
                self._rows[key] = row
        return row
