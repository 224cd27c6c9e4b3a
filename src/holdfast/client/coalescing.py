"""Gather what many callers ask at the same moment into one call of the store.

With nothing in flight a call goes out at once; while one is in flight the next one fills up.
So an idle client adds no latency, and a busy one pays one transaction for many callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH = 1_000
MAX_TRIES = 5


async def persist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a call that may be repeated until the database no longer gives up on it."""
    for attempt in range(1, MAX_TRIES):
        try:
            return await call()
        except TransientDatabaseError:
            await asyncio.sleep(0.01 * 2**attempt)
    return await call()


class Coalescer(Generic[Item, Answer]):
    """Collect items for `send`, which answers a list of them in order.

    An item that `send` refuses fails alone: the batch it was in is halved until it is found.
    """

    def __init__(self, send: Callable[[list[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._send = send
        self._queued: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        """Send an item with whatever else is waiting, and return its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queued.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    async def close(self) -> None:
        """Wait until everything submitted is answered."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while self._queued:
                batch, self._queued = self._queued[:MAX_BATCH], self._queued[MAX_BATCH:]
                await self._settle([entry for entry in batch if not entry[1].done()])
        finally:
            self._task = None
            for _, future in (*batch, *self._queued):
                future.cancel()  # a no-op for those answered; the rest have nobody left

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        items = [item for item, _ in batch]
        try:
            answers = await persist(partial(self._send, items))
        except Exception as error:
            alone = len(batch) == 1
            if alone or isinstance(error, DatabaseUnavailable | TransientDatabaseError):
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
