"""Batches of entries for calls to the store: used by the committer and by the reporter.

If nothing is in flight an entry is sent at once, together with those of the same moment. While as
many calls are in flight as may be, entries gather, and are sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from holdfast.types import count_bearable

T = TypeVar("T")


class Batcher(Generic[T]):
    """Send entries in batches of at most `most_entries`, at most `most_calls` at a time.

    Two calls keep the database busy while this process works on an answer; more would only make
    the batches smaller. If many entries come at once, one call would take them all, and the
    database and this process would wait for each other in turn: if `halves` returns True for them,
    they are sent in two calls. The `weight` of a batch is bounded (see `count_bearable`), unless
    it is one entry: a call too long for the connection, or for the server's memory, would fail
    each time it is repeated.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Coroutine[object, object, None]],
        *,
        weight: Callable[[T], int],
        halves: Callable[[list[T]], bool] = lambda _: False,
        most_calls: int = 2,
        most_entries: int = 400,
    ) -> None:
        self._send, self._halves, self._weight = send, halves, weight
        self._most_calls, self._most_entries = most_calls, most_entries
        self._waiting: list[T] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False  # whether `_send_waiting` is about to be called

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no call is in flight."""
        return not self._waiting and not self._calls

    def add(self, entry: T) -> None:
        """Send an entry as soon as one more call may be made."""
        self._waiting.append(entry)
        if not self._scheduled and len(self._calls) < self._most_calls:
            self._scheduled = True  # entries of the same moment still join
            asyncio.get_running_loop().call_soon(self._send_waiting)

    async def flush(self) -> None:
        """Wait until nothing waits and no call is in flight."""
        while not self.idle:
            if self._calls:
                await asyncio.wait(self._calls)
            await asyncio.sleep(0)  # the next batch is sent, and answers lead to new entries

    async def stop(self) -> None:
        """Cancel the calls in flight, and drop what waits."""
        self._waiting.clear()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _send_waiting(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._calls) < self._most_calls:
            size = self._most_entries
            if not self._calls and self._halves(self._waiting):
                size = min(size, -(-len(self._waiting) // 2))
            size = count_bearable(map(self._weight, self._waiting[:size]))
            entries, self._waiting = self._waiting[:size], self._waiting[size:]
            call = asyncio.get_running_loop().create_task(self._send(entries))
            self._calls.add(call)
            call.add_done_callback(self._answered)

    def _answered(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and not self._scheduled:
            self._send_waiting()
