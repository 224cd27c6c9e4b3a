"""Do one thing to all the runs of a filter, in pages, each of which is a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID, uuid4

import msgspec

from holdfast.client.coalescing import persist
from holdfast.client.control import Controller
from holdfast.client.filters import RunFilters, run_filter
from holdfast.client.forking import fork_run, prepare_retry
from holdfast.client.references import Signal
from holdfast.errors import ForkRefused, RunNotFound
from holdfast.insight.retries import find_retries
from holdfast.texts import check_reason
from holdfast.types import Delivered, RunRecord, State

PAGE = 200
LANES = 8  # retries that are made at once

LIVE: tuple[State, ...] = ("queued", "running", "waiting", "stuck", "paused")
FAILED: tuple[State, ...] = ("failed", "timed_out")


class BulkOutcome(msgspec.Struct, frozen=True):
    """How many runs a filter matched, and how many of them it changed.

    `unchanged` are those that had ended meanwhile, or had been changed so before. A dry run
    changes nothing and says what a call would, as far as the runs' rows tell.
    """

    matched: int = 0
    changed: int = 0
    unchanged: int = 0


class BulkController(Controller):
    """The part of a client that acts on many runs.

    `where` says on which, as the filters of `list` do; `{}` is all of them. Where it names no
    states, those count in which the change is of use. `progress` is called after each page. A
    page is all or nothing: interrupted or repeated, such a call does nothing twice.
    """

    async def cancel_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Ask all runs of a filter to end; see `Client.cancel`.

        ```python
        done = await client.cancel_all({"names": "checkout"}, reason="closed", dry_run=True)
        print(done.changed)
        ```
        """
        call = partial(self._live.store.cancel_runs, reason=check_reason(reason))
        return await self._deliver_all(where, LIVE, call, _goes_on, dry_run, progress)

    async def terminate_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """End all runs of a filter at once, without their code; see `Client.terminate`.

        ```python
        done = await client.terminate_all({"tags": "trial", "states": "stuck"})
        print(done.changed, "of", done.matched)
        ```
        """
        call = partial(self._live.store.terminate_runs, reason=check_reason(reason))
        return await self._deliver_all(where, LIVE, call, _goes_on, dry_run, progress)

    async def pause_all(
        self,
        where: RunFilters,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all runs of a filter do nothing more until they are resumed; see `Client.pause`.

        Runs that are started later are not paused: `pause_workflow` and `pause_queue` do that.

        ```python
        await client.pause_all({"names": "checkout", "tags": "mail"}, reason="no mail today")
        ```
        """
        call = partial(self._live.store.pause_runs, reason=check_reason(reason))
        return await self._deliver_all(where, LIVE, call, _can_pause, dry_run, progress)

    async def resume_all(
        self,
        where: RunFilters,
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Let all paused runs of a filter go on; see `Client.resume`.

        ```python
        await client.resume_all({"names": "checkout"})
        ```
        """
        # A run whose worker has yet to let go of it is paused, and running.
        states: tuple[State, ...] = ("paused", "running")
        call = self._live.store.resume_runs
        return await self._deliver_all(where, states, call, _can_resume, dry_run, progress)

    async def signal_all(
        self,
        where: RunFilters,
        name: str,
        payload: object = None,
        *,
        signal_id: str | None = None,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Send all runs of a filter a signal; see `Client.signal`.

        With a `signal_id` the same call may be made again: each run has the signal once.

        ```python
        await client.signal_all({"names": "checkout"}, "prices-changed", signal_id="may")
        ```
        """
        signal_id = str(uuid4()) if signal_id is None else signal_id
        nobody = UUID(int=0)
        pattern = Signal(nobody, name, payload, signal_id).encode(nobody)

        async def send(run_ids: Sequence[UUID]) -> Delivered:
            signals = [msgspec.structs.replace(pattern, run_id=run_id) for run_id in run_ids]
            return await self._live.store.signal_runs(signals)

        return await self._deliver_all(where, LIVE, send, _goes_on, dry_run, progress)

    async def retry_all(
        self,
        where: RunFilters,
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> BulkOutcome:
        """Retry all runs of a filter that failed or timed out; see `Client.retry`.

        A run that was retried before is left as it is, so the same call may be made again.

        ```python
        done = await client.retry_all({"names": "checkout", "since": yesterday})
        print(done.changed, "of", done.matched)
        ```
        """
        change = self._count_retriable if dry_run else self._retry_page
        return await self._to_all(where, FAILED, change, progress)

    async def _deliver_all(
        self,
        where: RunFilters,
        states: Sequence[State],
        call: Callable[[Sequence[UUID]], Awaitable[Delivered]],
        would_change: Callable[[RunRecord], bool],
        dry_run: bool,
        progress: Callable[[BulkOutcome], None] | None,
    ) -> BulkOutcome:
        """Make a call for each page; in a dry run, count what it would change."""

        async def count(runs: Sequence[RunRecord]) -> int:
            return sum(map(would_change, runs))

        change = count if dry_run else partial(self._deliver, call)
        return await self._to_all(where, states, change, progress)

    async def _to_all(
        self,
        where: RunFilters,
        states: Sequence[State],
        change: Callable[[Sequence[RunRecord]], Awaitable[int]],
        progress: Callable[[BulkOutcome], None] | None,
    ) -> BulkOutcome:
        filters: RunFilters = {"limit": PAGE, **where}
        if not filters.get("states"):
            filters["states"] = states
        page_filter = await run_filter(filters, self._live.names)
        done = BulkOutcome()
        while True:
            page = await self._live.store.list_runs(page_filter)
            matched = len(page.runs)
            changed = await change(page.runs) if matched else 0
            done = BulkOutcome(
                done.matched + matched, done.changed + changed, done.unchanged + matched - changed
            )
            if progress is not None:
                progress(done)
            if page.cursor is None:
                return done
            page_filter = msgspec.structs.replace(page_filter, cursor=page.cursor)

    async def _deliver(
        self, call: Callable[[Sequence[UUID]], Awaitable[Delivered]], runs: Sequence[RunRecord]
    ) -> int:
        """Change runs, and the newest of what continued as new after it was listed."""
        run_ids, changed = [run.run_id for run in runs], 0
        live = {run.run_id for run in runs if run.status == "running"}
        while run_ids:
            outcomes = self._live.settle(await persist(partial(call, run_ids)))
            changed += outcomes.count("delivered")
            pairs = zip(run_ids, outcomes, strict=True)
            ended = [each for each, outcome in pairs if outcome == "ended" and each in live]
            newest = await self._live.store.newest_runs(ended) if ended else {}
            run_ids = [last for each, last in newest.items() if last != each]
            live.update(run_ids)
        return changed

    async def _count_retriable(self, runs: Sequence[RunRecord]) -> int:
        ended = [
            run.run_id for run in runs if run.status not in ("running", "completed", "continued")
        ]
        return len(ended) - len(await find_retries(self._live.store, ended))

    async def _retry_page(self, runs: Sequence[RunRecord]) -> int:
        waiting = iter(runs)

        async def work() -> int:
            return sum([await self._retry_one(run.run_id) for run in waiting])

        lanes = [asyncio.create_task(work()) for _ in range(LANES)]
        try:
            return sum(await asyncio.gather(*lanes))
        finally:
            for lane in lanes:
                lane.cancel()  # where one has failed; otherwise they have ended

    async def _retry_one(self, run_id: UUID) -> bool:
        try:
            fork = await prepare_retry(self._live.store, run_id)
            return (await fork_run(self._live, fork))[0]
        except (ForkRefused, RunNotFound):  # it is not what it was when it was listed
            return False


def _goes_on(run: RunRecord) -> bool:
    return run.wait is not None


def _can_pause(run: RunRecord) -> bool:
    return run.wait is not None and not run.wait.paused


def _can_resume(run: RunRecord) -> bool:
    return run.wait is not None and run.wait.paused
