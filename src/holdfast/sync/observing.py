"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator
from typing import Unpack
from uuid import UUID

from holdfast.client.filters import RunFilters
from holdfast.client.references import RunRef
from holdfast.client.runs import Run, RunPage
from holdfast.definitions.app import AnyWorkflow
from holdfast.durations import Duration
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.spans import Timeline
from holdfast.insight.why import Explanation
from holdfast.sync.base import SyncBase
from holdfast.types import JSON, LoggedEvent, Pause, WorkerInfo


class SyncObserver(SyncBase):
    """The half of a client that changes nothing."""

    def get(self, run: RunRef, workflow: AnyWorkflow | None = None) -> Run:
        """Return a run by its id, or the newest run of a workflow and key.

        The newest is what the run that was started with the key was continued as, or retried as;
        `continued_as` and the ids lead to each. It is the one meant wherever a key is given.

        Its values are of the types that its workflow declares, where that is given here or with
        the key, or is in the client's app; else they are plain JSON values. Raises RunNotFound.

        ```python
        run = client.get((checkout, "order-7"))
        print(run.state, run.input)
        ```
        """
        return self._call(self._target.get, run, workflow)

    def wait(self, run: RunRef, timeout: Duration | None = None) -> Run:
        """Return a run once it has ended, however it did.

        Of a run that continued as new it is the newest. Raises RunNotFound, and ResultTimeout
        when `timeout` is up first.

        ```python
        run = client.wait(run_id, timeout="1m")
        print(run.status)
        ```
        """
        return self._call(self._target.wait, run, timeout)

    def log(self, run: RunRef, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return a run's log from an index on. Raises RunNotFound.

        ```python
        for entry in client.log(run_id):
            print(entry.idx, entry.event.type)
        ```
        """
        return self._call(self._target.log, run, from_index)

    def follow_log(self, run: RunRef, from_index: int = 0) -> Generator[LoggedEvent]:
        """Iterate over a run's log as it grows, until the run has ended; drives nothing.

        Raises RunNotFound.

        ```python
        for entry in client.follow_log(run_id):
            print(entry.event.type)
        ```
        """
        return self._portal.iterate(self._target.follow_log(run, from_index))

    def why(self, run: RunRef) -> Explanation:
        """Return what a run does or waits for, and the actions that would move it.

        Each activity, child and approval that it waits for is explained. Raises RunNotFound.

        ```python
        found = client.why(run_id)
        print(found.because, [action.do for action in found.actions])
        ```
        """
        return self._call(self._target.why, run)

    def timeline(self, run: RunRef) -> Timeline:
        """Return what happened in a run as spans: steps, calls, timers, messages.

        Raises RunNotFound.

        ```python
        for span in (client.timeline(run_id)).spans:
            print(span.kind, span.label, span.outcome)
        ```
        """
        return self._call(self._target.timeline, run)

    def values(self, run: RunRef) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set; empty if it has set none.

        Raises RunNotFound.

        ```python
        values = client.values(run_id)
        print(values.get("progress"))
        ```
        """
        return self._call(self._target.values, run)

    def watch_value(self, run: RunRef, name: str) -> Generator[JSON]:
        """Iterate over a value that the run sets: what it is now, then each change, to the end.

        Goes on with the runs that it continues as. Raises RunNotFound.

        ```python
        for progress in client.watch_value(run_id, "progress"):
            print(progress)
        ```
        """
        return self._portal.iterate(self._target.watch_value(run, name))

    def approvals(self, run: RunRef | None = None, limit: int = 100) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first.

        ```python
        for approval in client.approvals():
            print(approval.run_id, approval.key, approval.title)
        ```
        """
        return self._call(self._target.approvals, run, limit)

    def list(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of runs, newest first. `filters` are those of `RunFilters`.

        ```python
        page = client.list(states="waiting", names="checkout", limit=20)
        ```
        """
        return self._call(self._target.list, **filters)

    def runs(self, **filters: Unpack[RunFilters]) -> Generator[Run]:
        """Iterate over all runs that `list` would page through; `limit` is a page's size.

        ```python
        for run in client.runs(states=["failed"], since=yesterday):
            print(run.run_id, run.error)
        ```
        """
        return self._portal.iterate(self._target.runs(**filters))

    def ids(self, beginning: str, limit: int = 10) -> builtins.list[UUID]:
        """Return the ids of runs that begin with these hexadecimal digits, in order.

        Raises ConfigurationError for another text than digits and hyphens of an id.

        ```python
        for run_id in client.ids("0198c0de"):
            print(run_id)
        ```
        """
        return self._call(self._target.ids, beginning, limit)

    def workers(self) -> builtins.list[WorkerInfo]:
        """Return the workers that are signed on.

        ```python
        print([worker.hostname for worker in client.workers()])
        ```
        """
        return self._call(self._target.workers)

    def pauses(self) -> builtins.list[Pause]:
        """Return the queues and the workflows that are paused.

        ```python
        print([pause.name for pause in client.pauses() if pause.scope == "queue"])
        ```
        """
        return self._call(self._target.pauses)
