"""Claiming due tasks: in batches, when there is room, and when something wakes it or comes due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.store.port.claims import SUSPECT_ATTEMPTS
from holdfast.types import ClaimedTask, Claims, Notice, Taker, TurnCommit, WorkerInfo
from holdfast.values.loggers import get_logger
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.observing import Observing
from holdfast.worker.options import WorkerOptions
from holdfast.worker.outage import OUTAGE

logger = get_logger("holdfast.worker")

AHEAD_SECONDS: Final = 0.010  # claim tasks so long before they are due; the turn waits for the rest
STICKY_SECONDS: Final = 0.1  # a run is left this long to the worker that has it in its cache
_FIRST_POLL_SECONDS: Final = 0.25
_GATHER_SECONDS: Final = 0.002  # with little room, wait this long for more
_BUSY_TASKS: Final = 50  # so many short tasks keep a worker busy for longer than that
_LAST_CLAIM_SECONDS: Final = 5.0  # a stop waits this long for a claim under way
_SKIP_SECONDS: Final = 5.0  # for how long no tasks are claimed that are for other code
_HAND_OVER_SECONDS: Final = 0.25  # with a backlog, flows keep their places so long after a claim


# Receives claimed tasks of one kind; called from anywhere on the event loop.
Accept: TypeAlias = Callable[[Sequence[ClaimedTask]], None]

# Called with the room of the worker; returns how many tasks to claim, and of which handlers. If it
# returns fewer than there is room for, it later calls the given function when it could take more.
Claimable: TypeAlias = Callable[[int, Callable[[], None]], tuple[int, Sequence[str]]]


class Room:
    """How many tasks a worker holds, how many more it takes, and of which handlers none for now.

    Objects that hold tasks register their collections, and call `freed` when one has shrunk.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[Sized] = []
        self._lent = 0
        self._skipped: dict[str, float] = {}  # handlers, and until when none of theirs is claimed
        self.freed: Callable[[], None] = lambda: None  # set by the claimer

    def skip(self, handler: str, now: float) -> None:
        """Claim no tasks of a handler for a while: other workers have the code for them.

        `now` and `skipped_until` are seconds of the event loop's clock.
        """
        self._skipped[handler] = now + _SKIP_SECONDS

    def without_skipped(self, handlers: Sequence[str], now: float) -> Sequence[str]:
        """Return the handlers of which tasks may be claimed now."""
        self._skipped = {each: until for each, until in self._skipped.items() if until > now}
        if not self._skipped:
            return handlers
        return [each for each in handlers if each not in self._skipped]

    @property
    def skipped_until(self) -> float | None:
        """When the first skipped handler may be claimed again; None if none is skipped."""
        return min(self._skipped.values(), default=None)

    def count(self, *collections: Sized) -> None:
        """Count the tasks in these collections from now on."""
        self._held += collections

    @contextmanager
    def lending(self, count: int) -> Generator[None]:
        """While so many tasks that have ended are being recorded, let others have their places.

        So the worker claims and executes the next tasks while the database records these. A worker
        with a single place does one thing after the other.
        """
        lent = min(count, self._size - self._lent) if self._size > 1 else 0
        self._lent += lent
        if lent:
            self.freed()
        try:
            yield
        finally:
            self._lent -= lent

    @property
    def taken(self) -> int:
        """The number of tasks that the worker holds, without those whose places are lent."""
        return sum(map(len, self._held)) - self._lent

    @property
    def free(self) -> int:
        """The number of further tasks that the worker can take."""
        return self._size - self.taken


class Claimer:
    """Claim for one worker.

    `wake` says that there may be work now, `due_at` that there will be. Without either it polls:
    often after work has come, then more and more rarely, as `options` say. It works with polling
    alone; notifications make it fast. `deadline_at` is called with the deadlines of the tasks that
    it claims. `room` says how many tasks it may claim.
    """

    def __init__(
        self,
        store: Store,
        info: WorkerInfo,
        options: WorkerOptions,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        deadline_at: Callable[[int], None],
        claimable: Claimable | None = None,
        observing: Observing | None = None,
    ) -> None:
        self._store, self._worker_id = store, info.worker_id
        self._queues, self._handlers = info.queues, info.handlers
        self._clock, self._notify = clock, notify
        self._deadline_at, self._claimable = deadline_at, claimable
        self._observing = observing or Observing()
        self.leases_in_doubt: Callable[[], None] = lambda: None  # set by the worker
        self.holds: Callable[[UUID, str], bool] = lambda run_id, key: False  # set by the worker
        self.room = Room(info.concurrency)
        self.room.freed = self._room_freed
        self._enough = _enough(info.concurrency)
        self._lease_seconds, self._poll_seconds = options.lease_seconds, options.poll_seconds
        # Seconds to the next poll. The first poll is soon: no notification told this worker of runs
        # that were started before it listened.
        self._pause = min(_FIRST_POLL_SECONDS, options.poll_seconds)
        self._sleep: asyncio.Future[None] | None = None  # while it waits
        self._asked = False  # woken for work, not only because the next due moment changed
        self._claiming = False
        self._stopping = False
        self._short = False  # the last claim was limited by the worker's room
        self._choosy = False  # short of threads alone: all that needs none was claimed
        self._limited = False  # tasks wait for limits, which an end here may free
        self.suspects: set[tuple[UUID, str]] = set()  # held here; others wait for them
        self._seeks_leases = False  # one of them no longer keeps the others waiting
        self._next_due: float | None = None  # on the event loop's clock
        self._claimed = 0.0  # when the last claim was sent, on the same clock
        self._task: asyncio.Task[None] | None = None

    # Messages from other parts

    def wake(self) -> None:
        """Say that there may be something to claim now."""
        self._asked = True
        self._rouse()

    def notified(self, queue: str) -> None:
        """Say that a queue has work; an empty name says that notifications may have been lost.

        The server may have failed over then, and lost that this worker gave leases back.
        """
        if not queue:
            self.leases_in_doubt()
        if not queue or queue in self._queues:
            self.wake()

    def committed(self, parts: Sequence[TurnCommit]) -> None:
        """Say that these runs have recorded something: one is then no longer a suspect."""
        self._let_next({(part.run_id, "") for part in parts} & self.suspects)

    def _let_next(self, gone: set[tuple[UUID, str]]) -> None:
        """Claim the next suspect now if some of those held here no longer are."""
        if gone:
            self.suspects -= gone
            self._seeks_leases = True
            self.wake()

    def due_at(self, at: int) -> None:
        """Say that a task comes due at a moment of engine time."""
        left = (at - self._clock.now()) / 1e6
        self._look_at(asyncio.get_running_loop().time() + left)

    def _look_at(self, at: float) -> None:
        if self._next_due is None or at < self._next_due:
            self._next_due = at
            self._rouse()

    def _rouse(self) -> None:
        """End the sleep: see again how long to wait."""
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def taker(self, count: int) -> Taker | None:
        """Return what to say to a call that could lease this worker what becomes ready by it.

        With a backlog that is None as soon as the last claim is a moment ago: then older and more
        urgent tasks go first. Until then a flow of short steps continues here, without a claim for
        each of them. It is None as well if nothing could begin here.
        """
        if self._stopping or (self._short and self._is_turn_over):
            return None
        handlers: Sequence[str] = self._handlers
        if self._claimable is not None:
            count, handlers = self._claimable(count, self.wake)
        return Taker(count, self._queues, handlers, self._lease_seconds) if count > 0 else None

    @property
    def _is_turn_over(self) -> bool:
        """True if what waits in the database has waited for long enough since the last claim."""
        return asyncio.get_running_loop().time() >= self._claimed + _HAND_OVER_SECONDS

    @property
    def _longest_pause(self) -> float:
        """After how many seconds it polls at the latest."""
        return self._poll_seconds

    @property
    def idle(self) -> bool:
        """True if it waits for something to wake it."""
        return self._sleep is not None and not self._asked

    @property
    def due_in(self) -> float | None:
        """In how many seconds the next task comes due, None if that is not known."""
        return (
            None if self._next_due is None else self._next_due - asyncio.get_running_loop().time()
        )

    # The service

    async def start(self, takers: Mapping[str, Accept]) -> None:
        """Claim from now on, and give each task to the taker of its kind. Idempotent."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._run(takers), name="holdfast claimer")

    async def stop(self) -> None:
        """Stop claiming. Wait for a claim under way, so that its leases are known.

        If the database does not answer in time, these leases expire by themselves. Idempotent.
        """
        task, self._task = self._task, None
        if task is not None:
            self._stopping = True
            if self._claiming:
                await asyncio.wait([task], timeout=_LAST_CLAIM_SECONDS)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run_once(self, takers: Mapping[str, Accept]) -> bool:
        """Claim once; return True if there may be more to claim immediately."""
        limit = self.room.free
        self._short, self._choosy = limit <= 0, False
        if self._short:
            return False
        handlers: Sequence[str] = self._handlers
        if self._claimable is not None:
            limit, handlers = self._claimable(limit, self.wake)
            if limit <= 0:
                self._short = True
                self._next_due = None  # what comes due is claimed when it is woken
                return False
        self._claiming = True
        try:
            return await self._claim(takers, limit, handlers)
        finally:
            self._claiming = False

    async def _claim(
        self, takers: Mapping[str, Accept], limit: int, handlers: Sequence[str]
    ) -> bool:
        loop = asyncio.get_running_loop()
        sent = self._claimed = loop.time()
        handlers = self.room.without_skipped(handlers, sent)
        # Calls of `due_at` during the claim count: the claim may not see the task.
        self._next_due = None
        asked, seeks_leases = self._clock.local(), self._seeks_leases
        self._seeks_leases = False
        claims = await self._store.claim_tasks(
            self._worker_id,
            self._queues,
            handlers,
            limit,
            lease_seconds=self._lease_seconds,
            ahead_seconds=AHEAD_SECONDS,
            sticky_seconds=STICKY_SECONDS,
            seeks_leases=seeks_leases,
        )
        self._clock.observe(asked, self._clock.local(), claims.now)  # before tasks set timers
        if self._observing.claimed is not None:
            self._observing.claimed(claims)
        tasks, full = claims.tasks, len(claims.tasks) >= limit
        fewer = len(handlers) < len(self._handlers)
        self._short, self._choosy = full or fewer, fewer and not full
        self._limited = claims.limited
        self._note_suspects(claims)
        if tasks:
            self._pause = min(_FIRST_POLL_SECONDS, self._poll_seconds)
        else:
            self._pause = min(self._pause * 2, self._longest_pause)
        if claims.next_due_at is not None:
            said_at = (sent + loop.time()) / 2
            self._look_at(said_at + (claims.next_due_at - claims.now) / 1e6)
        if claims.notices:
            self._notify(claims.notices)
        by_kind: dict[str, list[ClaimedTask]] = {}
        for task in tasks:
            by_kind.setdefault(task.kind, []).append(task)
            if task.deadline_at is not None:
                self._deadline_at(task.deadline_at)
        for kind, some in by_kind.items():
            takers[kind](some)
        if self.room.skipped_until is not None:
            self._look_at(self.room.skipped_until)
        return full

    def _note_suspects(self, claims: Claims) -> None:
        """Remember which tasks may keep suspects waiting, if some wait."""
        if claims.suspects:
            self.suspects.update(
                (task.run_id, task.key) for task in claims.tasks if task.attempts > SUSPECT_ATTEMPTS
            )
        elif claims.suspects is not None:
            self.suspects.clear()

    async def _run(self, takers: Mapping[str, Accept]) -> None:
        backoff: Backoff | None = None
        while not self._stopping:
            self._asked = False
            try:
                more = await self.run_once(takers)
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                self.leases_in_doubt()
                OUTAGE.tell(logger, "claiming is repeated", error)
                backoff = backoff or Backoff()
                await backoff.wait()
                continue
            except Exception:
                logger.exception("claiming failed")
                await asyncio.sleep(1)
                continue
            backoff = None
            if self._stopping:
                return
            if not more:
                await self._wait()
            if self._short and 0 < self.room.free < self._enough:
                await asyncio.sleep(_GATHER_SECONDS)

    def _room_freed(self) -> None:
        """Claim again if the worker's room limited the last claim, or if limits did."""
        if self._short or self._limited:
            self.wake()
        if self.suspects:
            self._let_next({each for each in self.suspects if not self.holds(*each)})

    async def _wait(self) -> None:
        """Wait until woken, until the next task comes due, or until the next poll."""
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + self._pause
        while not self._asked:
            seconds = poll_at - loop.time()
            if self._next_due is not None and self.room.free > 0:
                due_at = self._next_due - 0.8 * AHEAD_SECONDS
                seconds = min(seconds, due_at - loop.time())
            if seconds <= 0:
                return
            self._sleep = loop.create_future()
            timer = loop.call_later(seconds, self._rouse)
            try:
                await self._sleep
            finally:
                timer.cancel()
                self._sleep = None


def _enough(concurrency: int) -> int:
    """Return from how much room on a worker claims at once while there is a backlog.

    A claim of many tasks costs the database less for each of them. The tasks that the worker holds
    meanwhile are its work until the next ones come.
    """
    half = concurrency // 2
    return half if half >= _BUSY_TASKS else max(1, half // 2)
