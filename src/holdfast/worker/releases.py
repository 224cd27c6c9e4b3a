"""Giving back leases one by one, while the worker runs and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.store.port import Store
from holdfast.types import Notice, Release
from holdfast.worker.last_calls import LastCalls


class Releases:
    """Give back the leases of one worker. A lease that cannot be given back runs out by itself."""

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
        """Whether nothing is being given back."""
        return not self._calls

    def submit(self, release: Release) -> None:
        """Give one lease back, without waiting for it."""
        call = asyncio.get_running_loop().create_task(self.send([release]))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def send(self, releases: Sequence[Release]) -> None:
        """Give leases back, and wait for it."""
        await self._last_calls.make(lambda: self._send(releases))

    async def flush(self) -> None:
        """Wait until what was submitted is given back."""
        if self._calls:
            await asyncio.wait(self._calls)

    async def _send(self, releases: Sequence[Release]) -> None:
        self._notify(await self._store.release_tasks(self._worker_id, releases))
