"""What a worker counts: runs, attempts, claims and commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from holdfast.definitions.steps import StepContext
from holdfast.events import SIGNAL_SENT
from holdfast.telemetry.sending import hint_families, signals_counter
from holdfast.telemetry.tallies import Counter, Family, Histogram, gauge
from holdfast.types import Claims, Committed, MinuteCounts, TurnCommit
from holdfast.types.stats import BOUNDS, BUCKETS, ENDED, MILLIS
from holdfast.values.names import split_name

if TYPE_CHECKING:  # the server counts, too, and does not need the worker
    from holdfast.worker import Worker
    from holdfast.worker.observing import Attempt, AttemptEnded

_S: Final = 1_000_000
_STEP_BOUNDS: Final = tuple(
    round(each * _S)
    for each in (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)
)
_RUN_BOUNDS: Final = tuple(round(each * _S) for each in BOUNDS)  # as the database counts
_COMMIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_BATCH_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 400)


class WorkerMetrics:
    """The metrics of one worker: give it to the worker as an observer.

    Steps, activities and consumers are all counted as steps; only steps have a workflow, the
    label of the others is empty.
    """

    def __init__(self) -> None:
        self.started = Counter(
            "workflow_runs_started_total", "Runs that were claimed first.", ("workflow",)
        )
        self.completed = Counter(
            "workflow_runs_completed_total", "Runs that have ended.", ("workflow", "status")
        )
        self.run_seconds = Histogram(
            "workflow_run_duration_seconds",
            "Time of runs from the first claim to the end.",
            ("workflow",),
            _RUN_BOUNDS,
            unit=_S,
        )
        self.step_seconds = Histogram(
            "workflow_step_duration_seconds",
            "Time of attempts of steps, activities and consumers.",
            ("workflow", "step"),
            _STEP_BOUNDS,
            unit=_S,
        )
        self.retries = Counter(
            "workflow_step_retries_total",
            "Attempts of steps, activities and consumers after the first.",
            ("workflow", "step"),
        )
        self.signals = signals_counter()
        self.deleted = Counter(
            "workflow_retention_swept_total", "Ended runs that were deleted after their retention."
        )
        self.claims = Counter("holdfast_claims_total", "Claims that were answered.")
        self.tasks = Counter("holdfast_claimed_tasks_total", "Tasks that were claimed.", ("queue",))
        self.commit_runs = Histogram(
            "holdfast_commit_runs", "Runs of one commit.", (), _BATCH_BOUNDS
        )
        self.commit_seconds = Histogram(
            "holdfast_commit_seconds", "Time until a commit was answered.", (), _COMMIT_BOUNDS
        )
        self.conflicts = Counter(
            "holdfast_commit_conflicts_total", "Runs to whose logs others had appended meanwhile."
        )
        self.replays = Counter(
            "holdfast_replays_total", "Runs whose logs were read and replayed.", ("workflow",)
        )
        self._tallies: Sequence[Counter | Histogram] = [
            each for each in vars(self).values() if isinstance(each, Counter | Histogram)
        ]
        self._worker: Worker | None = None

    def watch(self, worker: Worker) -> None:
        """Show as well what this worker holds."""
        self._worker = worker

    def families(self) -> list[Family]:
        """Return all metrics. Safe from any thread."""
        families = [each.family() for each in self._tallies]
        return families if self._worker is None else families + _saturation(self._worker)

    # What the worker tells

    def of_attempts(self, now: Callable[[], int]) -> AttemptEnded:
        """Return what counts an attempt that has ended."""
        observe = self.step_seconds.observe

        def ended(attempt: Attempt) -> None:
            context = attempt.context
            workflow = context.workflow if isinstance(context, StepContext) else ""
            observe((workflow, attempt.function.name), now() - attempt.started_at)

        return ended

    def attempt_repeated(self, attempt: Attempt) -> None:
        """Count an attempt that is not the first."""
        context = attempt.context
        workflow = context.workflow if isinstance(context, StepContext) else ""
        self.retries.add((workflow, attempt.function.name))

    def claimed(self, claims: Claims) -> None:
        """Count a claim and its tasks."""
        self.claims.add()
        for task in claims.tasks:
            self.tasks.add((task.queue,))

    def run_begun(self, workflow: str, at: int) -> None:
        """Count a run that begins."""
        self.started.add((workflow,))

    def committed(
        self, parts: Sequence[TurnCommit], committed: Committed, took_seconds: float
    ) -> None:
        """Count a commit, and the signals that it sent."""
        self.commit_runs.observe((), len(parts))
        self.commit_seconds.observe((), took_seconds)
        refused = committed.refused
        if refused:
            self.conflicts.add((), sum(each.reason == "conflict" for each in refused.values()))
        undelivered = {(each.run_id, each.target, each.name) for each in committed.undelivered}
        for part in parts:
            if part.touches and part.run_id not in refused:
                self._count_signals(part, undelivered)

    def replayed(self, workflow: str) -> None:
        """Count a replay."""
        self.replays.add((workflow,))

    def run_ended(self, workflow: str, status: str, at: int, took: int) -> None:
        """Count the end of a run."""
        self.completed.add((workflow, status))
        self.run_seconds.observe((workflow,), took)

    def counted_ends(self, counts: MinuteCounts) -> None:
        """Count runs that ended without a worker's commit, as the database has counted them."""
        workflow, numbers = split_name(counts.name)[1], counts.counts
        for status, place in ENDED.items():
            if numbers[place]:
                self.completed.add((workflow, status), numbers[place])
        self.run_seconds.add((workflow,), numbers[BUCKETS:], numbers[MILLIS] * 1000)

    def swept(self, deleted: int) -> None:
        """Count runs that were deleted."""
        self.deleted.add((), deleted)

    def _count_signals(
        self, part: TurnCommit, undelivered: Collection[tuple[UUID, UUID, str]]
    ) -> None:
        for event in part.events:
            if event.type == SIGNAL_SENT and event.details is not None:
                sent = _read_sent(event.details)
                if (part.run_id, sent.run_id, sent.signal_name) not in undelivered:
                    self.signals.add((sent.signal_name,))


class _Sent(msgspec.Struct):
    run_id: UUID
    signal_name: str


_read_sent: Final[Callable[[str], _Sent]] = msgspec.json.Decoder(_Sent).decode


def _saturation(worker: Worker) -> list[Family]:
    """Return how full and how late a worker is."""
    load = worker.load
    taken = None if load.threads is None else load.threads.taken
    gauges = (
        ("holdfast_worker_held", "Runs, activities and steps that it holds.", load.held),
        ("holdfast_worker_concurrency", "How many it may hold.", worker.info.concurrency),
        ("holdfast_cache_runs", "Suspended runs that it keeps in memory.", load.cached),
        (
            "holdfast_heartbeat_late_seconds",
            "For how long the answer to its heartbeat is overdue.",
            load.heartbeat_late_seconds,
        ),
        (
            "holdfast_loop_lag_seconds",
            "How long a call took through its event loop, at the last heartbeat.",
            load.loop_lag_seconds,
        ),
        ("holdfast_step_threads_busy", "Threads of steps and activities that are in use.", taken),
    )
    families = [gauge(name, about, value) for name, about, value in gauges if value is not None]
    if load.spans_dropped is not None:
        dropped = Counter("holdfast_spans_dropped_total", "Spans that were not written.")
        dropped.add((), load.spans_dropped)
        families.append(dropped.family())
    return [*families, *hint_families(load.hints)]
