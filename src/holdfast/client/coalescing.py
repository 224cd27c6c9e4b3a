"""Calls that callers make at the same moment become one call of the store.

With no call in flight, a call is sent at once; while one is in flight, the next one is collected.
So an idle client adds no latency, and a busy one pays one transaction for many callers. What waits
for the lock of another transaction leaves its batch, and is tried again apart: it keeps nobody
waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.errors import DatabaseUnavailable, LockTimeout, TransientDatabaseError
from holdfast.store.port.locks import FIRST_PAUSE, Locked, persist, taking_parts

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH = 1_000
CLOSING_SECONDS = 2.0  # for calls whose callers have gone, when the client is closed
LOCKED_CALLS = 2  # of a session at a time, so that other calls find a connection


class Coalescer(Generic[Item, Answer]):
    """Collect the items of many callers for `send`, which answers a list of them in order.

    A call that fails for some items is answered for the others; see `taking_parts`.
    An item that `send` refuses fails alone: its batch is halved until the item is found. So is a
    batch that meets the lock of another transaction, but after it: the next batches do not wait.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        room: asyncio.Semaphore | None = None,
    ) -> None:
        """`room` limits how many calls that have met a lock are made at a time."""
        self._send, self._room = send, room or asyncio.Semaphore(LOCKED_CALLS)
        self._locked: set[asyncio.Task[None]] = set()  # parts of batches that have met a lock
        self._queued: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None
        self._callers = 0  # that wait for an answer
        self._closing = False

    async def submit(self, item: Item) -> Answer:
        """Send an item together with the others that are queued, and return its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queued.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
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
        while under_way := {*self._locked, *([] if self._task is None else [self._task])}:
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
            with taking_parts(answered):
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
            task = asyncio.create_task(self._try_apart(part, locked.once_more()))
            self._locked.add(task)
            task.add_done_callback(self._locked.discard)

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
