"""What a worker tells of what it does, to those that count it.

The worker knows no metric. It calls an `Observing`, which passes on to each `Observer`. Attempts,
claims and commits are many, so they are told only to observers that want them: without one, the
worker makes no call. All else is at most once a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from holdfast.definitions.recorded import AttemptContext, Recorded
from holdfast.types import Claims, Committed, HintUse, MinuteCounts, ThreadUse, TurnCommit


class WorkerLoad(NamedTuple):
    """How full a worker is: tasks that it holds, runs that it keeps in memory, its threads.

    And how late it is: for how long its heartbeat is overdue, and how long a call took through its
    event loop; None without a heartbeat. `spans_dropped` is None if it does not trace, `hints` if
    it reads none.
    """

    held: int
    cached: int
    threads: ThreadUse | None
    heartbeat_late_seconds: float | None = None
    loop_lag_seconds: float | None = None
    spans_dropped: int | None = None
    hints: HintUse | None = None


class Attempt(Protocol):
    """One attempt of a step, an activity or a consumer."""

    @property
    def function(self) -> Recorded[..., object]:
        """The step, the activity or the consumer."""
        ...

    @property
    def context(self) -> AttemptContext:
        """The attempt as its own code sees it."""
        ...

    @property
    def started_at(self) -> int:
        """When it was started, in engine time."""
        ...


AttemptEnded: TypeAlias = Callable[[Attempt], None]
"""Is called with an attempt at the moment of its end."""


Claimed: TypeAlias = Callable[[Claims], None]
"""Is called with the answer to a claim."""


RunBegun: TypeAlias = Callable[[str, int], None]
"""Is called with a workflow when a run of it begins, and with the moment."""


RunEnded: TypeAlias = Callable[[str, str, int, int], None]
"""Is called with a workflow, the status of a run's durable end, its moment, and what it took."""


CountedEnds: TypeAlias = Callable[[MinuteCounts], None]
"""Is called with what the database counted of runs that it has ended without a worker's commit."""


class CommitEnded(Protocol):
    """Is called with the answer to a commit, which came after so many seconds."""

    def __call__(
        self, parts: Sequence[TurnCommit], committed: Committed, took_seconds: float
    ) -> None:
        """Take note of it."""
        ...


class Observer(Protocol):
    """Is told what a worker does, on its event loop. It must return at once, and never raise.

    Lengths of time are microseconds, unless their names say otherwise.
    """

    def of_attempts(self, now: Callable[[], int]) -> AttemptEnded | None:
        """Return what is called at the end of each attempt that is not dropped; None for nothing.

        It is asked for once. `now` returns engine time.
        """
        ...

    @property
    def claimed(self) -> Claimed | None:
        """What is called with the answer to each claim; None for nothing."""
        ...

    @property
    def committed(self) -> CommitEnded | None:
        """What is called with the answer to each commit; None for nothing."""
        ...

    @property
    def counted_ends(self) -> CountedEnds | None:
        """What is called with counts of ends that no worker's commit has made; None for nothing.

        Each count is told to one worker of the app.
        """
        ...

    def attempt_repeated(self, attempt: Attempt) -> None:
        """Take note of an attempt that is not the first, as it starts."""
        ...

    def run_begun(self, workflow: str, at: int) -> None:
        """Take note of a run that was claimed for the first time, at a moment of engine time."""
        ...

    def replayed(self, workflow: str) -> None:
        """Take note of a run whose log is read and replayed."""
        ...

    def run_ended(self, workflow: str, status: str, at: int, took: int) -> None:
        """Take note of a run whose end is durable; `took` is the time from its first claim."""
        ...

    def swept(self, deleted: int) -> None:
        """Take note of ended runs that were deleted."""
        ...


class Observing:
    """Tells each observer. Without any it does nothing."""

    def __init__(self, now: Callable[[], int] = lambda: 0, *observers: Observer) -> None:
        """`now` returns engine time."""
        self._observers = observers
        of_attempts = [each.of_attempts(now) for each in observers]
        self._of_attempts = [tell for tell in of_attempts if tell is not None]
        self._of_claims = [e.claimed for e in observers if e.claimed is not None]
        self._of_commits = [e.committed for e in observers if e.committed is not None]
        self._of_counts = [e.counted_ends for e in observers if e.counted_ends is not None]
        self.attempt_ended: AttemptEnded | None = self._attempt_ended if self._of_attempts else None
        if len(self._of_attempts) == 1:  # without a call between: attempts are many
            (self.attempt_ended,) = self._of_attempts
        self.claimed: Claimed | None = self._claimed if self._of_claims else None
        self.committed: CommitEnded | None = self._committed if self._of_commits else None
        self.counted_ends: CountedEnds | None = self._counted_ends if self._of_counts else None
        self.run_begun: RunBegun = self._run_begun
        self.run_ended: RunEnded = self._run_ended
        if len(observers) == 1:  # as most workers have: runs are many, too
            self.run_begun, self.run_ended = observers[0].run_begun, observers[0].run_ended

    def _attempt_ended(self, attempt: Attempt) -> None:
        for tell in self._of_attempts:
            tell(attempt)

    def _claimed(self, claims: Claims) -> None:
        for tell in self._of_claims:
            tell(claims)

    def _committed(
        self, parts: Sequence[TurnCommit], committed: Committed, took_seconds: float
    ) -> None:
        for tell in self._of_commits:
            tell(parts, committed, took_seconds)

    def _counted_ends(self, counts: MinuteCounts) -> None:
        for tell in self._of_counts:
            tell(counts)

    def attempt_repeated(self, attempt: Attempt) -> None:
        """Tell of an attempt that is not the first."""
        for each in self._observers:
            each.attempt_repeated(attempt)

    def _run_begun(self, workflow: str, at: int) -> None:
        for each in self._observers:
            each.run_begun(workflow, at)

    def replayed(self, workflow: str) -> None:
        """Tell of a replay."""
        for each in self._observers:
            each.replayed(workflow)

    def _run_ended(self, workflow: str, status: str, at: int, took: int) -> None:
        for each in self._observers:
            each.run_ended(workflow, status, at, took)

    def swept(self, deleted: int) -> None:
        """Tell of runs that were deleted."""
        for each in self._observers:
            each.swept(deleted)
