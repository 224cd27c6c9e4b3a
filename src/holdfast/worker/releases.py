"""Calls that a worker makes before it stops, and that may fail: above all, to give back leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from holdfast.errors import HoldfastError
from holdfast.store.port import Store
from holdfast.types import Notice, Release
from holdfast.values.loggers import get_logger
from holdfast.worker.giving_back import release_free

logger = get_logger("holdfast.worker")

_TRY_SECONDS = 3.0  # for each try
_LOSS = "leases were not given back, and expire by themselves"
_FAREWELL_SECONDS = 8.0  # for all of them together, once the worker has drained


class LastCalls:
    """Make calls that may fail: a lease that was not given back expires by itself."""

    def __init__(self) -> None:
        self._until = float("inf")  # loop time after which no call is waited for

    def begin_farewell(self) -> None:
        """Limit the time of all later calls together, so that a stop does not take too long."""
        self._until = asyncio.get_running_loop().time() + _FAREWELL_SECONDS

    async def make(self, call: Callable[[], Awaitable[object]], loss: str = _LOSS) -> None:
        """Make a call, and log it with what is lost if it fails.

        A call that is not answered is made once more, over another connection: the first may be
        dead.
        """
        loop, reason = asyncio.get_running_loop(), ""
        for _ in range(2):
            limit = loop.time() + _TRY_SECONDS
            try:
                async with asyncio.timeout_at(min(limit, self._until)):
                    await call()
                return
            except TimeoutError:
                reason = "the database does not answer"
            except HoldfastError as error:
                reason = str(error)
                break
        logger.warning("%s: %s", loss, reason)


class Releases:
    """Give back the leases of one worker. A lease that was not given back expires by itself."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        notify: Callable[[list[Notice]], None],
        last_calls: LastCalls,
    ) -> None:
        self._store, self._worker_id, self._notify = store, worker_id, notify
        self._last_calls = last_calls
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        """True if nothing is being given back."""
        return not self._calls

    def submit(self, release: Release) -> None:
        """Give one lease back, without waiting for it."""
        call = asyncio.get_running_loop().create_task(self.send([release]))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def send(self, releases: Sequence[Release]) -> None:
        """Give leases back, and wait until this is done.

        A lease whose row another transaction has is waited for after the others, alone.
        """
        locked: list[Release] = []

        async def send_free() -> None:
            locked[:], notices = await release_free(self._store, self._worker_id, releases)
            self._notify(notices)

        await self._last_calls.make(send_free)
        await asyncio.gather(*(self._last_calls.make(partial(self._send, each)) for each in locked))

    async def flush(self) -> None:
        """Wait until all submitted leases are given back."""
        if self._calls:
            await asyncio.wait(self._calls)

    async def _send(self, release: Release) -> None:
        self._notify(await self._store.release_tasks(self._worker_id, [release]))
