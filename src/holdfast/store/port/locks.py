"""Calls that carry what several callers want: none of them is to wait or fail for another one.

Such a call gives up soon if another transaction has a lock: what met it leaves the batch, and is
tried again alone. And one that several databases answer says what it has from some of them,
although it fails in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.errors import LockTimeout, TransientDatabaseError

Answer = TypeVar("Answer")

MAX_TRIES = 5
LOCKED_SECONDS = 20.0  # that long a call is made again while another transaction is in the way
FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.32  # between two of these tries

lock_millis: Final[ContextVar[int | None]] = ContextVar("holdfast_lock_millis", default=None)
"""For how long a call of this context waits for each lock; None: as long as it may take."""


_parts: Final[ContextVar[dict[int, Any] | None]] = ContextVar("holdfast_parts", default=None)


@contextmanager
def taking_parts(answered: dict[int, Any]) -> Generator[None]:
    """Take what was answered in calls of the block that raise, by the places of the items.

    That may be the error of an item, which another one does not have.
    """
    token = _parts.set(answered)
    try:
        yield
    finally:
        _parts.reset(token)


def taken_parts() -> dict[int, Any] | None:
    """Return where a call that fails in part tells what was answered; None if nobody asks."""
    return _parts.get()


class BriefLocks:
    """Within the block, a call that waits longer for a lock raises LockTimeout."""

    __slots__ = ("_millis", "_token")

    def __init__(self, millis: int = 50) -> None:
        self._millis = millis
        self._token: Token[int | None] | None = None

    def __enter__(self) -> None:
        self._token = lock_millis.set(self._millis)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None, "the block was entered"
        lock_millis.reset(self._token)


class Locked(NamedTuple):
    """Until when items that have met a lock are tried again, by the loop's time, and how soon."""

    until: float
    pause: float = 0.0

    @classmethod
    def from_now(cls) -> Locked:
        """Return what holds for items that have just met a lock."""
        return cls(asyncio.get_running_loop().time() + LOCKED_SECONDS)

    def is_over(self) -> bool:
        """Return True if the items are not tried again."""
        return asyncio.get_running_loop().time() > self.until

    def once_more(self) -> Locked:
        """Return what holds after one more try."""
        return Locked(self.until, min(max(2 * self.pause, FIRST_PAUSE), _LONGEST_PAUSE))


async def persist(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make a call that may be repeated; repeat it while the database fails temporarily.

    A call that meets the lock of another transaction gives its connection back, and is made again
    a moment later: LockTimeout is raised after LOCKED_SECONDS. So calls that wait leave the
    client's connections to others.
    """
    locked = Locked.from_now()
    tries = 0
    while True:
        try:
            with BriefLocks():
                return await call()
        except LockTimeout:
            if locked.is_over():
                raise
            locked = locked.once_more()
            await asyncio.sleep(locked.pause)
        except TransientDatabaseError:
            tries += 1
            if tries == MAX_TRIES:
                raise
            await asyncio.sleep(0.01 * 2**tries)
