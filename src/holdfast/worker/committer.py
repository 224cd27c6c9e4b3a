"""Committing what turns produce: the runs of the process share calls to the store.

A call whose answer was lost is repeated with its token, so that nothing is applied twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID, uuid4

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.types import Ahead, Committed, Notice, Refusal, TurnCommit
from holdfast.worker.backoff import Backoff
from holdfast.worker.batcher import Batcher
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_undelivered_signal

logger = logging.getLogger("holdfast.committer")

_BUSY_SECONDS = 0.05
_MANY = 64  # so many checkpoints are worth two calls

Answer = Callable[[Refusal | Ahead | None], None]
_Entry = tuple[TurnCommit, Answer]


class Committer:
    """Send the parts of turns in batches, and give each the answer to its own."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._batcher = Batcher[_Entry](
            lambda entries: self._commit(entries, uuid4()),
            weight=lambda entry: entry[0].weight,
            halves=_halves,
        )
        self._retries: set[asyncio.Task[None]] = set()  # of parts that a lock held up

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is in flight."""
        return self._batcher.idle and not self._retries

    def submit(self, part: TurnCommit, answer: Answer) -> None:
        """Commit a turn's part; `answer` is called with the refusal, if there is one.

        It is called with `Ahead` if the part was appended after events that the turn has not seen,
        and with None if all is as the turn expected. It is called from a plain callback of the
        event loop, never inside a task: workflow loops may only be entered from there.
        """
        self._batcher.add((part, answer))

    async def flush(self) -> None:
        """Wait until every part has its answer."""
        while not self.idle:
            await self._batcher.flush()
            if self._retries:
                await asyncio.wait(self._retries)

    async def stop(self) -> None:
        """Cancel the calls in flight. What they committed is in the log, for the next worker."""
        await self._batcher.stop()
        while self._retries:  # the answer to one that has just ended may start another
            for retry in self._retries:
                retry.cancel()
            await asyncio.wait(self._retries)

    async def _commit(self, entries: list[_Entry], token: UUID) -> None:
        entries = _newest(entries)
        parts = [part for part, _ in entries]
        try:
            committed = await self._persist(parts, token)
        except Exception:
            # It is not known what is durable now: stop driving them, until their leases run out.
            logger.exception("a commit of %d run(s) failed; letting go of them", len(entries))
            lost = {part.run_id: Refusal("lost", []) for part in parts}
            committed = Committed(self._clock.now(), lost, [])
        for signal in committed.undelivered:
            log_undelivered_signal(signal)
        if committed.notices:
            self._notify(committed.notices)
        asyncio.get_running_loop().call_soon(self._answer, entries, token, committed)

    async def _persist(self, parts: list[TurnCommit], token: UUID) -> Committed:
        """Commit; repeat a call whose answer is lost until there is one."""
        backoff: Backoff | None = None
        while True:
            sent = self._clock.local()
            try:
                committed = await self._store.commit(self._worker_id, token, parts)
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                whose = f"run {parts[0].run_id}" if len(parts) == 1 else f"{len(parts)} runs"
                logger.warning("a commit of %s is repeated: %s", whose, error)
                backoff = backoff or Backoff()
                await backoff.wait()
            else:
                self._clock.observe(sent, self._clock.local(), committed.now)
                return committed

    def _answer(self, entries: list[_Entry], token: UUID, committed: Committed) -> None:
        refused, ahead = committed.refused, committed.ahead
        if not refused and not ahead:
            for _, answer in entries:
                answer(None)
            return
        busy: list[_Entry] = []
        for part, answer in entries:
            refusal = refused.get(part.run_id)
            if refusal is not None and refusal.reason == "busy":
                busy.append((part, answer))
            else:
                answer(refusal or ahead.get(part.run_id))
        if busy:
            retry = asyncio.get_running_loop().create_task(self._try_later(busy, token))
            self._retries.add(retry)
            retry.add_done_callback(self._retries.discard)

    async def _try_later(self, entries: list[_Entry], token: UUID) -> None:
        """Repeat what another transaction's lock held up, beside the calls of the batcher."""
        await asyncio.sleep(_BUSY_SECONDS)
        await self._commit(entries, token)


def _newest(entries: list[_Entry]) -> list[_Entry]:
    """Return the entries without those that a later entry of the same run follows.

    Such a run was lost and claimed again. A call with two parts of a run would be refused.
    """
    newest = {part.run_id: place for place, (part, _) in enumerate(entries)}
    if len(newest) == len(entries):
        return entries
    loop, kept = asyncio.get_running_loop(), list[_Entry]()
    for place, (part, answer) in enumerate(entries):
        if newest[part.run_id] == place:
            kept.append((part, answer))
        else:
            loop.call_soon(answer, Refusal("lost", []))
    return kept


def _halves(entries: list[_Entry]) -> bool:
    """Return True if two calls are faster than one: for many checkpoints, without any ends."""
    return len(entries) >= _MANY and all(part.then is None for part, _ in entries)
