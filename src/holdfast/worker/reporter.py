"""Reporting how attempts of activities ended, in batches.

A call whose answer was lost is repeated. What the first try recorded is answered as lost then,
which makes no difference: the worker forgets the activity in either case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from holdfast.codec import describe, encode
from holdfast.errors import DatabaseUnavailable, PayloadError, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.types import ActivitiesEnded, ActivityEnd, ActivityOutcome, Notice
from holdfast.worker.backoff import Backoff
from holdfast.worker.batcher import Batcher
from holdfast.worker.clock import Clock

logger = logging.getLogger("holdfast.reporter")

Answer = Callable[[ActivityOutcome], None]
_Entry = tuple[ActivityEnd, Answer]


class Reporter:
    """Send ends in batches, and give each the answer to its own."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._batcher = Batcher[_Entry](self._report, weight=lambda entry: _weight(entry[0]))

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is in flight."""
        return self._batcher.idle

    def submit(self, end: ActivityEnd, answer: Answer) -> None:
        """Report an end; `answer` is called with its outcome."""
        self._batcher.add((end, answer))

    async def flush(self) -> None:
        """Wait until every end has its answer."""
        await self._batcher.flush()

    async def stop(self) -> None:
        """Cancel the calls in flight; an end that was not recorded leads to another attempt."""
        await self._batcher.stop()

    async def _report(self, entries: list[_Entry]) -> None:
        try:
            outcomes = await self._send([end for end, _ in entries])
        except PayloadError as error:
            await self._report_apart(entries, error)
            return
        except Exception:
            # It is not known what is recorded now: forget them, until their leases run out.
            logger.exception("reporting %d activities failed; letting go of them", len(entries))
            for _, answer in entries:
                answer("lost")
        else:
            for (_, answer), outcome in zip(entries, outcomes, strict=True):
                answer(outcome)

    async def _report_apart(self, entries: list[_Entry], error: PayloadError) -> None:
        """Report each end alone; in place of one that the database refuses, report a failure."""
        if len(entries) > 1:
            for entry in entries:
                await self._report([entry])
            return
        end, answer = entries[0]
        info = encode(describe(error))
        refused = msgspec.structs.replace(
            end, result=None, error=info, retryable=False, details=None
        )
        if refused == end:
            logger.error("an activity of run %s cannot be reported: %s", end.run_id, error)
            answer("lost")
        else:
            await self._report([(refused, answer)])

    async def _send(self, ends: list[ActivityEnd]) -> list[ActivityOutcome]:
        """Report; repeat a call whose answer is lost until there is one."""
        backoff: Backoff | None = None
        while True:
            sent = self._clock.local()
            try:
                ended: ActivitiesEnded = await self._store.end_activities(self._worker_id, ends)
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                logger.warning("reporting %d activities is repeated: %s", len(ends), error)
                backoff = backoff or Backoff()
                await backoff.wait()
            else:
                self._clock.observe(sent, self._clock.local(), ended.now)
                self._notify(ended.notices)
                return ended.outcomes


def _weight(end: ActivityEnd) -> int:
    return sum(len(text) for text in (end.result, end.error, end.details) if text is not None)
