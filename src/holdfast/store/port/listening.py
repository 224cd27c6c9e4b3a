"""The part of the port for waiters and wake-ups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.types import Notice, RunRecord


class ListenStore(Protocol):
    """Registers waits for ends of runs, sends wake-ups, and delivers them to listeners."""

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic to be notified of the runs' ends; return those that have ended already.

        The payload of each notice is an `end_payload`.
        """
        ...

    async def forget_waits(self, topic: str) -> None:
        """Drop every registration of a topic."""
        ...

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups. They may get lost: listeners must also poll."""
        ...

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call `callback` with each payload sent to a topic; return a function that stops it.

        After a lost connection the store listens again, and calls `callback` once with "",
        because wake-ups may have been missed.
        """
        ...
