"""The part of the port for waiters and wake-ups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import HintCheck, HintUse, Notice, RunRecord


class HintReader(Protocol):
    """Reads hints for one worker: notices of `HINTED_TOPICS`, each of which one worker is told.

    A hint may be lost, repeated or wrong: workers must also poll.
    """

    @property
    def suffices(self) -> bool:
        """True while hints and notifications arrive: then it is enough to poll seldom."""
        ...

    async def read(self) -> Sequence[Notice]:
        """Wait for hints; return them. Returns one of each queue if hints may have been lost."""
        ...

    async def done(self) -> None:
        """Say that a claim was made after the last hints, so that nobody need take them over."""
        ...

    async def pass_on(self, hints: Sequence[Notice]) -> bool:
        """Tell other workers of hints whose work was too much; return False if that failed."""
        ...

    async def close(self) -> Sequence[Notice]:
        """Stop reading. Return hints that no other worker is told: the caller tells of them."""
        ...


class ListenStore(Protocol):
    """Registers waits for ends of runs, sends wake-ups, and delivers them to listeners."""

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic to be notified of the runs' ends; return those that have ended already.

        The payload of each notice is an `end_payload`.
        """
        ...

    @readable
    async def forget_waits(self, topic: str) -> None:
        """Drop every registration of a topic."""
        ...

    @readable
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

    @readable
    def read_hints(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> HintReader | None:
        """Return a reader of hints for a worker; None if all work is told by `listen` alone.

        A hint goes to one of the workers with the same queues and handlers. Who cannot take all
        of the work passes the hint on.
        """
        ...

    @readable
    def hint_use(self) -> HintUse | None:
        """Return how this store has used hints; None if it has none. Safe from any thread."""
        ...

    @readable
    async def check_hints(self) -> HintCheck | None:
        """Look at what carries the hints; None if there is nothing."""
        ...


class NoHints:
    """A store without hints: all work is told by `listen`; see `ListenStore`."""

    def read_hints(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> HintReader | None:
        """Return None: there are no hints to read."""
        return None

    def hint_use(self) -> HintUse | None:
        """Return None: it has no hints."""
        return None

    async def check_hints(self) -> HintCheck | None:
        """Return None: there is nothing to look at."""
        return None
