"""What is kept of a server for each of the ways in which callers see less of it, within a bound."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Generic, TypeAlias, TypeVar

from holdfast.server.access import Principal

T = TypeVar("T")

MOST: Final = 32
"""Ways that are kept while no request uses them: a proxy may say another for each caller."""

Make: TypeAlias = Callable[[Principal, AsyncExitStack], Awaitable[T]]
"""Makes what a principal sees; what is to be closed with it goes onto the stack."""

_Seen: TypeAlias = tuple[tuple[str, ...], bool]


class _Kept(Generic[T]):
    def __init__(self, made: T, stack: AsyncExitStack) -> None:
        self.made, self.stack, self.uses = made, stack, 0


class NarrowSites(Generic[T]):
    """Keeps what was used last, and what is in use; all else is closed.

    Those who may see the same share one: what it keeps is only theirs.
    """

    def __init__(self, make: Make[T], most: int = MOST) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[_Seen, _Kept[T]] = OrderedDict()
        self._lock = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def use(self, principal: Principal) -> AsyncGenerator[T]:
        """Return what a principal sees; it stays open while the block lasts."""
        kept = await self._find(principal)
        kept.uses += 1  # nothing is awaited since it was found, so it was not closed
        try:
            yield kept.made
        finally:
            kept.uses -= 1
            self._forget()

    async def close(self) -> None:
        """Close all. Idempotent."""
        async with self._lock:
            kept, self._kept = self._kept, OrderedDict()
        async with AsyncExitStack() as stack:  # closes all, also if one fails
            for each in kept.values():
                stack.push_async_callback(each.stack.aclose)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _find(self, principal: Principal) -> _Kept[T]:
        seen = tuple(sorted(set(principal.only))), principal.payloads
        async with self._lock:
            kept = self._kept.get(seen)
            if kept is None:
                async with AsyncExitStack() as stack:
                    made = await self._make(principal, stack)
                    kept = self._kept[seen] = _Kept(made, stack.pop_all())
            self._kept.move_to_end(seen)
            return kept

    def _forget(self) -> None:
        """Close those that were not used for longest; those in use stay."""
        idle = [seen for seen, each in self._kept.items() if not each.uses]
        for seen in idle[: max(0, len(idle) - self._most)]:
            task = asyncio.create_task(self._kept.pop(seen).stack.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
