"""Calls of a store that carry what several callers want: none waits or fails for another one.

With no call in flight, a call is sent at once; while one is in flight, the next one is collected.
So an idle client adds no latency, and a busy one pays one transaction for many callers.

Such a call gives up soon if another transaction has a lock: what met it leaves the batch, and is
tried again alone. And one that several databases answer says what it has from some of them,
although it fails in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, Token
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from holdfast.errors import DatabaseError, DatabaseUnavailable, LockTimeout, TransientDatabaseError
from holdfast.store.port import HINTED_TOPICS, WORK_TOPIC
from holdfast.types import Notice
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.notifier")

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_TRIES = 5
LOCKED_SECONDS = 20.0  # that long a call is made again while another transaction is in the way
FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.32  # between two of these tries

MAX_BATCH = 1_000
CLOSING_SECONDS = 2.0  # for calls whose callers have gone, when the client is closed
LOCKED_CALLS = 2  # of a session at a time, so that other calls find a connection

_PAUSE_SECONDS = 0.001  # between two calls that wake the same workers
_WAKING = (WORK_TOPIC, *HINTED_TOPICS)
_LAST_SECONDS = 2.0  # for the wake-ups that wait when a notifier stops

BRIEF_MILLIS: Final = 50  # for each lock, in calls that keep others waiting

lock_millis: Final[ContextVar[int | None]] = ContextVar("holdfast_lock_millis", default=None)
"""For how long a call of this context waits for each lock; None: as long as it may take."""

_parts: Final[ContextVar[dict[int, Any] | None]] = ContextVar("holdfast_parts", default=None)


class TakingParts:
    """Take what was answered in calls of the block that raise, by the places of the items.

    That may be the error of an item, which another one does not have.
    """

    __slots__ = ("_answered", "_token")

    def __init__(self, answered: dict[int, Any]) -> None:
        self._answered = answered

    def __enter__(self) -> None:
        self._token = _parts.set(self._answered)

    def __exit__(self, *_: object) -> None:
        _parts.reset(self._token)


def taken_parts() -> dict[int, Any] | None:
    """Return where a call that fails in part tells what was answered; None if nobody asks."""
    return _parts.get()


class BriefLocks:
    """Within the block, a call that waits longer for a lock raises LockTimeout."""

    __slots__ = ("_millis", "_token")

    def __init__(self, millis: int = BRIEF_MILLIS) -> None:
        self._millis = millis
        self._token: Token[int | None] | None = None

    def __enter__(self) -> None:
        self._token = lock_millis.set(self._millis)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None, "the block was entered"
        lock_millis.reset(self._token)


class Locked(NamedTuple):
    """Until when items that have met a lock are tried again, by the loop's time, and how soon."""

    until: float
    pause: float = 0.0

    @classmethod
    def from_now(cls) -> Locked:
        """Return what holds for items that have just met a lock."""
        return cls(asyncio.get_running_loop().time() + LOCKED_SECONDS)

    def is_over(self) -> bool:
        """Return True if the items are not tried again."""
        return asyncio.get_running_loop().time() > self.until

    def once_more(self) -> Locked:
        """Return what holds after one more try."""
        return Locked(self.until, min(max(2 * self.pause, FIRST_PAUSE), _LONGEST_PAUSE))


async def persist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a call that may be repeated; repeat it while the database fails temporarily.

    A call that meets the lock of another transaction gives its connection back, and is made again
    a moment later: LockTimeout is raised after LOCKED_SECONDS. So calls that wait leave the
    client's connections to others.
    """
    locked: Locked | None = None
    tries = 0
    while True:
        try:
            with BriefLocks():
                return await call()
        except LockTimeout:
            locked = locked or Locked.from_now()
            if locked.is_over():
                raise
            locked = locked.once_more()
            await asyncio.sleep(locked.pause)
        except TransientDatabaseError:
            tries += 1
            if tries == MAX_TRIES:
                raise
            await asyncio.sleep(0.01 * 2**tries)


class Coalescer(Generic[Item, Answer]):
    """Collect the items of many callers for `send`, which answers a list of them in order.

    A call that fails for some items is answered for the others; see `TakingParts`.
    An item that `send` refuses fails alone: its batch is halved until the item is found. So is a
    batch that meets the lock of another transaction, but after it: the next batches do not wait.
    Nor does any batch wait for an item that may be slow: it has a call of its own, beside them.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        room: asyncio.Semaphore | None = None,
        may_be_slow: Callable[[Item], bool] | None = None,
    ) -> None:
        """`room` limits how many calls that have met a lock are made at a time."""
        self._send, self._room = send, room or asyncio.Semaphore(LOCKED_CALLS)
        self._may_be_slow = may_be_slow
        self._beside: set[asyncio.Task[None]] = set()  # items that are slow or have met a lock
        self._queued: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None
        self._callers = 0  # that wait for an answer
        self._closing = False

    async def submit(self, item: Item) -> Answer:
        """Send an item together with the others that are queued, and return its answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if self._may_be_slow is not None and self._may_be_slow(item):
            self._make_beside(self._answer_alone((item, future)))
        else:
            self._queued.append((item, future))
            if self._task is None:
                self._task = loop.create_task(self._drain())
        self._callers += 1
        try:
            return await future
        finally:
            self._callers -= 1

    async def send(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Send items at once, in a call of their own. MAX_BATCH of them at most."""
        return await persist(partial(self._send, items))

    async def close(self) -> None:
        """Wait until all callers have their answers: LockTimeout those that wait for a lock.

        Calls whose callers have gone are waited for only for a moment: the database may be away.
        """
        self._closing = True
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSING_SECONDS
        while under_way := {*self._beside, *([] if self._task is None else [self._task])}:
            if not self._callers and loop.time() > until:
                for task in under_way:
                    task.cancel()
            await asyncio.wait(under_way, timeout=FIRST_PAUSE)

    async def _drain(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while self._queued:
                batch, self._queued = self._queued[:MAX_BATCH], self._queued[MAX_BATCH:]
                await self._answer([entry for entry in batch if not entry[1].done()])
        except BaseException:
            _cancel((*batch, *self._queued))
            raise
        finally:
            self._task = None

    async def _send_briefly(self, items: Sequence[Item]) -> Sequence[Answer] | LockTimeout:
        """Send items; return the error if the lock of another transaction is in the way."""
        try:
            return await self._send(items)
        except LockTimeout as error:
            return error

    async def _answer(
        self, batch: list[tuple[Item, asyncio.Future[Answer]]], locked: Locked | None = None
    ) -> None:
        if not batch:
            return
        answered: dict[int, Answer] = {}
        try:
            with TakingParts(answered):
                answers = await persist(partial(self._send_briefly, [item for item, _ in batch]))
        except Exception as error:
            if not (batch := _without(batch, answered)):
                return
            alone = len(batch) == 1
            if alone or isinstance(error, DatabaseUnavailable | TransientDatabaseError):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            middle = len(batch) // 2
            await self._answer(batch[:middle], locked)
            await self._answer(batch[middle:], locked)
            return
        if isinstance(answers, LockTimeout):
            self._try_later(_without(batch, answered), locked, answers)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def _try_later(
        self,
        batch: list[tuple[Item, asyncio.Future[Answer]]],
        locked: Locked | None,
        error: LockTimeout,
    ) -> None:
        """Try a batch that has met a lock again in two parts, beside the batches after it."""
        locked = locked or Locked.from_now()
        if self._closing or locked.is_over():
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        middle = len(batch) // 2
        for part in filter(None, (batch[:middle], batch[middle:])):
            self._make_beside(self._try_apart(part, locked.once_more()))

    def _make_beside(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call beside those of the batches."""
        task = asyncio.create_task(call)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _answer_alone(self, entry: tuple[Item, asyncio.Future[Answer]]) -> None:
        try:
            await self._answer([entry])
        except BaseException:
            _cancel([entry])
            raise

    async def _try_apart(
        self, batch: list[tuple[Item, asyncio.Future[Answer]]], locked: Locked
    ) -> None:
        try:
            await asyncio.sleep(locked.pause)
            async with self._room:
                await self._answer([entry for entry in batch if not entry[1].done()], locked)
        except BaseException:
            _cancel(batch)
            raise


def _without(
    batch: list[tuple[Item, asyncio.Future[Answer]]], answered: Mapping[int, Answer]
) -> list[tuple[Item, asyncio.Future[Answer]]]:
    """Give callers what was answered of a call that failed, and return the others."""
    for place, answer in answered.items():
        future = batch[place][1]
        if isinstance(answer, BaseException) and not future.done():
            future.set_exception(answer)
        elif not future.done():
            future.set_result(answer)
    return [entry for place, entry in enumerate(batch) if place not in answered]


def _cancel(batch: Iterable[tuple[object, asyncio.Future[Any]]]) -> None:
    for _, future in batch:
        future.cancel()  # does nothing to those that have an answer


class Notifier:
    """Send notices at once if no call is under way, and otherwise with the next call.

    They may get lost: workers and clients also poll. For each queue one wake-up a millisecond is
    enough: the worker that wakes takes everything that is due.
    """

    def __init__(self, notify: Callable[[Sequence[Notice]], Awaitable[None]]) -> None:
        self._notify = notify
        self._waiting: dict[Notice, None] = {}  # ordered, without repetitions
        self._call: asyncio.Task[None] | None = None
        self._sent: list[Notice] = []
        self._sent_at = 0.0

    @property
    def idle(self) -> bool:
        """Return True if everything that was submitted has been sent."""
        return self._call is None

    def submit(self, notices: Iterable[Notice]) -> None:
        """Send notices soon; returns at once."""
        self._waiting.update(dict.fromkeys(notices))
        if self._call is None and self._waiting:
            # In a context of its own: the limits of the caller's calls are not those of this one.
            loop = asyncio.get_running_loop()
            self._call = loop.create_task(self._send(), context=Context())

    async def _send(self) -> None:
        try:
            while self._waiting:
                notices, self._waiting = list(self._waiting), {}
                await self._space(notices)
                try:
                    await self._notify(notices)
                except DatabaseError as error:
                    logger.debug("%d wake-up(s) were not sent: %s", len(notices), error)
        finally:
            self._call = None

    async def _space(self, notices: list[Notice]) -> None:
        """Wait a moment if the last call woke the same workers: they are awake already."""
        loop = asyncio.get_running_loop()
        pause = self._sent_at + _PAUSE_SECONDS - loop.time()
        if pause > 0 and notices == self._sent and notices[0].topic in _WAKING:
            await asyncio.sleep(pause)
            for notice in notices:
                self._waiting.pop(notice, None)  # it came during the pause, and is sent now
        self._sent, self._sent_at = notices, loop.time()

    async def stop(self) -> None:
        """Send what waits, for at most two seconds; polling finds the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                while self._call is not None:
                    await asyncio.wait([self._call])
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call])
