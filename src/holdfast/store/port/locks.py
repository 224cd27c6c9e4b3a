"""How long a call may wait for locks of other transactions.

A call that carries what several callers want gives up soon: otherwise one caller whose row another
transaction has would make all of them wait. What met a lock leaves the batch, and is tried
again alone.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final

lock_millis: Final[ContextVar[int | None]] = ContextVar("holdfast_lock_millis", default=None)
"""For how long a call of this context waits for each lock; None: as long as it may take."""


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
