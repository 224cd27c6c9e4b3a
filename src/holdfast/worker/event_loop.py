"""Notice that the event loop of a worker ends, and whether it still runs what it is given."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time


class LoopEnd:
    """A task that waits while the worker lives: only the end of its loop cancels it.

    `asyncio.run` cancels all tasks when its function is left. Other programs cancel them, and
    continue with their loop.
    """

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cancelled_at = math.inf

    def start(self) -> None:
        """Notice it from now on."""
        self._task = asyncio.create_task(self._wait(), name="holdfast end of loop")

    async def _wait(self) -> None:  # so that it is known as a task of the worker
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            self._cancelled_at = time.monotonic()
            raise

    @property
    def seconds(self) -> float:
        """For how long all tasks have been cancelled; below 0 if they are not. For any thread."""
        return time.monotonic() - self._cancelled_at

    def has_begun(self) -> bool:
        """Return True if the loop ends."""
        return self._task is not None and self._task.cancelling() > 0

    async def stop(self) -> None:
        """Notice it no more. Idempotent."""
        self._stopped.set()
        if self._task is not None:
            await asyncio.wait([self._task])


class LoopProbe:
    """Ask an event loop, from another thread, if it still runs what it is given.

    While it answers, nothing holds its thread, so nobody has to walk the thread's frames.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._answered = loop, threading.Event()
        self._answered.set()

    def answers(self) -> bool:
        """Return True, and ask again, if the loop has answered since it was asked."""
        if not self._answered.is_set():
            return False
        self._answered.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answered.set)
        return True
