"""Group commit at the client: the turns of all runs in the process share calls to the store.

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
from holdfast.worker.batcher import Lanes
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_undelivered_signal

logger = logging.getLogger("holdfast.committer")

_BUSY_SECONDS = 0.05
_MANY = 64  # checkpoints, of which a half is worth a call of its own

Answer = Callable[[Refusal | Ahead | None], None]
_Entry = tuple[TurnCommit, Answer]


class Committer:
    """Send turns' parts in batches, and give each the answer to its own."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._lanes = Lanes[_Entry](
            lambda entries: self._commit(entries, uuid4()),
            weight=lambda entry: entry[0].weight,
            halves=_halves,
        )
        self._stragglers: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """Say whether nothing waits and nothing is in flight."""
        return self._lanes.idle and not self._stragglers

    def submit(self, part: TurnCommit, answer: Answer) -> None:
        """Commit a turn's part; `answer` is called with the refusal, or with what stands ahead.

        The answer comes as a plain callback of the event loop, never from inside a task:
        workflow loops may only be entered from there.
        """
        self._lanes.add((part, answer))

    async def settle(self) -> None:
        """Return once every part has its answer."""
        while not self.idle:
            await self._lanes.settle()
            if self._stragglers:
                await asyncio.wait(self._stragglers)

    async def stop(self) -> None:
        """Call off what is in flight; what was not answered is found again by its token or log."""
        await self._lanes.stop()
        while self._stragglers:  # the answer to one that has just ended may make another
            for straggler in self._stragglers:
                straggler.cancel()
            await asyncio.wait(self._stragglers)

    async def _commit(self, entries: list[_Entry], token: UUID) -> None:
        entries = _newest(entries)
        parts = [part for part, _ in entries]
        try:
            committed = await self._persist(parts, token)
        except Exception:
            # Nobody knows what is durable now: let go, and the leases' end sorts it out.
            logger.exception("a commit of %d run(s) failed; letting go of them", len(entries))
            lost = {part.run_id: Refusal("lost", []) for part in parts}
            committed = Committed(self._clock.now(), lost, [])
        for signal in committed.undelivered:
            log_undelivered_signal(signal)
        if committed.notices:
            self._notify(committed.notices)
        asyncio.get_running_loop().call_soon(self._answer, entries, token, committed)

    async def _persist(self, parts: list[TurnCommit], token: UUID) -> Committed:
        """Repeat a call whose answer is lost until there is one."""
        backoff = Backoff()
        while True:
            sent = self._clock.local()
            try:
                committed = await self._store.commit(self._worker_id, token, parts)
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                whose = f"run {parts[0].run_id}" if len(parts) == 1 else f"{len(parts)} runs"
                logger.warning("a commit of %s is repeated: %s", whose, error)
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
            straggler = asyncio.get_running_loop().create_task(self._try_later(busy, token))
            self._stragglers.add(straggler)
            straggler.add_done_callback(self._stragglers.discard)

    async def _try_later(self, entries: list[_Entry], token: UUID) -> None:
        """Repeat what somebody's open transaction holds up, without taking up a lane."""
        await asyncio.sleep(_BUSY_SECONDS)
        await self._commit(entries, token)


def _newest(entries: list[_Entry]) -> list[_Entry]:
    """Leave out what another part of its run follows: the run was let go of and claimed again.

    A call takes one part of a run, and would be refused as a whole.
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
    """Say whether to commit in two calls. Ends and suspensions cost more by the call: not those."""
    return len(entries) >= _MANY and all(part.then is None for part, _ in entries)
