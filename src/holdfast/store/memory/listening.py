"""Waiters, and listeners: each is called with what is sent to its topic, on its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import msgspec

from holdfast.store.memory.clock import Clock
from holdfast.store.memory.database import Part
from holdfast.store.memory.queries import read_runs
from holdfast.store.memory.tables import Nesting
from holdfast.store.port.listening import NoHints
from holdfast.types import Notice, RunRecord


class MemoryListening(Part, NoHints):
    def __init__(self, clock: Clock, nesting: Nesting) -> None:
        super().__init__(clock, nesting)
        self._listeners: set[Listener] = set()

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        async with self._transaction() as (tables, now):
            runs = read_runs(tables, now, run_ids)
            for run_id, run in runs.items():
                if run.status == "running":
                    tables.waiters[run_id].add(topic)
            return {run_id: run for run_id, run in runs.items() if run.status != "running"}

    async def forget_waits(self, topic: str) -> None:
        async with self._transaction() as (tables, _):
            for topics in tables.waiters.values():
                topics.discard(topic)

    async def notify(self, notices: Sequence[Notice]) -> None:
        async with self._transaction():
            self._send(notices)

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        listener = Listener(topic, callback, asyncio.get_running_loop())
        with self._lock:
            self._listeners.add(listener)

        async def stop() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return stop

    def _send(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            for listener in self._listeners:
                if listener.topic == notice.topic:
                    listener.call(notice.payload)


class Listener(msgspec.Struct, frozen=True, eq=False):
    """A callback and the loop on which it is to run."""

    topic: str
    callback: Callable[[str], None]
    loop: asyncio.AbstractEventLoop

    def call(self, payload: str) -> None:
        """Call back soon; a listener whose loop is gone misses it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._run, payload)

    def _run(self, payload: str) -> None:
        self.callback(payload)
