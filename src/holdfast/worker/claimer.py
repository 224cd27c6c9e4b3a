"""Claiming due tasks: in batches, when there is room, when something woke us or came due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Claims, Notice
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock

logger = logging.getLogger("holdfast.worker")

AHEAD_SECONDS = 0.010  # claim so early what comes due: the turn waits the rest in memory
STICKY_SECONDS = 0.1  # a run is left so long to the worker that has it in its cache
_FIRST_POLL_SECONDS = 0.25
_GATHER_SECONDS = 0.002  # a little room is worth waiting for more
_LAST_CLAIM_SECONDS = 5.0  # a database that takes longer to answer has our leases run out


class Taker(Protocol):
    """Who takes what was claimed, and how much."""

    @property
    def free(self) -> int:
        """How many more tasks may be claimed."""
        ...

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Take claimed tasks."""
        ...


# Returns how many tasks of which handlers to claim, given how many the worker has room for.
Claimable: TypeAlias = Callable[[int], tuple[int, Sequence[str]]]


class Claimer:
    """Claim for one worker.

    `wake` says that there may be work, `due_at` that there will be. Without either it polls:
    often after work has come, then ever more seldom, at least every `poll_seconds`.
    Notifications make it fast, polling alone makes it right.
    """

    def __init__(
        self,
        store: Store,
        worker_id: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        taker: Taker,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        deadline: Callable[[int], None],
        claimable: Claimable | None = None,
        *,
        concurrency: int,
        lease_seconds: float,
        poll_seconds: float,
    ) -> None:
        self._store, self._worker_id = store, worker_id
        self._queues, self._handlers = tuple(queues), tuple(handlers)
        self._taker, self._clock, self._notify = taker, clock, notify
        self._deadline, self._claimable = deadline, claimable
        self._enough = max(1, concurrency // 4)
        self._lease_seconds, self._poll_seconds = lease_seconds, poll_seconds
        # Until the next poll, now: a start that saw no worker yet may be found by looking only.
        self._pause = min(_FIRST_POLL_SECONDS, poll_seconds)
        self._woken = asyncio.Event()
        self._asked = False  # woken for work, not only because a moment moved
        self._waits = False
        self._short = False  # the last claim could have taken more
        self._next_due: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[Claims] | None = None

    def wake(self) -> None:
        """Say that there may be something to claim."""
        self._asked = True
        self._woken.set()

    def due_at(self, at: int) -> None:
        """Say that something comes due at a moment of engine time."""
        if self._next_due is None or at < self._next_due:
            self._next_due = at
            self._woken.set()

    def room(self) -> None:
        """Say that there is room for more; of interest where there was too little."""
        if self._short:
            self.wake()

    @property
    def idle(self) -> bool:
        """Say whether it waits for something to wake it."""
        return self._waits and not self._asked

    async def start(self) -> None:
        """Begin to claim. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast claimer")

    async def stop(self) -> None:
        """Claim no more; a claim under way is waited for, so that its leases are known."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._claiming is not None:
            await asyncio.wait([self._claiming], timeout=_LAST_CLAIM_SECONDS)

    async def run_once(self) -> bool:
        """Claim once; say whether there may be more at once."""
        asked = self._taker.free
        self._short = asked <= 0
        if self._short:
            return False
        handlers: Sequence[str] = self._handlers
        if self._claimable is not None:
            asked, handlers = self._claimable(asked)
            if asked <= 0:
                self._short = True
                return False
        sent = self._clock.local()
        # Shielded: a claim that is called off halfway may have leased tasks that nobody knows of.
        self._claiming = asyncio.create_task(self._claim(asked, handlers))
        claims = await asyncio.shield(self._claiming)
        self._clock.observe(sent, self._clock.local(), claims.now)
        full = len(claims.tasks) >= asked
        self._short = full or len(handlers) < len(self._handlers)
        if claims.tasks:
            self._pause = min(_FIRST_POLL_SECONDS, self._poll_seconds)
        else:
            self._pause = min(self._pause * 2, self._poll_seconds)
        self._next_due = None if full else claims.next_due_at
        return full

    async def _claim(self, limit: int, handlers: Sequence[str]) -> Claims:
        claims = await self._store.claim_tasks(
            self._worker_id,
            self._queues,
            handlers,
            limit,
            lease_seconds=self._lease_seconds,
            ahead_seconds=AHEAD_SECONDS,
            sticky_seconds=STICKY_SECONDS,
        )
        if claims.notices:
            self._notify(claims.notices)
        for task in claims.tasks:
            if task.deadline_at is not None:
                self._deadline(task.deadline_at)
        self._taker.accept(claims.tasks)  # here: also when the claimer itself is being stopped
        return claims

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            self._asked = False
            try:
                more = await self.run_once()
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                logger.warning("claiming is repeated: %s", error)
                await backoff.wait()
                continue
            except Exception:
                logger.exception("claiming failed")
                await asyncio.sleep(1)
                continue
            backoff.reset()
            if not more:
                await self._wait()
            elif 0 < self._taker.free < self._enough:
                await asyncio.sleep(_GATHER_SECONDS)

    async def _wait(self) -> None:
        """Wait until woken, until the next task comes due, or for the poll's interval."""
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + self._pause
        while not self._asked:
            seconds = poll_at - loop.time()
            if self._next_due is not None and self._taker.free > 0:
                until = (self._next_due - self._clock.now()) / 1e6 - 0.8 * AHEAD_SECONDS
                seconds = min(seconds, until)
            if seconds <= 0:
                return
            self._woken.clear()
            self._waits = True
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                return
            finally:
                self._waits = False
