"""Generated from the asynchronous module by scripts/generate_sync.py."""

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


class SyncRuns(SyncGroup[Runs]):
    """All runs: find them, read them, and change them, one or many at a time.

    A run is given by its id, or by its workflow and key. By a key the newest run is meant: the last
    one that the run was continued as, or retried as.
    """

    def list(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of runs, newest first; to loop over all of them, use `iterate`.

        `filters` are those of `RunFilters`.

        ```python
        page = client.runs.list(states="waiting", names="checkout", limit=20)
        for run in page.runs:
            print(run.run_id, run.key)
        ```
        """
        return self._call(self._target.list, **filters)

    def count(self, by: CountBy, **filters: Unpack[RunFilters]) -> RunCounts:
        """Return how many runs there are of each workflow, state, queue or tag, most first.

        With the name of an attribute, it is how many there are of each of its values, as texts.

        `filters` are those of `list`, without `limit`, `cursor` and `payloads`. The newest 10,000
        runs that match are counted, or fewer if they take long to find; `searched_until` then says
        how far. A run counts for each of its tags.

        ```python
        counted = client.runs.count(by="state", names="checkout")
        print(counted.counts.get("failed", 0))
        ```
        """
        return self._call(self._target.count, by, **filters)

    def iterate(self, **filters: Unpack[RunFilters]) -> Generator[Run]:
        """Iterate over all runs that `list` gives page by page; `limit` is the size of a page.

        ```python
        for run in client.runs.iterate(states=["failed"], since=yesterday):
            print(run.run_id, run.error)
        ```
        """
        return self._portal.iterate(self._target.iterate(**filters))

    def find_ids(self, beginning: str, limit: int = 10) -> builtins.list[UUID]:
        """Return the ids of runs that begin with these hexadecimal digits, in order.

        Raises ConfigurationError for a text that is not digits and hyphens of an id.

        ```python
        for run_id in client.runs.find_ids("0198c0de"):
            print(run_id)
        ```
        """
        return self._call(self._target.find_ids, beginning, limit)

    def get(self, run: RunRef, workflow: AnyStartable | None = None) -> Run:
        """Return a run as it is now. Raises RunNotFound.

        Its values are of the types that its workflow declares if the workflow is given here or
        with the key, or is in the client's app; else they are plain JSON values.

        ```python
        run = client.runs.get((checkout, "order-7"))
        print(run.state, run.input)
        ```
        """
        return self._call(self._target.get, run, workflow)

    def wait(self, run: RunRef, timeout: Duration | None = None) -> Run:
        """Wait until a run has ended, in whatever way, and return it.

        If the run continued as new, the newest run is waited for and returned. Raises RunNotFound,
        and ResultTimeout when `timeout` is up first.

        ```python
        run = client.runs.wait(run_id, timeout="1m")
        print(run.status)
        ```
        """
        return self._call(self._target.wait, run, timeout)

    def log(self, run: RunRef, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return a run's log from an index on. Raises RunNotFound.

        ```python
        for entry in client.runs.log(run_id):
            print(entry.idx, entry.event.type)
        ```
        """
        return self._call(self._target.log, run, from_index)

    def follow_log(self, run: RunRef, from_index: int = 0) -> Generator[LoggedEvent]:
        """Iterate over a run's log as it grows, until the run has ended. Raises RunNotFound.

        ```python
        for entry in client.runs.follow_log(run_id):
            print(entry.event.type)
        ```
        """
        return self._portal.iterate(self._target.follow_log(run, from_index))

    def read_log_lines(
        self, run: RunRef, *, limit: int = 1000, **options: Unpack[LogOptions]
    ) -> LogLinePage:
        """Return what the code of a run has logged by `logging`, up to `limit` lines.

        Workers keep it with `run_logs`; lines of attempts that do not count are among them.
        `options` are those of `LogOptions`. Raises RunNotFound, and InvalidInput.

        ```python
        page = client.runs.read_log_lines(run_id, level="warning")
        for line in page.lines:
            print(line.at, line.level, line.message)
        ```
        """
        return self._call(self._target.read_log_lines, run, limit=limit, **options)

    def follow_log_lines(self, run: RunRef, **options: Unpack[LogOptions]) -> Generator[LogLine]:
        """Iterate over what the code of a run logs, until the run has ended; see `read_log_lines`.

        ```python
        for line in client.runs.follow_log_lines(run_id):
            print(line.at, line.level, line.message)
        ```
        """
        return self._portal.iterate(self._target.follow_log_lines(run, **options))

    def values(self, run: RunRef) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set; empty if it has set none.

        Raises RunNotFound.

        ```python
        values = client.runs.values(run_id)
        print(values.get("progress"))
        ```
        """
        return self._call(self._target.values, run)

    def watch_value(self, run: RunRef, name: str) -> Generator[JSON]:
        """Iterate over a value that the run sets: what it is now, then each change, to the end.

        Continues with the runs that it continues as. Raises RunNotFound.

        ```python
        for progress in client.runs.watch_value(run_id, "progress"):
            print(progress)
        ```
        """
        return self._portal.iterate(self._target.watch_value(run, name))

    def watch_steps(self, run: RunRef) -> Generator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run: as they are now, then at each change, to the end.

        Each list has all steps, in the order of the flow, without their outputs. Of changes that
        follow each other within a tenth of a second, the last is seen. Raises RunNotFound, and
        ConfigurationError for the run of a workflow: see `follow_log`.

        ```python
        for steps in client.runs.watch_steps(run_id):
            print([(step.step, step.state, step.done, step.tasks) for step in steps])
        ```
        """
        return self._portal.iterate(self._target.watch_steps(run))

    def cancel(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """Ask a run to end; its code may clean up first. Return False if it had ended before.

        A run that no worker has begun ends at once. `by` is who asks for it: the log has it, with
        the reason. Raises RunNotFound.

        ```python
        client.runs.cancel(run_id, reason="the customer changed their mind")
        ```
        """
        return self._call(self._target.cancel, run, reason, by=by)

    def terminate(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """End a run at once, without its code. Return False if it had ended before.

        Raises RunNotFound.

        ```python
        client.runs.terminate(run_id, reason="started by mistake")
        ```
        """
        return self._call(self._target.terminate, run, reason, by=by)

    def pause(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """Let a run do nothing until it is resumed. Return False if it was paused before.

        Steps that are running end and are recorded. Timers do not fire, and signals are kept until
        then. A deadline still ends the run. Raises RunNotFound and RunEnded.

        ```python
        client.runs.pause(("checkout", "order-7"), reason="the shop is closed")
        ```
        """
        return self._call(self._target.pause, run, reason, by=by)

    def resume(self, run: RunRef, *, by: str | None = None) -> bool:
        """Let a paused run continue, or try a stuck one again now. Return False for any other.

        A stuck run is tried again by itself too, after pauses that grow; they begin again with the
        shortest. Raises RunNotFound and RunEnded.

        ```python
        client.runs.resume(("checkout", "order-7"))
        ```
        """
        return self._call(self._target.resume, run, by=by)

    def reschedule(
        self,
        run: RunRef,
        *,
        reason: str | None = None,
        by: str | None = None,
        **change: Unpack[RescheduleOptions],
    ) -> bool:
        """Change the queue, the start or the deadline of an open run; False if it was so before.

        A run that a worker holds leaves its queue when it next suspends; its activities stay in
        theirs. A start can change until a worker has begun the run, and a deadline moves with it.
        `change` are the fields of `RescheduleOptions`; all of them hold, or none. The log has the
        change. Raises RunNotFound, RunEnded and RescheduleRefused.

        ```python
        order = ("checkout", "order-7")
        client.runs.reschedule(order, queue="slow", timeout="2h", reason="a large order")
        ```
        """
        return self._call(self._target.reschedule, run, reason=reason, by=by, **change)

    def retry(
        self, run: RunRef, *, from_step: str | None = None, failed_steps: bool = False
    ) -> SyncRunHandle[object]:
        """Start a run that continues where another one failed, with all that it had completed.

        The other run failed, timed out, was cancelled or terminated. A run is retried once: the
        same call again finds the retry; if that failed too, retry it in turn. By a key, the newest
        run is retried if it failed, and returned if it is a retry that did not fail.

        The calls whose failures ended the run are made again, and so is what the code called
        because of them, such as a compensation: see `retry_plan`. With `failed_steps` all calls
        that failed are made again, also those whose failures the code had handled.

        A flow's run keeps the outputs of its steps and of the elements of maps. With `from_step`
        that step and all steps after it run again whatever they had, also if the run completed; for
        another such run of one that was retried already, fork it with `step`.

        Raises ForkRefused and RunNotFound.

        ```python
        try:
            retried = client.runs.retry(run_id)
        except ForkRefused as refusal:
            print(refusal.reason)
        ```
        """
        return SyncRunHandle(
            self._portal,
            self._call(self._target.retry, run, from_step=from_step, failed_steps=failed_steps),
        )

    def retry_plan(self, run: RunRef, *, failed_steps: bool = False) -> RetryPlan:
        """Return which calls a retry would keep, and which it would make again, by key.

        It is empty for a run that cannot be retried, and for a flow's. Raises RunNotFound.

        ```python
        plan = client.runs.retry_plan(run_id)
        print("kept:", plan.kept, "made again:", plan.failed + plan.after)
        ```
        """
        return self._call(self._target.retry_plan, run, failed_steps=failed_steps)

    def fork(self, run: RunRef, **options: Unpack[ForkOptions]) -> SyncRunHandle[object]:
        """Start a run that continues from a place in another run's log.

        What was completed before that place is kept: those steps are not executed again. What was
        begun and not completed by then is begun again. The other run is not changed. `options` are
        those of `ForkOptions`; with a `run_id` the same call again finds the same run.

        The fork of a flow keeps all steps that completed or were skipped, but not those after a
        step that has another result; with another input it keeps nothing but the `results`.

        Raises ForkRefused for a place or a step that the run does not have, InvalidInput,
        PayloadError, ConfigurationError for options that do not go together, and RunNotFound.

        ```python
        forked = client.runs.fork(("checkout", "order-7"), index=1, input=Order(8))
        ```
        """
        return SyncRunHandle(self._portal, self._call(self._target.fork, run, **options))

    def set_attributes(
        self, run: RunRef, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue]:
        """Set attributes of a run, open or ended, and return all that it has; None removes one.

        Texts have up to 500 characters, and all attributes take 4,096 bytes at most. No codec
        encodes them: who may read the database reads them. Raises RunNotFound, InvalidName and
        InvalidInput.

        ```python
        client.runs.set_attributes(run_id, {"customer": "acme", "seats": 12, "trial": None})
        ```
        """
        return self._call(self._target.set_attributes, run, attributes)

    def set_tags(
        self,
        run: RunRef,
        tags: Iterable[str] | None = None,
        *,
        add: Iterable[str] = (),
        remove: Iterable[str] = (),
    ) -> builtins.list[str]:
        """Change the tags of a run, open or ended, and return all that it has.

        `tags` replaces all that it had, `add` and `remove` change some. Raises RunNotFound and
        InvalidInput.

        ```python
        client.runs.set_tags(run_id, add=["reviewed"], remove=["new"])
        ```
        """
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
        """Ask all runs of a filter to end; see `cancel`.

        `where` has the filters of `list`; `{}` matches all runs. Without `states` in it, runs in
        those states are changed in which the change has an effect. Runs may be given in its place,
        as in `cancel_all([run_id, ("checkout", "order-7")])`: each leads to its newest run, as in
        `cancel`. `progress` is called after each page of runs. A page is changed as a whole or not
        at all: the call may be interrupted and repeated, and changes nothing twice. The same holds
        for all these methods.

        ```python
        done = client.runs.cancel_all({"names": "checkout"}, reason="closed", dry_run=True)
        print(done.changed)
        ```
        """
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
        """End all runs of a filter at once, without their code; see `terminate`, `cancel_all`.

        ```python
        done = client.runs.terminate_all({"tags": "trial", "states": "stuck"})
        print(done.changed, "of", done.matched)
        ```
        """
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
        """Let all runs of a filter do nothing until they are resumed; see `pause`, `cancel_all`.

        Runs that are started later are not paused: pause their workflow or their queue for that.

        ```python
        where = {"names": "checkout", "tags": "mail"}
        client.runs.pause_all(where, reason="no mail today")
        ```
        """
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
        """Let all paused and stuck runs of a filter continue; see `resume` and `cancel_all`.

        ```python
        client.runs.resume_all({"names": "checkout"})
        ```
        """
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
        """Change queue, start or deadline of all open runs of a filter; see `reschedule`.

        Runs that cannot be changed so, because they have begun or wait for a rule, are unchanged.

        ```python
        where = {"names": "report", "states": "queued"}
        client.runs.reschedule_all(where, queue="night", delay="6h")
        ```
        """
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
        """Send all runs of a filter a signal; see `SyncClient.signal` and `cancel_all`.

        With a `signal_id` the same call may be made again: each run has the signal once.

        ```python
        client.runs.signal_all({"names": "checkout"}, "prices-changed", signal_id="may")
        ```
        """
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
        """Retry all runs of a filter that failed or timed out; see `retry` and `cancel_all`.

        A run that was retried before is left as it is, so the same call may be made again.

        ```python
        done = client.runs.retry_all({"names": "checkout", "since": yesterday})
        print(done.changed, "of", done.matched)
        ```
        """
        return self._call(self._target.retry_all, where, dry_run=dry_run, progress=progress)
