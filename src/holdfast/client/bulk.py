"""Make one change to all the runs of a filter, in pages, each of which is a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import cast
from uuid import UUID, uuid4

import msgspec

from holdfast.client.chains import newest_of_keys
from holdfast.client.control import noted
from holdfast.client.families import left_to_parents
from holdfast.client.filters import RunFilters, refuse_empty, run_filter
from holdfast.client.forking import prepare_retry, retry_run
from holdfast.client.messaging import Signal, encode_signal
from holdfast.client.naming import RunRef
from holdfast.client.session import Session
from holdfast.errors import (
    DatabaseUnavailable,
    ForkRefused,
    HoldfastError,
    InsufficientRights,
    RunNotFound,
    SchemaMissing,
    ShardsChanged,
)
from holdfast.insight.retries import find_retries
from holdfast.store.port.reads import note_away, noting_reads
from holdfast.store.port.shards import MayBeAway, ShardAway, ask_most
from holdfast.store.shared_calls import TakingParts
from holdfast.types import OPEN_STATES, Delivered, Delivery, Reschedule, RunRecord, State
from holdfast.values.numbers import true_or_false
from holdfast.values.texts import check_by, several

PAGE = 200
RETRIES_AT_ONCE = 8

FAILED: tuple[State, ...] = ("failed", "timed_out")

_MOST_REFUSED = 20  # runs whose retry raised: then it ends
_OF_ALL_RUNS = (DatabaseUnavailable, InsufficientRights, SchemaMissing, ShardsChanged)


class BulkOutcome(msgspec.Struct, frozen=True):
    """How many runs a filter matched, and how many of them were changed.

    `unchanged` counts those that had ended meanwhile, had been changed before, or are
    `left_to_parents`: a retry by a filter leaves out children, because the runs that started them
    know of their failures. A dry run changes nothing: it counts the runs that a call would change,
    judged by their state.
    """

    matched: int = 0
    changed: int = 0
    unchanged: int = 0
    left_to_parents: int = 0


class BulkChange:
    """Changes all the runs of a filter, or runs that are given. Made for one call.

    If the filter names no states, the change is made in those states in which it has an effect.
    `progress` is called after each page.
    """

    _again = "the same call again completes it"

    def __init__(
        self,
        session: Session,
        where: RunFilters | Iterable[RunRef],
        dry_run: bool,
        progress: Callable[[BulkOutcome], None] | None,
    ) -> None:
        self._session = session
        self._where: RunFilters | Sequence[RunRef] = (
            cast("RunFilters", where) if isinstance(where, dict) else several("runs", where)
        )
        self._dry_run, self._progress = true_or_false(dry_run, "dry_run"), progress
        self._left_to_parents = 0
        self._refused: dict[UUID, HoldfastError] = {}  # runs that could not be retried

    async def cancel(self, reason: str | None, by: str | None = None) -> BulkOutcome:
        """Ask the runs to end."""
        call = noted(self._session.store.cancel_runs, reason, by)
        return await self._deliver_all(OPEN_STATES, call, _is_open)

    async def terminate(self, reason: str | None, by: str | None = None) -> BulkOutcome:
        """End the runs at once."""
        call = noted(self._session.store.terminate_runs, reason, by)
        return await self._deliver_all(OPEN_STATES, call, _is_open)

    async def pause(self, reason: str | None, by: str | None = None) -> BulkOutcome:
        """Pause the runs."""
        call = noted(self._session.store.pause_runs, reason, by)
        return await self._deliver_all(OPEN_STATES, call, _can_pause)

    async def resume(self, by: str | None = None) -> BulkOutcome:
        """Resume the runs that are paused, and try those that are stuck again."""
        # A run is paused and "running" until its worker releases it.
        call = partial(self._session.store.resume_runs, by=check_by(by))
        return await self._deliver_all(("paused", "running", "stuck"), call, _can_resume)

    async def reschedule(
        self, change: Reschedule, reason: str | None, by: str | None = None
    ) -> BulkOutcome:
        """Change queue, start or deadline of the runs."""
        call = partial(self._session.store.reschedule_runs, change=change)
        return await self._deliver_all(OPEN_STATES, noted(call, reason, by), _is_open)

    async def signal(self, name: str, payload: object, signal_id: str | None) -> BulkOutcome:
        """Send the runs a signal, each with the same id."""
        if signal_id is None:
            signal_id = str(uuid4())
            self._again = f"the same call with signal_id={signal_id!r} completes it"
        no_run = UUID(int=0)
        pattern = encode_signal(Signal(no_run, name, payload, signal_id), no_run)

        async def send(run_ids: Sequence[UUID]) -> Delivered:
            signals = [msgspec.structs.replace(pattern, run_id=run_id) for run_id in run_ids]
            return await self._session.store.signal_runs(signals)

        return await self._deliver_all(OPEN_STATES, send, _is_open)

    async def retry(self) -> BulkOutcome:
        """Retry the runs that failed or timed out; children only if they or their parent are given.

        The parent of a failed child fails as well, or does something else: if a filter finds both,
        the parent's retry starts a child of its own, or knows of the failure.
        """
        change = self._count_retriable if self._dry_run else self._retry_page
        if isinstance(self._where, dict) and self._where.get("parent") is None:
            change = partial(self._without_children, change)
        done = await self._change_all(FAILED, change)
        for run_id, error in self._refused.items():
            raise self._first_refused(run_id, error, done)
        return done

    def _first_refused(
        self, run_id: UUID, error: HoldfastError, done: BulkOutcome
    ) -> HoldfastError:
        """Return the error of the first run that could not be retried; it says what was done."""
        error.args = (
            f"run {run_id} could not be retried: {error}. So {len(self._refused)} of "
            f"{done.matched} runs are as before, and {done.changed} were retried; {self._again}",
        )
        return error

    async def _without_children(
        self, change: Callable[[Sequence[RunRecord]], Awaitable[int]], runs: Sequence[RunRecord]
    ) -> int:
        whole, known = self._session.whole or self._session, runs
        if whole is not self._session:  # the caller is not shown each parent
            read = partial(whole.store.get_runs, payloads=False)
            known = [*(await ask_most(read, [run.run_id for run in runs])).values()]
        left = await left_to_parents(whole.store, known)
        self._left_to_parents += len(left)
        return await change([run for run in runs if run.run_id not in left])

    async def _deliver_all(
        self,
        states: Sequence[State],
        call: Callable[[Sequence[UUID]], Awaitable[Delivered]],
        would_change: Callable[[RunRecord], bool],
    ) -> BulkOutcome:
        """Make a call for each page; in a dry run, count what it would change."""

        async def count(runs: Sequence[RunRecord]) -> int:
            return sum(map(would_change, runs))

        change = count if self._dry_run else partial(self._deliver, call)
        return await self._change_all(states, change)

    async def _change_all(
        self, states: Sequence[State], change: Callable[[Sequence[RunRecord]], Awaitable[int]]
    ) -> BulkOutcome:
        with noting_reads() as notes:
            if isinstance(self._where, dict):
                done = await self._change_pages(self._where, states, change)
            else:
                done = await self._change_given(self._where, states, change)
        if self._dry_run:
            note_away(notes.away)
        elif notes.away:
            which = ", ".join(map(str, sorted(notes.away)))
            raise MayBeAway(
                f"shard {which} is away, or was meanwhile, so some runs there may be as before. "
                f"At least {done.changed} have changed; {self._again}",
                notes.away,
            )
        return done

    async def _change_pages(
        self,
        filters: RunFilters,
        states: Sequence[State],
        change: Callable[[Sequence[RunRecord]], Awaitable[int]],
    ) -> BulkOutcome:
        page_filter = await run_filter({"limit": PAGE, **filters}, self._session.names)
        refuse_empty(filters, page_filter)
        if not page_filter.states:
            page_filter = msgspec.structs.replace(page_filter, states=tuple(states))
        done = BulkOutcome()
        while True:
            try:
                page = await self._session.store.list_runs(page_filter)
            except ShardAway as error:  # no shard answers
                if not done.matched:
                    raise
                note_away(error.shards)
                return done
            changed = await change(page.runs) if page.runs else 0
            done = self._count(done, len(page.runs), changed)
            if page.cursor is None:
                return done
            page_filter = msgspec.structs.replace(page_filter, cursor=page.cursor)

    async def _change_given(
        self,
        runs: Sequence[RunRef],
        states: Sequence[State],
        change: Callable[[Sequence[RunRecord]], Awaitable[int]],
    ) -> BulkOutcome:
        """Change those of the runs that are in one of the states; the others match, too.

        As in a call about one run, an id means the newest of those that its run continued as, and a
        key also the newest retry.
        """
        store, asked = self._session.store, await self._session.names.runs(runs)
        keyed = {run_id for run, run_id in zip(runs, asked, strict=True) if isinstance(run, tuple)}
        run_ids = list(dict.fromkeys(asked))
        done, seen = BulkOutcome(), set[UUID]()
        for first in range(0, len(run_ids), PAGE):
            part = run_ids[first : first + PAGE]
            newest = await ask_most(store.newest_runs, part)
            newest |= await ask_most(partial(newest_of_keys, store), [*keyed.intersection(part)])
            meant = {newest.get(run_id, run_id) for run_id in part} - seen
            seen |= meant
            found = (await ask_most(partial(store.get_runs, payloads=False), list(meant))).values()
            fitting = [run for run in found if run.state in states]
            changed = await change(fitting) if fitting else 0
            done = self._count(done, len(found), changed)
        return done

    def _count(self, done: BulkOutcome, matched: int, changed: int) -> BulkOutcome:
        """Return the outcome with one more page, and tell it."""
        done = BulkOutcome(
            done.matched + matched,
            done.changed + changed,
            done.unchanged + matched - changed,
            self._left_to_parents,
        )
        if self._progress is not None:
            self._progress(done)
        return done

    async def _deliver(
        self, call: Callable[[Sequence[UUID]], Awaitable[Delivered]], runs: Sequence[RunRecord]
    ) -> int:
        """Change runs, and the newest of those that continued as new after they were listed."""
        run_ids, changed = [run.run_id for run in runs], 0
        live = {run.run_id for run in runs if run.status == "running"}
        while run_ids:
            told = await self._deliver_most(call, run_ids)
            changed += sum(outcome == "delivered" for outcome in told.values())
            ended = [each for each, outcome in told.items() if outcome == "ended" and each in live]
            newest = await ask_most(self._session.store.newest_runs, ended) if ended else {}
            run_ids = [last for each, last in newest.items() if last != each]
            live.update(run_ids)
        return changed

    async def _deliver_most(
        self, call: Callable[[Sequence[UUID]], Awaitable[Delivered]], run_ids: Sequence[UUID]
    ) -> dict[UUID, Delivery]:
        """Return what became of the runs, without those of shards that do not answer."""
        told: dict[UUID, Delivery] = {}

        async def deliver() -> Delivered:
            left = [run_id for run_id in run_ids if run_id not in told]
            part: dict[int, Delivery | BaseException] = {}
            try:
                with TakingParts(part):
                    delivered = await call(left)
                part.update(enumerate(delivered.outcomes))
                return delivered
            finally:
                for at, outcome in part.items():
                    if not isinstance(outcome, BaseException):  # else the error of its shard
                        told[left[at]] = outcome

        try:
            await self._session.deliver(deliver)
        except ShardAway as error:
            note_away(error.shards)
        return told

    async def _count_retriable(self, runs: Sequence[RunRecord]) -> int:
        ended = [
            run.run_id for run in runs if run.status not in ("running", "completed", "continued")
        ]
        return len(ended) - len(await find_retries(self._session.store, ended))

    async def _retry_page(self, runs: Sequence[RunRecord]) -> int:
        remaining = iter(runs)

        async def work() -> int:
            return sum([await self._retry_one(run) for run in remaining])

        workers = [asyncio.create_task(work()) for _ in range(RETRIES_AT_ONCE)]
        try:
            return sum(await asyncio.gather(*workers))
        finally:
            for worker in workers:
                worker.cancel()  # matters only if another one has failed

    async def _retry_one(self, run: RunRecord) -> bool:
        for is_last in (False, True):
            try:
                retry = await prepare_retry(self._session.store, run.run_id)
                return (await retry_run(self._session, retry, run.kind))[0]
            except (ForkRefused, RunNotFound):  # it has changed since it was listed
                return False
            except ShardAway as error:  # at first perhaps another one, which was to have the retry
                if is_last:
                    note_away(error.shards)
            except _OF_ALL_RUNS:
                raise
            except HoldfastError as error:  # the others may be retried
                self._refused[run.run_id] = error
                if len(self._refused) > _MOST_REFUSED:
                    raise
                return False
        return False


def _is_open(run: RunRecord) -> bool:
    return run.wait is not None


def _can_pause(run: RunRecord) -> bool:
    return run.wait is not None and not run.wait.paused


def _can_resume(run: RunRecord) -> bool:
    return run.wait is not None and (run.wait.paused or run.state == "stuck")
