"""Wait for the ends of runs: one topic and one task serve all waiting callers of a client.

A wait is registered in the database, which then notifies the client's topic of the run's end.
Wake-ups may get lost, so each run that is waited for is also read: after a second at first, then
at growing intervals. A run that is deleted has no end: that it exists is read at times, too. If no
caller waits, no task runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID, uuid4

from holdfast.client.unserved import PATIENCE_SECONDS, Unserved
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    LockTimeout,
    ResultTimeout,
    RunNotFound,
    TransientDatabaseError,
)
from holdfast.store.port import Store, read_end
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import End, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within

logger = get_logger("holdfast.client")

TICK_SECONDS = 1.0
FIRST_LOOK_SECONDS = 1.0
SELDOM_LOOK_SECONDS = 5.0
EXISTENCE_SECONDS = 30.0  # after which a run that is waited for may have been deleted
_FORGET_SECONDS = 3.0  # a wait that stays registered costs one wake-up that nobody receives


class _Watch:
    """The callers that wait for one run, and when the run is read next."""

    __slots__ = ("began_at", "futures", "interval", "look_at", "seen_at")

    def __init__(self) -> None:
        self.began_at = asyncio.get_running_loop().time()
        self.futures: set[asyncio.Future[End]] = set()
        self.seen_at: float | None = None  # loop time; None if no row of this run has been seen
        self.interval = FIRST_LOOK_SECONDS
        self.look_at: float | None = None  # loop time; None while the start is under way

    def is_unseen(self, now: float) -> bool:
        return self.seen_at is None or now - self.seen_at >= EXISTENCE_SECONDS

    def put_off(self, now: float) -> None:
        self.look_at = now + self.interval
        self.interval = min(self.interval * 1.5, SELDOM_LOOK_SECONDS)

    def end(self, end: End) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(end)

    def fail(self, error: Callable[[], Exception]) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error())


class EndWatcher:
    """Tell callers when runs have ended."""

    def __init__(self, store: Store) -> None:
        self.topic = f"client/{uuid4().hex}"
        self._store = store
        self._watches: dict[UUID, _Watch] = {}
        self._named: set[UUID] = set()
        self._woken = asyncio.Event()
        self._unserved = Unserved(store)
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Lock()
        self._stop_listening: Callable[[], Awaitable[None]] | None = None

    async def wait(self, run_id: UUID, timeout: float | None) -> End:
        """Return how the run ended, once it has; `timeout` in seconds, None for ever.

        With a timeout of 0 it reads the run once. Raises RunNotFound, and ResultTimeout when the
        time is up.
        """
        if timeout == 0:
            return await self._look_once(run_id)
        async with self.expect(run_id) as end:
            self.watch(run_id)
            return await end_within(end, run_id, timeout)

    @asynccontextmanager
    async def expect(self, run_id: UUID) -> AsyncGenerator[asyncio.Future[End]]:
        """Listen for a run's end before it is started. Call `watch` once it is."""
        await self._listen()
        end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        watch = self._watches.setdefault(run_id, _Watch())
        watch.futures.add(end)
        try:
            yield end
        finally:
            if not end.cancel() and not end.cancelled():
                end.exception()  # retrieved, although the caller may have left
            watch.futures.discard(end)
            if not watch.futures and self._watches.get(run_id) is watch:
                del self._watches[run_id]
                if not self._watches:
                    self._woken.set()  # no caller waits: the task may end

    def watch(self, run_id: UUID, *, registered: bool = False) -> None:
        """Begin to read an expected run; `registered` if its start named this topic as waiter."""
        watch = self._watches[run_id]
        now = asyncio.get_running_loop().time()
        if registered:
            watch.seen_at = now
            watch.put_off(now)
        else:
            watch.look_at = now
            self._woken.set()
        self._start_dispatching()

    async def close(self) -> None:
        """Stop, and fail the calls that still wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._unserved.close()
        for watch in self._watches.values():
            watch.fail(lambda: HoldfastError("the client was closed before the run had ended"))
        if self._stop_listening is not None:
            stop, self._stop_listening = self._stop_listening, None
            try:
                async with asyncio.timeout(_FORGET_SECONDS):
                    await stop()
                    await self._store.forget_waits(self.topic)
            except (DatabaseError, TimeoutError) as error:
                logger.debug("could not remove waits from the database: %s", error)

    async def _listen(self) -> None:
        if self._stop_listening is not None:
            return
        async with self._listening:
            if self._stop_listening is not None:
                return
            try:
                self._stop_listening = await self._store.listen(self.topic, self._hear)
            except DatabaseError as error:
                logger.debug("cannot listen, so ends are found by polling: %s", error)

    def _hear(self, payload: str) -> None:
        if not payload:  # the connection was away: wake-ups may have been missed
            for watch in self._watches.values():
                if watch.look_at is not None:
                    watch.look_at, watch.seen_at = 0.0, None
        else:
            run_id, output = read_end(payload)
            if run_id not in self._watches:
                return
            if output is not None:
                self._watches[run_id].end(End(run_id, "completed", output))
                return
            self._named.add(run_id)
            self._start_dispatching()
        self._woken.set()

    def _start_dispatching(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._dispatch())

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._watches:
                self._woken.clear()
                try:
                    await self._look(loop.time())
                except (DatabaseUnavailable, TransientDatabaseError) as error:
                    logger.debug("cannot look for ends now: %s", error)
                    await asyncio.sleep(FIRST_LOOK_SECONDS)
                    continue
                await set_within(self._woken, TICK_SECONDS)
        except Exception as error:
            _fail_all(self._watches.values(), error)
        finally:
            self._task = None

    async def _look_once(self, run_id: UUID) -> End:
        run = (await self._store.get_runs([run_id])).get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if run.status == "running":
            raise ResultTimeout(run_id, 0)
        return End(run_id, run.status, run.output, run.error)

    async def _look(self, now: float) -> None:
        """Read the runs that a wake-up named, and those that are due."""
        named = list(self._named & self._watches.keys())
        if not await self._read(named, now):  # one of them may be in a shard that is away
            for run_id in self._watches.keys() & named:  # callers may have left meanwhile
                self._watches[run_id].look_at = now
        self._named.difference_update(named)
        due = [
            run_id
            for run_id, watch in self._watches.items()
            if watch.look_at is not None and watch.look_at <= now
        ]
        if not due:
            return
        ended = await self._register(due)
        self._end(ended)
        going = [run_id for run_id in due if run_id in self._watches and run_id not in ended]
        unseen = [run_id for run_id in going if self._watches[run_id].is_unseen(now)]
        await self._read(unseen, now)
        long: list[UUID] = []
        for run_id in going:
            if watch := self._watches.get(run_id):
                watch.put_off(now)
                if now - watch.began_at >= PATIENCE_SECONDS:
                    long.append(run_id)
        self._unserved.look(long, now)

    async def _read(self, run_ids: list[UUID], now: float) -> bool:
        """Read runs, and end those that have ended or do not exist; False if that failed."""
        try:
            found = await self._store.get_runs(run_ids) if run_ids else {}
        except DatabaseUnavailable as error:
            logger.debug("cannot read runs that are waited for now: %s", error)
            return False
        self._check_existence(run_ids, found, now)
        return True

    async def _register(self, run_ids: list[UUID]) -> dict[UUID, RunRecord]:
        """Register for the ends of runs; return those that have ended.

        A run that another transaction has locked is left out: it is looked at again later.
        """
        with BriefLocks():
            try:
                return await self._store.wait_for_end(self.topic, run_ids)
            except LockTimeout:
                if len(run_ids) == 1:
                    return {}
        middle = len(run_ids) // 2
        first = await self._register(run_ids[:middle])
        return first | await self._register(run_ids[middle:])

    def _end(self, runs: dict[UUID, RunRecord]) -> None:
        for run_id, run in runs.items():
            if run.status != "running" and (watch := self._watches.get(run_id)):
                watch.end(End(run_id, run.status, run.output, run.error))

    def _check_existence(
        self, run_ids: Iterable[UUID], runs: dict[UUID, RunRecord], now: float
    ) -> None:
        self._end(runs)
        for run_id in run_ids:
            if watch := self._watches.get(run_id):
                watch.seen_at = now if run_id in runs else None
                if watch.seen_at is None:
                    watch.fail(partial(RunNotFound, run_id))


async def end_within(end: asyncio.Future[End], run_id: UUID, timeout: float | None) -> End:
    """Return how the run ended, or raise ResultTimeout after `timeout` seconds."""
    # asyncio.wait leaves a cancellation alone, which wait_for on Python 3.11 may swallow
    done, _ = await asyncio.wait([end], timeout=timeout)
    if not done:
        assert timeout is not None
        raise ResultTimeout(run_id, timeout)
    return end.result()


def _fail_all(watches: Iterable[_Watch], error: Exception) -> None:
    for watch in watches:
        watch.fail(lambda: error)
