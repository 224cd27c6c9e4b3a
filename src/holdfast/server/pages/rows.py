"""The rows of lists that people look at, read together for all of them.

Each has other rows on the screen, depending on when the list was opened. So what they look at is
put together, and read once in a while, whatever their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final
from uuid import UUID

from holdfast.client.run import RunPage
from holdfast.server.site import Site
from holdfast.store.port import Store
from holdfast.types import RunRecord

SECONDS: Final = 1.9  # that an answer is shown: a little less than a page waits between two looks
_LOOKED_AT: Final = 6.0  # seconds after which a row is not read any more
_AT_ONCE: Final = 1_000  # rows of one question
_PAGES: Final = 100  # lists that are kept


class Rows:
    """What is shown of runs in lists, for all who look at lists of a server."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked: dict[UUID, float] = {}  # when a row was looked at last
        self._read: dict[UUID, RunRecord | None] = {}
        self._read_at = float("-inf")
        self._pages: dict[Hashable, tuple[float, asyncio.Task[RunPage]]] = {}

    async def read(self, store: Store, run_ids: Sequence[UUID]) -> Mapping[UUID, RunRecord]:
        """Return runs without their payloads; those that do not exist any more are left out."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            self._asked |= dict.fromkeys(run_ids, now)
            wanted = [each for each in run_ids if each not in self._read]
            if now - self._read_at >= SECONDS:
                self._asked = {k: at for k, at in self._asked.items() if now - at < _LOOKED_AT}
                wanted, self._read_at = list(self._asked), now
                self._read = {}
            for first in range(0, len(wanted), _AT_ONCE):
                some = wanted[first : first + _AT_ONCE]
                found = await store.get_runs(some, payloads=False)
                self._read |= {run_id: found.get(run_id) for run_id in some}
            return {each: run for each in run_ids if (run := self._read[each]) is not None}

    async def page(self, key: Hashable, ask: Callable[[], Awaitable[RunPage]]) -> RunPage:
        """Return a page of a list, asked for once for all who look at it. `key` names the list."""
        now = asyncio.get_running_loop().time()
        until, task = self._pages.get(key, (now, None))
        if task is None or until <= now:
            if len(self._pages) >= _PAGES:
                self._pages.clear()
            task = asyncio.ensure_future(_awaited(ask))
            self._pages[key] = now + SECONDS, task
        try:
            return await asyncio.shield(task)  # a viewer that leaves must not end the question
        except Exception:
            self._pages.pop(key, None)
            raise


async def _awaited(ask: Callable[[], Awaitable[RunPage]]) -> RunPage:
    return await ask()


def rows_of(site: Site) -> Rows:
    """Return the rows of a server."""
    return site.kept(_new)


def _new(_: Site) -> Rows:
    return Rows()
