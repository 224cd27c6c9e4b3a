"""Reading the logs of many runs at once: requests of the same moment share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from uuid import UUID

from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.types import Event, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.worker.backoff import Backoff
from holdfast.worker.outage import OUTAGE

logger = get_logger("holdfast.worker")

_MOST_PATIENCE = 32  # times the usual limit of a call: about ten minutes

_Request = tuple[UUID, int, Callable[[list[Event]], None]]
_RunRequest = tuple[UUID, Callable[[RunRecord | None], None]]


class LogReader:
    """Read logs. Answers are given in plain callbacks of the event loop, never inside a task."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Request] = []
        self._runs: list[_RunRequest] = []
        self._calls: set[asyncio.Task[None]] = set()

    def read(self, run_id: UUID, first: int, answer: Callable[[list[Event]], None]) -> None:
        """Read a run's events from index `first` on and call `answer` with them."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send_requests)
        self._waiting.append((run_id, first, answer))

    def read_run(self, run_id: UUID, answer: Callable[[RunRecord | None], None]) -> None:
        """Read a run's row and call `answer` with it, with None if the run is gone."""
        if not self._runs:
            asyncio.get_running_loop().call_soon(self._send_run_requests)
        self._runs.append((run_id, answer))

    def _send_run_requests(self) -> None:
        requests, self._runs = self._runs, []
        self._start(self._fetch_runs(requests))

    def _send_requests(self) -> None:
        requests, self._waiting = self._waiting, []
        self._call(requests, 1)

    def _call(self, requests: list[_Request], patience: int) -> None:
        self._start(self._fetch(requests, patience))

    def _start(self, reading: Coroutine[object, None, None]) -> None:
        call = asyncio.get_running_loop().create_task(reading)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _fetch(self, requests: list[_Request], patience: int) -> None:
        """Read logs; a call that takes too long is divided, and given more time."""
        # one range a run, from the smallest index asked for
        ranges: dict[UUID, int] = {}
        for run_id, first, _ in requests:
            ranges[run_id] = min(first, ranges.get(run_id, first))
        backoff = Backoff()
        while True:
            try:
                logs = await self._store.read_events(list(ranges.items()), patience=patience)
                break
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                OUTAGE.tell(logger, f"reading {len(ranges)} log(s) is repeated", error)
                if isinstance(error.__cause__, TimeoutError):
                    patience = min(2 * patience, _MOST_PATIENCE)
                    if len(requests) > 1:
                        half = len(requests) // 2
                        self._call(requests[:half], patience)
                        self._call(requests[half:], patience)
                        return
            except Exception:  # the runs wait for this answer
                logger.exception("reading %d log(s) failed; it is repeated", len(ranges))
            await backoff.wait()
        loop = asyncio.get_running_loop()
        for run_id, first, answer in requests:
            log = logs.get(run_id, [])
            loop.call_soon(answer, log[first - ranges[run_id] :] if first else log)

    async def _fetch_runs(self, requests: list[_RunRequest]) -> None:
        """Read the rows of runs. Every failure is repeated: the runs wait for this answer."""
        run_ids = [run_id for run_id, _ in requests]
        backoff = Backoff()
        while True:
            try:
                runs = await self._store.get_runs(run_ids)
                break
            except (TransientDatabaseError, DatabaseUnavailable) as error:
                OUTAGE.tell(logger, f"reading {len(run_ids)} run(s) is repeated", error)
            except Exception:
                logger.exception("reading %d run(s) failed; it is repeated", len(run_ids))
            await backoff.wait()
        loop = asyncio.get_running_loop()
        for run_id, answer in requests:
            loop.call_soon(answer, runs.get(run_id))

    async def stop(self) -> None:
        """Cancel the calls in flight."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
