"""The part of the port for message queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import (
    KeptMessage,
    ListedMessage,
    MessageChange,
    MessageFailure,
    MessagePage,
    MessageReturn,
    NewMessage,
    NewRun,
    Notice,
    QueueInfo,
    QueueMetrics,
    QueueSettings,
    Receipt,
    Receive,
    Received,
)


class MessageStore(Protocol):
    """Creates message queues, sends messages, and hands them out.

    Unknown queues raise UnknownQueue; values that are not allowed raise InvalidInput.
    """

    @readable
    async def create_queue(self, settings: QueueSettings) -> bool:
        """Create a queue, and the queue of its dead letters. Return False if there is an equal one.

        Raises QueueExists if there is one of the name with other settings.
        """
        ...

    @readable
    async def update_queue(self, settings: QueueSettings) -> bool:
        """Set what may be changed of a queue: all but its kind. Return False if nothing changed.

        Raises QueueExists if the kind differs.
        """
        ...

    @readable
    async def delete_queue(self, name: str) -> bool:
        """Delete a queue with all that is in it. Return False if there is none.

        Raises QueueInUse if it has the dead letters of another one.
        """
        ...

    @readable
    async def list_queues(self, name: str | None = None) -> list[QueueInfo]:
        """Return the queues by name, or the one of a name."""
        ...

    async def send_messages(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> tuple[list[int], list[Notice]]:
        """Send messages; return their ids in the order given.

        For a deduplication id that is known, it is the id of the first message.
        """
        ...

    async def receive_messages(self, receive: Receive) -> Received:
        """Hand messages out: they are in flight until they are acknowledged or time is over."""
        ...

    @readable
    async def ack_messages(self, receipts: Sequence[Receipt]) -> tuple[list[bool], list[Notice]]:
        """Acknowledge messages; return for each receipt whether it was in flight still."""
        ...

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        """Acknowledge messages of one delivery and start runs, in one transaction.

        Returns False, and does nothing, if one of the messages was not in flight any more. Raises
        what a start raises, also for one that the rules of its workflow refuse; then nothing is
        done either.
        """
        ...

    @readable
    async def return_messages(
        self, returns: Sequence[MessageReturn]
    ) -> tuple[list[bool], list[Notice]]:
        """Give messages back; return for each whether it was in flight still."""
        ...

    @readable
    async def extend_deliveries(self, receipts: Sequence[Receipt], *, seconds: float) -> list[bool]:
        """Keep deliveries in flight for so long from now; return whether they are still.

        The places of receipts do not matter: a delivery is extended as a whole.
        """
        ...

    @readable
    async def return_expired(self, *, limit: int = 100) -> tuple[int, int | None]:
        """Give back what is in flight beyond its visibility.

        Returns how many deliveries, and when the next visibility ends.
        """
        ...

    @readable
    async def purge_messages(self, queue: str, *, limit: int = 10_000) -> int:
        """Delete waiting messages; return how many. If it returns `limit`, there may be more."""
        ...

    @readable
    async def redrive_messages(
        self,
        queue: str,
        *,
        limit: int = 1000,
        message_ids: Sequence[int] | None = None,
        before: int | None = None,
    ) -> tuple[int, list[Notice]]:
        """Move dead letters back to their queue, all or these; return how many.

        If it returns `limit`, there may be more. With `before`, the moment of the first call, not
        what has failed again since then.
        """
        ...

    @readable
    async def queue_metrics(
        self, queue: str | None = None, *, limit: int = 10_000
    ) -> list[QueueMetrics]:
        """Count what is in a queue, or in all by name; counts end at the limit, see `more`."""
        ...

    async def list_messages(
        self, queue: str, *, limit: int = 100, clip: int | None = None
    ) -> list[ListedMessage]:
        """Return messages of a queue, without receiving them: first what waits, in order.

        With `clip`, payloads are the first so many characters of their JSON texts.
        """
        ...

    async def message_page(
        self,
        queue: str,
        *,
        limit: int,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        """Return a page of what `list_messages` returns, of a FIFO queue group by group.

        With `origin` it has only the dead letters of that queue. The work for a page is bounded,
        so it may be short and still have a cursor. Raises InvalidInput for what is not a cursor.
        """
        ...

    async def get_message(self, queue: str, message_id: int) -> ListedMessage | None:
        """Return a message that waits or is in flight, None if it is not in the queue."""
        ...

    @readable
    async def message_failures(
        self, message_ids: Sequence[int]
    ) -> dict[int, tuple[MessageFailure, ...]]:
        """Return the errors of messages that are in a queue, of each the newest 20, in order.

        A message that never failed is left out.
        """
        ...

    @readable
    async def cancel_message(self, queue: str, message_id: int) -> tuple[bool, list[Notice]]:
        """Delete a message that waits. Return False if it is not in the queue.

        Raises MessageInFlight.
        """
        ...

    async def change_message(
        self, queue: str, message_id: int, change: MessageChange
    ) -> tuple[bool, list[Notice]]:
        """Change a message that waits. Return False if it is not in the queue.

        Raises MessageInFlight.
        """
        ...

    async def list_kept(self, queue: str, *, limit: int = 100) -> list[KeptMessage]:
        """Return messages that were acknowledged and are kept, the newest first."""
        ...

    @readable
    async def sweep_queues(self, *, limit: int = 1000) -> int:
        """Delete what means nothing any more; return how many rows."""
        ...
