"""What a worker tells of what it does, to those that count it.

The worker knows no metric. It calls an `Observing`, which passes on to each `Observer`. Attempts,
claims and commits are many, so they are told only to observers that want them: without one, the
worker makes no call. All else is at most once a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from holdfast.definitions.recorded import AttemptContext, Recorded
from holdfast.types import Claims, Committed, HintUse, MinuteCounts, ThreadUse, TurnCommit

Tell = TypeVar("Tell", bound=Callable[..., None])


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
        self.attempt_ended: AttemptEnded | None = _all_of([e.of_attempts(now) for e in observers])
        self.claimed: Claimed | None = _all_of([e.claimed for e in observers])
        self.committed: CommitEnded | None = _all_of([e.committed for e in observers])
        self.counted_ends: CountedEnds | None = _all_of([e.counted_ends for e in observers])
        repeated: AttemptEnded | None = _all_of([e.attempt_repeated for e in observers])
        self.attempt_repeated: AttemptEnded = repeated or _nothing
        begun: RunBegun | None = _all_of([e.run_begun for e in observers])
        self.run_begun: RunBegun = begun or _nothing
        self.replayed: Callable[[str], None] = _all_of([e.replayed for e in observers]) or _nothing
        ended: RunEnded | None = _all_of([e.run_ended for e in observers])
        self.run_ended: RunEnded = ended or _nothing
        self.swept: Callable[[int], None] = _all_of([e.swept for e in observers]) or _nothing


def _all_of(calls: Iterable[Tell | None]) -> Tell | None:
    """Return what makes all of these calls; of one alone, which costs no further call, itself."""
    told = [call for call in calls if call is not None]
    if len(told) < 2:
        return told[0] if told else None

    def tell(*values: Any) -> None:
        for call in told:
            call(*values)

    return cast("Tell", tell)


def _nothing(*_: object) -> None:
    """Do nothing: nobody wants to be told."""
