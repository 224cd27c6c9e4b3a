"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Unpack
from uuid import UUID

from holdfast.client.bulk import BulkOutcome
from holdfast.client.filters import RunFilters
from holdfast.client.forking import ForkOptions
from holdfast.client.naming import RunRef
from holdfast.client.rescheduling import RescheduleOptions
from holdfast.client.run import Run, RunPage
from holdfast.client.run_logs import LogOptions
from holdfast.client.runs import Runs
from holdfast.definitions.startable import AnyStartable
from holdfast.insight.flow_progress import StepProgress
from holdfast.sync.base import SyncGroup
from holdfast.sync.handle import SyncRunHandle
from holdfast.types import (
    JSON,
    AttributeValue,
    CountBy,
    LoggedEvent,
    LogLine,
    LogLinePage,
    RetryPlan,
    RunCounts,
)
from holdfast.values.durations import Duration


class SyncRuns(SyncGroup[Runs], of=Runs):
    """All runs: find them, read them, and change them, one or many at a time."""

    def list(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of runs, newest first; to loop over all of them, use `iterate`."""
        return self._call(self._target.list, **filters)

    def count(self, by: CountBy, **filters: Unpack[RunFilters]) -> RunCounts:
        """Return how many runs there are of each workflow, state, queue or tag, most first."""
        return self._call(self._target.count, by, **filters)

    def iterate(self, **filters: Unpack[RunFilters]) -> Generator[Run]:
        """Iterate over all runs that `list` gives page by page; `limit` is the size of a page."""
        return self._portal.iterate(self._target.iterate(**filters))

    def find_ids(self, beginning: str, limit: int = 10) -> builtins.list[UUID]:
        """Return the ids of runs that begin with these hexadecimal digits, in order."""
        return self._call(self._target.find_ids, beginning, limit)

    def get(self, run: RunRef, workflow: AnyStartable | None = None) -> Run:
        """Return a run as it is now. Raises RunNotFound."""
        return self._call(self._target.get, run, workflow)

    def wait(self, run: RunRef, timeout: Duration | None = None) -> Run:
        """Wait until a run has ended, in whatever way, and return it."""
        return self._call(self._target.wait, run, timeout)

    def log(self, run: RunRef, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return a run's log from an index on. Raises RunNotFound."""
        return self._call(self._target.log, run, from_index)

    def follow_log(self, run: RunRef, from_index: int = 0) -> Generator[LoggedEvent]:
        """Iterate over a run's log as it grows, until the run has ended. Raises RunNotFound."""
        return self._portal.iterate(self._target.follow_log(run, from_index))

    def read_log_lines(
        self, run: RunRef, *, limit: int = 1000, **options: Unpack[LogOptions]
    ) -> LogLinePage:
        """Return what the code of a run has logged by `logging`, up to `limit` lines."""
        return self._call(self._target.read_log_lines, run, limit=limit, **options)

    def follow_log_lines(self, run: RunRef, **options: Unpack[LogOptions]) -> Generator[LogLine]:
        """Iterate over what the code of a run logs, until the run has ended; see
        `read_log_lines`.
        """
        return self._portal.iterate(self._target.follow_log_lines(run, **options))

    def values(self, run: RunRef) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set; empty if it has set none."""
        return self._call(self._target.values, run)

    def watch_value(self, run: RunRef, name: str) -> Generator[JSON]:
        """Iterate over a value that the run sets: what it is now, then each change, to the end."""
        return self._portal.iterate(self._target.watch_value(run, name))

    def watch_steps(self, run: RunRef) -> Generator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run: as they are now, then at each change, to the
        end.
        """
        return self._portal.iterate(self._target.watch_steps(run))

    def cancel(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """Ask a run to end; its code may clean up first. Return False if it had ended before."""
        return self._call(self._target.cancel, run, reason, by=by)

    def terminate(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """End a run at once, without its code. Return False if it had ended before."""
        return self._call(self._target.terminate, run, reason, by=by)

    def pause(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """Let a run do nothing until it is resumed. Return False if it was paused before."""
        return self._call(self._target.pause, run, reason, by=by)

    def resume(self, run: RunRef, *, by: str | None = None) -> bool:
        """Let a paused run continue, or try a stuck one again now. Return False for any other."""
        return self._call(self._target.resume, run, by=by)

    def reschedule(
        self,
        run: RunRef,
        *,
        reason: str | None = None,
        by: str | None = None,
        **change: Unpack[RescheduleOptions],
    ) -> bool:
        """Change the queue, the start or the deadline of an open run; False if it was so before."""
        return self._call(self._target.reschedule, run, reason=reason, by=by, **change)

    def retry(
        self, run: RunRef, *, from_step: str | None = None, failed_steps: bool = False
    ) -> SyncRunHandle[object]:
        """Start a run that continues where another one failed, with all that it had completed."""
        return SyncRunHandle(
            self._portal,
            self._call(self._target.retry, run, from_step=from_step, failed_steps=failed_steps),
        )

    def retry_plan(self, run: RunRef, *, failed_steps: bool = False) -> RetryPlan:
        """Return which calls a retry would keep, and which it would make again, by key."""
        return self._call(self._target.retry_plan, run, failed_steps=failed_steps)

    def fork(self, run: RunRef, **options: Unpack[ForkOptions]) -> SyncRunHandle[object]:
        """Start a run that continues from a place in another run's log."""
        return SyncRunHandle(self._portal, self._call(self._target.fork, run, **options))

    def set_attributes(
        self, run: RunRef, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue]:
        """Set attributes of a run, open or ended, and return all that it has; None removes one."""
        return self._call(self._target.set_attributes, run, attributes)

    def set_tags(
        self,
        run: RunRef,
        tags: Iterable[str] | None = None,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
    ) -> builtins.list[str]:
        """Change the tags of a run, open or ended, and return all that it has."""
        return self._call(self._target.set_tags, run, tags, add=add, remove=remove)

    def cancel_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Ask all runs of a filter to end; see `cancel`."""
        return self._call(
            self._target.cancel_all, where, reason=reason, by=by, dry_run=dry_run, progress=progress
        )

    def terminate_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """End all runs of a filter at once, without their code; see `terminate`, `cancel_all`."""
        return self._call(
            self._target.terminate_all,
            where,
            reason=reason,
            by=by,
            dry_run=dry_run,
            progress=progress,
        )

    def pause_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all runs of a filter do nothing until they are resumed; see `pause`, `cancel_all`."""
        return self._call(
            self._target.pause_all, where, reason=reason, by=by, dry_run=dry_run, progress=progress
        )

    def resume_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all paused and stuck runs of a filter continue; see `resume` and `cancel_all`."""
        return self._call(self._target.resume_all, where, by=by, dry_run=dry_run, progress=progress)

    def reschedule_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
        **change: Unpack[RescheduleOptions],
    ) -> BulkOutcome:
        """Change queue, start or deadline of all open runs of a filter; see `reschedule`."""
        return self._call(
            self._target.reschedule_all,
            where,
            reason=reason,
            by=by,
            dry_run=dry_run,
            progress=progress,
            **change,
        )

    def signal_all(
        self,
        where: RunFilters | Sequence[RunRef],
        name: str,
        payload: object = None,
        *,
        signal_id: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Send all runs of a filter a signal; see `Client.signal` and `cancel_all`."""
        return self._call(
            self._target.signal_all,
            where,
            name,
            payload,
            signal_id=signal_id,
            dry_run=dry_run,
            progress=progress,
        )

    def retry_all(
        self,
        where: RunFilters | Sequence[RunRef],
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Retry all runs of a filter that failed or timed out; see `retry` and `cancel_all`."""
        return self._call(self._target.retry_all, where, dry_run=dry_run, progress=progress)
