"""`client.runs`: list, read, control, retry and fork runs."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Final, Unpack
from uuid import UUID

import msgspec

from holdfast.client.bulk import BulkChange, BulkOutcome
from holdfast.client.chains import newest
from holdfast.client.control import (
    cancel_run,
    pause_run,
    resume_run,
    set_attributes,
    set_tags,
    terminate_run,
)
from holdfast.client.filters import RunFilters, run_filter
from holdfast.client.forking import ForkOptions, fork_run, prepare_fork, retry_of, retry_run
from holdfast.client.handle import RunHandle
from holdfast.client.naming import RunRef, given_workflow
from holdfast.client.outcomes import wait_for_newest
from holdfast.client.reading import (
    follow_log,
    get_record,
    get_run,
    get_values,
    read_log,
    watch_steps,
    watch_value,
)
from holdfast.client.rescheduling import RescheduleOptions, read_change, reschedule_run
from holdfast.client.run import Run, RunPage, read_page
from holdfast.client.run_logs import LogOptions, follow_lines, follow_log_lines, read_log_lines
from holdfast.client.session import Group
from holdfast.definitions.startable import AnyStartable
from holdfast.errors import ConfigurationError
from holdfast.insight.flow_progress import StepProgress
from holdfast.types import (
    JSON,
    AttributeValue,
    CountBy,
    LoggedEvent,
    LogLine,
    LogLinePage,
    RetryPlan,
    RunCounts,
    RunRecord,
    Status,
)
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import COUNTED, check_attribute_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.texts import check_text

_MOST_COUNTED: Final = 10_000


class Runs(Group):
    """All runs: find them, read them, and change them, one or many at a time.

    A run is given by its id, or by its workflow and key. By a key the newest run is meant: the last
    one that the run was continued as, or retried as.
    """

    # Finding

    async def list(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of runs, newest first; to loop over all of them, use `iterate`.

        `filters` are those of `RunFilters`.

        ```python
        page = await client.runs.list(states="waiting", names="checkout", limit=20)
        for run in page.runs:
            print(run.run_id, run.key)
        ```
        """
        where = await run_filter(filters, self._session.names)
        return read_page(await self._session.reads.list_runs(where), self._session.app)

    async def count(self, by: CountBy, **filters: Unpack[RunFilters]) -> RunCounts:
        """Return how many runs there are of each workflow, state, queue or tag, most first.

        With the name of an attribute, it is how many there are of each of its values, as texts.

        `filters` are those of `list`, without `limit`, `cursor` and `payloads`. The newest 10,000
        runs that match are counted, or fewer if they take long to find; `searched_until` then says
        how far. A run counts for each of its tags.

        ```python
        counted = await client.runs.count(by="state", names="checkout")
        print(counted.counts.get("failed", 0))
        ```
        """
        if by not in COUNTED:
            check_attribute_name(by)
        if paging := filters.keys() & {"limit", "cursor", "payloads"}:
            raise ConfigurationError(f"a count has no pages: leave out {', '.join(sorted(paging))}")
        where = await run_filter(filters, self._session.names)
        counted = msgspec.structs.replace(where, limit=_MOST_COUNTED)
        return await self._session.reads.count_runs_by(by, counted)

    async def iterate(self, **filters: Unpack[RunFilters]) -> AsyncGenerator[Run]:
        """Iterate over all runs that `list` gives page by page; `limit` is the size of a page.

        ```python
        async for run in client.runs.iterate(states=["failed"], since=yesterday):
            print(run.run_id, run.error)
        ```
        """
        while True:
            page = await self.list(**filters)
            for run in page.runs:
                yield run
            if page.cursor is None:
                return
            filters["cursor"] = page.cursor

    async def find_ids(self, beginning: str, limit: int = 10) -> builtins.list[UUID]:
        """Return the ids of runs that begin with these hexadecimal digits, in order.

        Raises ConfigurationError for a text that is not digits and hyphens of an id.

        ```python
        for run_id in await client.runs.find_ids("0198c0de"):
            print(run_id)
        ```
        """
        whole_number(limit, "runs.find_ids", "limit", 0)
        digits = check_text("beginning", beginning).lower().replace("-", "")
        if not 1 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
            raise ConfigurationError(
                f"{beginning!r} is not the beginning of a run's id: write 1 to 32 of its digits"
            )
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        return await self._session.store.runs_between(first, last, limit)

    # Reading one

    async def get(self, run: RunRef, workflow: AnyStartable | None = None) -> Run:
        """Return a run as it is now. Raises RunNotFound.

        Its values are of the types that its workflow declares if the workflow is given here or
        with the key, or is in the client's app; else they are plain JSON values.

        ```python
        run = await client.runs.get((checkout, "order-7"))
        print(run.state, run.input)
        ```
        """
        return await get_run(self._session, run, workflow)

    async def wait(self, run: RunRef, timeout: Duration | None = None) -> Run:
        """Wait until a run has ended, in whatever way, and return it.

        If the run continued as new, the newest run is waited for and returned. Raises RunNotFound,
        and ResultTimeout when `timeout` is up first.

        ```python
        run = await client.runs.wait(run_id, timeout="1m")
        print(run.status)
        ```
        """
        limit = None if timeout is None else seconds(timeout)
        began = asyncio.get_running_loop().time()
        while True:
            ended = await wait_for_newest(self._session, run, limit, began)
            found = await get_run(self._session, ended.run_id, given_workflow(run))
            if found.status != "running":  # else its key was used again since the end was read
                return found

    async def log(self, run: RunRef, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return a run's log from an index on. Raises RunNotFound.

        ```python
        for entry in await client.runs.log(run_id):
            print(entry.idx, entry.event.type)
        ```
        """
        return await read_log(self._session, run, from_index)

    def follow_log(self, run: RunRef, from_index: int = 0) -> AsyncGenerator[LoggedEvent]:
        """Iterate over a run's log as it grows, until the run has ended. Raises RunNotFound.

        ```python
        async for entry in client.runs.follow_log(run_id):
            print(entry.event.type)
        ```
        """
        return follow_log(self._session, run, from_index)

    async def read_log_lines(
        self, run: RunRef, *, limit: int = 1000, **options: Unpack[LogOptions]
    ) -> LogLinePage:
        """Return what the code of a run has logged by `logging`, up to `limit` lines.

        Workers keep it with `run_logs`; lines of attempts that do not count are among them.
        `options` are those of `LogOptions`. Raises RunNotFound, and InvalidInput.

        ```python
        page = await client.runs.read_log_lines(run_id, level="warning")
        for line in page.lines:
            print(line.at, line.level, line.message)
        ```
        """
        return await read_log_lines(self._session, run, limit, options)

    def follow_log_lines(
        self, run: RunRef, **options: Unpack[LogOptions]
    ) -> AsyncGenerator[LogLine]:
        """Iterate over what the code of a run logs, until the run has ended; see `read_log_lines`.

        ```python
        async for line in client.runs.follow_log_lines(run_id):
            print(line.at, line.level, line.message)
        ```
        """
        return follow_log_lines(self._session, run, options)

    async def values(self, run: RunRef) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set; empty if it has set none.

        Raises RunNotFound.

        ```python
        values = await client.runs.values(run_id)
        print(values.get("progress"))
        ```
        """
        return await get_values(self._session, run)

    def watch_value(self, run: RunRef, name: str) -> AsyncGenerator[JSON]:
        """Iterate over a value that the run sets: what it is now, then each change, to the end.

        Continues with the runs that it continues as. Raises RunNotFound.

        ```python
        async for progress in client.runs.watch_value(run_id, "progress"):
            print(progress)
        ```
        """
        return watch_value(self._session, run, name)

    def watch_steps(self, run: RunRef) -> AsyncGenerator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run: as they are now, then at each change, to the end.

        Each list has all steps, in the order of the flow, without their outputs. Of changes that
        follow each other within a tenth of a second, the last is seen. Raises RunNotFound, and
        ConfigurationError for the run of a workflow: see `follow_log`.

        ```python
        async for steps in client.runs.watch_steps(run_id):
            print([(step.step, step.state, step.done, step.tasks) for step in steps])
        ```
        """
        return watch_steps(self._session, run)

    # Changing one: if it continued as new, the newest is changed

    async def cancel(
        self, run: RunRef, reason: str | None = None, *, by: str | None = None
    ) -> bool:
        """Ask a run to end; its code may clean up first. Return False if it had ended before.

        A run that no worker has begun ends at once. `by` is who asks for it: the log has it, with
        the reason. Raises RunNotFound.

        ```python
        await client.runs.cancel(run_id, reason="the customer changed their mind")
        ```
        """
        return await cancel_run(self._session, run, reason, by)

    async def terminate(
        self, run: RunRef, reason: str | None = None, *, by: str | None = None
    ) -> bool:
        """End a run at once, without its code. Return False if it had ended before.

        Raises RunNotFound.

        ```python
        await client.runs.terminate(run_id, reason="started by mistake")
        ```
        """
        return await terminate_run(self._session, run, reason, by)

    async def pause(self, run: RunRef, reason: str | None = None, *, by: str | None = None) -> bool:
        """Let a run do nothing until it is resumed. Return False if it was paused before.

        Steps that are running end and are recorded. Timers do not fire, and signals are kept until
        then. A deadline still ends the run. Raises RunNotFound and RunEnded.

        ```python
        await client.runs.pause(("checkout", "order-7"), reason="the shop is closed")
        ```
        """
        return await pause_run(self._session, run, reason, by)

    async def resume(self, run: RunRef, *, by: str | None = None) -> bool:
        """Let a paused run continue, or try a stuck one again now. Return False for any other.

        A stuck run is tried again by itself too, after pauses that grow; they begin again with the
        shortest. Raises RunNotFound and RunEnded.

        ```python
        await client.runs.resume(("checkout", "order-7"))
        ```
        """
        return await resume_run(self._session, run, by)

    async def reschedule(
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
        await client.runs.reschedule(order, queue="slow", timeout="2h", reason="a large order")
        ```
        """
        return await reschedule_run(self._session, run, change, reason, by)

    async def retry(
        self, run: RunRef, *, from_step: str | None = None, failed_steps: bool = False
    ) -> RunHandle[object]:
        """Start a run that continues where another one failed, with all that it had completed.

        The other run failed, timed out, was cancelled or terminated. A run is retried once: the
        same call again finds the retry; if that failed too, retry it in turn. By a key, the newest
        run is retried if it failed, and returned if it is a retry that did not fail.

        The calls whose failures ended the run are made again, and so is what the code called
        because of them, such as a compensation: see `retry_plan`. With `failed_steps` all calls
        that failed are made again, also those whose failures the code had handled.

        A flow's run keeps the outputs of its steps and of the elements of maps. With `from_step`
        that step and all steps after it run again whatever they had, also if the run completed; for
        another such run of one that was retried already, fork it with `step`. With `failed_steps`
        what failed without failing the run is repeated too, also if the run completed: steps that
        were skipped after their last attempt, elements that their map tolerated, and all steps
        after these.

        Raises ForkRefused and RunNotFound.

        ```python
        try:
            retried = await client.runs.retry(run_id)
        except ForkRefused as refusal:
            print(refusal.reason)
        ```
        """
        true_or_false(failed_steps, "failed_steps")
        found = await retry_of(self._session, run, from_step, failed_steps=failed_steps)
        if isinstance(found, RunRecord):
            return self._handle(found.run_id, already_existed=True, status_at_start=found.status)
        kind = (await get_record(self._session, found.run_id)).kind
        created, status = await retry_run(self._session, found, kind, from_step)
        return self._handle(found.new_run_id, already_existed=not created, status_at_start=status)

    async def retry_plan(self, run: RunRef, *, failed_steps: bool = False) -> RetryPlan:
        """Return which calls a retry would keep, and which it would make again, by key.

        It is empty for a run that cannot be retried, and for a flow's. Raises RunNotFound.

        ```python
        plan = await client.runs.retry_plan(run_id)
        print("kept:", plan.kept, "made again:", plan.failed + plan.after)
        ```
        """
        true_or_false(failed_steps, "failed_steps")
        run_id = await newest(self._session.store, await self._session.newest_of(run))
        await get_record(self._session, run_id)
        return await self._session.store.retry_plan(run_id, failed_steps=failed_steps)

    async def fork(self, run: RunRef, **options: Unpack[ForkOptions]) -> RunHandle[object]:
        """Start a run that continues from a place in another run's log.

        What was completed before that place is kept: those steps are not executed again. What was
        begun and not completed by then is begun again. The other run is not changed. `options` are
        those of `ForkOptions`; with a `run_id` the same call again finds the same run.

        The fork of a flow keeps all steps that completed or were skipped, but not those after a
        step that has another result; with another input it keeps nothing but the `results`.

        Raises ForkRefused for a place or a step that the run does not have, InvalidInput,
        PayloadError, ConfigurationError for options that do not go together, and RunNotFound.

        ```python
        forked = await client.runs.fork(("checkout", "order-7"), index=1, input=Order(8))
        ```
        """
        origin = await get_record(self._session, await self._session.newest_of(run))
        known = ForkOptions.__optional_keys__
        fork = await prepare_fork(self._session, origin, self._session.app, options, known)
        created, status = await fork_run(self._session, fork)
        return self._handle(fork.new_run_id, already_existed=not created, status_at_start=status)

    async def set_attributes(
        self, run: RunRef, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue]:
        """Set attributes of a run, open or ended, and return all that it has; None removes one.

        Texts have up to 500 characters, and all attributes take 4,096 bytes at most. No codec
        encodes them: who may read the database reads them. Raises RunNotFound, InvalidName and
        InvalidInput.

        ```python
        await client.runs.set_attributes(run_id, {"customer": "acme", "seats": 12, "trial": None})
        ```
        """
        return await set_attributes(self._session, run, attributes)

    async def set_tags(
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
        await client.runs.set_tags(run_id, add=["reviewed"], remove=["new"])
        ```
        """
        return await set_tags(self._session, run, tags, add, remove)

    # Changing all that a filter matches

    async def cancel_all(
        self,
        where: RunFilters | Iterable[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Ask all runs of a filter to end; see `cancel`.

        `where` has the filters of `list`; `{}` matches all runs, and a filter that is an empty list
        is refused (ConfigurationError). Without `states` in it, runs in those states are changed in
        which the change has an effect. Runs may be given in its place, as in
        `cancel_all([run_id, ("checkout", "order-7")])`: each leads to its newest run, as in
        `cancel`. `progress` is called after each page of runs. A page is changed as a whole or not
        at all, by `retry_all` each run: the call may be interrupted and repeated, and changes
        nothing twice. The same holds for all these methods.

        ```python
        done = await client.runs.cancel_all({"names": "checkout"}, reason="closed", dry_run=True)
        print(done.changed)
        ```
        """
        return await BulkChange(self._session, where, dry_run, progress).cancel(reason, by)

    async def terminate_all(
        self,
        where: RunFilters | Iterable[RunRef],
        *,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """End all runs of a filter at once, without their code; see `terminate`, `cancel_all`.

        ```python
        done = await client.runs.terminate_all({"tags": "trial", "states": "stuck"})
        print(done.changed, "of", done.matched)
        ```
        """
        return await BulkChange(self._session, where, dry_run, progress).terminate(reason, by)

    async def pause_all(
        self,
        where: RunFilters | Iterable[RunRef],
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
        await client.runs.pause_all(where, reason="no mail today")
        ```
        """
        return await BulkChange(self._session, where, dry_run, progress).pause(reason, by)

    async def resume_all(
        self,
        where: RunFilters | Iterable[RunRef],
        *,
        by: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all paused and stuck runs of a filter continue; see `resume` and `cancel_all`.

        ```python
        await client.runs.resume_all({"names": "checkout"})
        ```
        """
        return await BulkChange(self._session, where, dry_run, progress).resume(by)

    async def reschedule_all(
        self,
        where: RunFilters | Iterable[RunRef],
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
        where = {"names": "thumbnail", "states": "queued"}
        await client.runs.reschedule_all(where, queue="night", delay="6h")
        ```
        """
        bulk = BulkChange(self._session, where, dry_run, progress)
        return await bulk.reschedule(read_change(change), reason, by)

    async def signal_all(
        self,
        where: RunFilters | Iterable[RunRef],
        name: str,
        payload: object = None,
        *,
        signal_id: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Send all runs of a filter a signal; see `Client.signal` and `cancel_all`.

        With a `signal_id` the same call may be made again: each run has the signal once.

        ```python
        await client.runs.signal_all({"names": "checkout"}, "prices-changed", signal_id="may")
        ```
        """
        change = BulkChange(self._session, where, dry_run, progress)
        return await change.signal(name, payload, signal_id)

    async def retry_all(
        self,
        where: RunFilters | Iterable[RunRef],
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Retry all runs of a filter that failed or timed out; see `retry` and `cancel_all`.

        A run that was retried before is left as it is, so the same call may be made again. A filter
        leaves out children, because the retry of a parent starts its failed children again, or
        knows of their failures; the outcome counts them as `left_to_parents`. They are retried if
        they are given themselves, if the filter has their `parent`, or if the parent had completed
        before they ended and no retry further above starts it again.

        ```python
        done = await client.runs.retry_all({"names": "checkout", "since": yesterday})
        print(done.changed, "of", done.matched)
        ```
        """
        return await BulkChange(self._session, where, dry_run, progress).retry()

    def _handle(
        self, run_id: UUID, *, already_existed: bool, status_at_start: Status
    ) -> RunHandle[object]:
        return RunHandle(
            self._session, run_id, already_existed=already_existed, status_at_start=status_at_start
        )


def follow_lines_of(runs: Runs, run: RunRef, options: LogOptions) -> AsyncGenerator[LogLine | None]:
    """Yield what `follow_log_lines` does, and None each time that more has to be waited for."""
    return follow_lines(runs._session, run, options)  # pyright: ignore[reportPrivateUsage]
