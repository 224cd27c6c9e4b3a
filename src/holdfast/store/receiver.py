"""Receive from one message queue, and wait for messages without asking again and again.

Of the callers that wait, one looks for messages; the others wait behind it. It looks when a send is
notified, when something comes due, and at growing intervals, because notifications may get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from holdfast.errors import HoldfastError, PayloadError
from holdfast.store.port import Store, messages_topic
from holdfast.store.shared_calls import persist
from holdfast.types import MessageReturn, Receipt, Receive, Received
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.receiver")

_FIRST_PAUSE_SECONDS: Final = 0.25
_LONGEST_PAUSE_SECONDS: Final = 2.0
_SHORTEST_PAUSE_SECONDS: Final = 0.01
# For so long a receive may pass over what came due before the last one.
_WATERMARK_SECONDS: Final = 1.0
# Receivers that a client keeps although nobody receives.
MOST_IDLE: Final = 1_000


class Receiver:
    """Receives from a queue for all callers of a process."""

    def __init__(self, store: Store, queue: str) -> None:
        self._store, self._queue = store, queue
        self._lines: dict[str | None, _Line] = {}  # by condition
        self._newest: Sequence[int | None] | None = None  # of the last answer
        self._callers = 0
        self._complete_until = 0.0  # loop time; then all must be looked at again
        self._stop_listening: Callable[[], Awaitable[None]] | None = None
        self._listening = asyncio.Lock()
        self._pause = _FIRST_PAUSE_SECONDS
        self._giving_back: set[asyncio.Task[None]] = set()

    async def receive(self, receive: Receive, wait: float = 0.0) -> Received:
        """Receive what is due; if nothing is, wait for it up to `wait` seconds.

        The acks of `receive` are carried out at once, whether or not something is due, and the
        answer has what became of them. If the caller is cancelled, what is received is given back.
        """
        self._callers += 1
        try:
            first = await self._look(receive)
            if first.deliveries or wait <= 0:
                return first
            later = await self._wait(replace(receive, acks=()), first, wait)
            return replace(later, acked=first.acked, notices=(*first.notices, *later.notices))
        finally:
            self._callers -= 1

    @property
    def idle(self) -> bool:
        """True if nobody receives, and nothing is being given back."""
        return not self._callers and not self._giving_back

    async def close(self) -> None:
        """Stop listening, and finish giving back."""
        if self._stop_listening is not None:
            stop, self._stop_listening = self._stop_listening, None
            await stop()
        if self._giving_back:
            await asyncio.wait(self._giving_back)

    async def _wait(self, receive: Receive, empty: Received, wait: float) -> Received:
        """Look again and again until something is found; the last answer is empty otherwise."""
        deadline = asyncio.get_running_loop().time() + wait
        line = self._lines.setdefault(receive.contains, _Line())
        line.callers += 1
        try:
            must_look = line.turn.locked()  # what others find may be followed by more
            try:
                async with asyncio.timeout_at(deadline):
                    await line.turn.acquire()
            except TimeoutError:
                return empty
            try:
                must_look = await self._listen() or must_look
                answer = empty
                while must_look or await line.sleep(self._seconds_until(answer), deadline):
                    must_look = False
                    line.woken.clear()
                    answer = await self._look(receive)
                    if answer.deliveries:
                        break
                return answer
            finally:
                line.turn.release()
        finally:
            line.callers -= 1
            if not line.callers:
                self._lines.pop(receive.contains, None)

    def _seconds_until(self, answer: Received) -> float:
        """Return how long to sleep after nothing was found."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        if answer.next_due_at is None:
            return pause
        until = (answer.next_due_at - answer.now) / 1_000_000
        return max(_SHORTEST_PAUSE_SECONDS, min(until, pause))

    async def _look(self, receive: Receive) -> Received:
        """Receive what is due: first what came due lately, and if that is nothing, of all."""
        loop = asyncio.get_running_loop()
        first: Received | None = None
        if self._newest is not None and loop.time() < self._complete_until:
            first = await self._call(replace(receive, since=self._newest))
            if first.deliveries:
                self._found(first)
                return first
            receive = replace(receive, acks=())
        answer = await self._call(replace(receive, since=None))
        self._complete_until = loop.time() + _WATERMARK_SECONDS
        self._found(answer)
        if first is None:
            return answer
        return replace(answer, acked=first.acked, notices=(*first.notices, *answer.notices))

    def _found(self, answer: Received) -> None:
        self._newest = answer.newest
        if answer.deliveries:
            self._pause = _FIRST_PAUSE_SECONDS

    async def _call(self, receive: Receive) -> Received:
        """Make the call; it ends also if the caller is cancelled meanwhile."""
        call = asyncio.ensure_future(persist(partial(self._receive_less, receive)))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._give_back(call))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)
            raise

    async def _give_back(self, call: asyncio.Future[Received]) -> None:
        """Give back what a call receives for nobody."""
        try:
            answer = await call
            returns = [
                MessageReturn(Receipt(each.queue_id, each.delivery_id), counted=False)
                for each in answer.deliveries
            ]
            if returns:
                _, notices = await self._store.return_messages(returns)
                await self._store.notify([*answer.notices, *notices])
        except HoldfastError as error:
            logger.debug("messages for a caller that is gone wait for their time-out: %s", error)

    async def _receive_less(self, receive: Receive) -> Received:
        """Receive; fewer messages if so many are more than an answer of the database can hold."""
        while True:
            try:
                return await self._store.receive_messages(receive)
            except PayloadError:
                limit, per_group = receive.limit, receive.per_group
                if max(limit, per_group) <= 1:
                    raise
            half = {"limit": limit // 2} if limit >= per_group else {"per_group": per_group // 2}
            receive = replace(receive, **half)

    async def _listen(self) -> bool:
        """Listen for sends. Return True if it begins now: others may have been missed."""
        async with self._listening:
            if self._stop_listening is not None:
                return False
            self._stop_listening = await self._store.listen(
                messages_topic(self._queue), self._notified
            )
            return True

    def _notified(self, _: str) -> None:
        for line in self._lines.values():
            line.woken.set()


class _Line:
    """Callers that wait for the same messages: the first looks, the others are behind it."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.woken = asyncio.Event()
        self.callers = 0

    async def sleep(self, seconds: float, deadline: float) -> bool:
        """Sleep until a send is notified, for so long at most. Return False at the deadline."""
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(loop.time() + seconds, deadline)):
                await self.woken.wait()
        return True


class Receivers:
    """The receivers of a client, by queue. Of those that are idle, the ones used last are kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, Receiver] = {}  # the one that was used last is at the end
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, queue: str) -> Receiver:
        """Return what receives from a queue for all callers.

        Call its `receive` at once, without an `await` between: an idle one may be closed.
        """
        receiver = self._kept.pop(queue, None) or Receiver(self._store, queue)
        self._kept[queue] = receiver
        for _ in range(2):  # with one for each that comes, too many would stay too many
            if len(self._kept) > MOST_IDLE:
                self._look_at_oldest()
        return receiver

    def _look_at_oldest(self) -> None:
        queue = next(iter(self._kept))
        receiver = self._kept.pop(queue)
        if receiver.idle:
            task = asyncio.create_task(receiver.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        else:
            self._kept[queue] = receiver

    async def close(self) -> None:
        """Close all receivers."""
        for receiver in [*self._kept.values()]:
            await receiver.close()
        if self._closing:
            await asyncio.wait(self._closing)
