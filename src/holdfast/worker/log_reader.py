"""Reading logs for many runs at once: requests of the same moment share one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.types import Event
from holdfast.worker.backoff import Backoff

logger = logging.getLogger("holdfast.worker")

_MOST_PATIENCE = 32  # times the time that a call usually has: some ten minutes

_Request = tuple[UUID, int, Callable[[list[Event]], None]]


class LogReader:
    """Coalesce reads of logs; answers come as plain callbacks of the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Request] = []
        self._calls: set[asyncio.Task[None]] = set()

    def read(self, run_id: UUID, first: int, answer: Callable[[list[Event]], None]) -> None:
        """Read a run's events from index `first` on and call `answer` with them."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._launch)
        self._waiting.append((run_id, first, answer))

    def _launch(self) -> None:
        requests, self._waiting = self._waiting, []
        self._call(requests, 1)

    def _call(self, requests: list[_Request], patience: int) -> None:
        call = asyncio.get_running_loop().create_task(self._fetch(requests, patience))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _fetch(self, requests: list[_Request], patience: int) -> None:
        """Read what is wanted; what takes too long is divided, and given more time."""
        # one range a run: the earliest index asked for serves the later ones too
        ranges: dict[UUID, int] = {}
        for run_id, first, _ in requests:
            ranges[run_id] = min(first, ranges.get(run_id, first))
        backoff = Backoff()
        while True:
            try:
                logs = await self._store.read_events(list(ranges.items()), patience=patience)
                break
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                logger.warning("reading %d log(s) is repeated: %s", len(ranges), error)
                if isinstance(error.__cause__, TimeoutError):
                    patience = min(2 * patience, _MOST_PATIENCE)
                    if len(requests) > 1:
                        half = len(requests) // 2
                        self._call(requests[:half], patience)
                        self._call(requests[half:], patience)
                        return
            except Exception:  # runs are held for this answer, and nobody else asks for it
                logger.exception("reading %d log(s) failed; it is repeated", len(ranges))
            await backoff.wait()
        loop = asyncio.get_running_loop()
        for run_id, first, answer in requests:
            log = logs.get(run_id, [])
            loop.call_soon(answer, log[first - ranges[run_id] :] if first else log)

    async def stop(self) -> None:
        """Call off what is under way."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
