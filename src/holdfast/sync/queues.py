"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime

from holdfast.client.messages import Messages, Outgoing
from holdfast.client.queues import Queues
from holdfast.sync.base import SyncGroup
from holdfast.sync.message import SyncMessage
from holdfast.types import KeptMessage, ListedMessage, MessagePage, Pause, QueueInfo, QueueMetrics
from holdfast.values.durations import Duration


class SyncQueues(SyncGroup[Queues], of=Queues):
    """Message queues: create them, send messages to them, receive and acknowledge messages."""

    def create(
        self,
        name: str,
        *,
        fifo: bool = False,
        priorities: bool = False,
        filters: bool = False,
        visibility: Duration = 30.0,
        max_receives: int | None = None,
        dead_letters: str | None = None,
        deduplication: Duration = 300.0,
        keep: Duration | None = None,
    ) -> bool:
        """Create a message queue. Return False if one with the same settings exists."""
        return self._call(
            self._target.create,
            name,
            fifo=fifo,
            priorities=priorities,
            filters=filters,
            visibility=visibility,
            max_receives=max_receives,
            dead_letters=dead_letters,
            deduplication=deduplication,
            keep=keep,
        )

    def update(
        self,
        name: str,
        *,
        visibility: Duration | None = None,
        max_receives: int | None = None,
        dead_letters: str | None = None,
        deduplication: Duration | None = None,
        keep: Duration | None = None,
    ) -> bool:
        """Change settings of a message queue; None leaves one as it is. Return False if none
        was.
        """
        return self._call(
            self._target.update,
            name,
            visibility=visibility,
            max_receives=max_receives,
            dead_letters=dead_letters,
            deduplication=deduplication,
            keep=keep,
        )

    def get(self, name: str) -> QueueInfo:
        """Return a message queue. Raises UnknownQueue."""
        return self._call(self._target.get, name)

    def delete(self, name: str) -> bool:
        """Delete a message queue with all that is in it. Return False if there is none."""
        return self._call(self._target.delete, name)

    def list(self) -> list[QueueInfo]:
        """Return the message queues by name."""
        return self._call(self._target.list)

    def send(
        self,
        queue: str,
        payload: object = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        connection: object = None,
        notify: bool = False,
    ) -> int:
        """Send a message. Return its id; for a `dedup_id` that is known, that of the first
        message.
        """
        return self._call(
            self._target.send,
            queue,
            payload,
            delay=delay,
            at=at,
            group=group,
            dedup_id=dedup_id,
            priority=priority,
            headers=headers,
            connection=connection,
            notify=notify,
        )

    def send_many(
        self,
        queue: str,
        messages: Iterable[Outgoing],
        *,
        connection: object = None,
        notify: bool = False,
    ) -> builtins.list[int]:
        """Send messages; return their ids in the order given. See `send`."""
        return self._call(
            self._target.send_many, queue, messages, connection=connection, notify=notify
        )

    def receive(
        self,
        queue: str,
        limit: int = 1,
        *,
        visibility: Duration | None = None,
        wait: Duration = 0,
        contains: object = None,
        per_group: int = 1,
        type: object = object,
        consumer: str | None = None,
    ) -> builtins.list[SyncMessage]:
        """Receive up to `limit` messages, of a FIFO queue up to `per_group` of so many groups."""
        return [
            SyncMessage(self._portal, each)
            for each in self._call(
                self._target.receive,
                queue,
                limit,
                visibility=visibility,
                wait=wait,
                contains=contains,
                per_group=per_group,
                type=type,
                consumer=consumer,
            )
        ]

    def pop(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: Duration = 0,
        contains: object = None,
        per_group: int = 1,
        type: object = object,
    ) -> builtins.list[SyncMessage]:
        """Receive messages and acknowledge them in one transaction: each comes at most once."""
        return [
            SyncMessage(self._portal, each)
            for each in self._call(
                self._target.pop,
                queue,
                limit,
                wait=wait,
                contains=contains,
                per_group=per_group,
                type=type,
            )
        ]

    def ack(self, messages: Messages, *, connection: object = None) -> builtins.list[bool]:
        """Acknowledge messages: they are done. Return for each if it was in flight still."""
        return self._call(self._target.ack, messages, connection=connection)

    def nack(
        self,
        messages: Messages,
        *,
        delay: Duration = 0,
        error: str | None = None,
        counted: bool = True,
    ) -> builtins.list[bool]:
        """Give messages back: due again after a delay, or dead letters if received too often."""
        return self._call(self._target.nack, messages, delay=delay, error=error, counted=counted)

    def extend(self, messages: Messages, visibility: Duration) -> builtins.list[bool]:
        """Keep messages in flight for so long from now. Return for each if it was in flight
        still.
        """
        return self._call(self._target.extend, messages, visibility)

    def purge(self, queue: str) -> int:
        """Delete all messages that wait in a queue; what is in flight stays. Return how many."""
        return self._call(self._target.purge, queue)

    def redrive(self, queue: str, message_ids: Iterable[int] | None = None) -> int:
        """Move dead letters back to the queue that they come from. Return how many."""
        return self._call(self._target.redrive, queue, message_ids)

    def metrics(self, queue: str | None = None) -> builtins.list[QueueMetrics]:
        """Count what is due, delayed, in flight and dead in a queue, or in all; up to 10,000
        each.
        """
        return self._call(self._target.metrics, queue)

    def messages(self, queue: str, limit: int = 100) -> builtins.list[ListedMessage]:
        """Return messages without receiving them: first what waits, in the order of receives."""
        return self._call(self._target.messages, queue, limit)

    def page(
        self,
        queue: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        """Return a page of messages without receiving them, and the cursor of the next page."""
        return self._call(
            self._target.page, queue, limit=limit, cursor=cursor, clip=clip, origin=origin
        )

    def kept(self, queue: str, limit: int = 100) -> builtins.list[KeptMessage]:
        """Return messages that were acknowledged and are kept, the newest first."""
        return self._call(self._target.kept, queue, limit)

    def pause(self, name: str, reason: str | None = None) -> bool:
        """Let nothing be taken from a queue. Return False if it was paused before."""
        return self._call(self._target.pause, name, reason)

    def resume(self, name: str) -> bool:
        """Let workers and receivers continue with a queue. Return False if it was not paused."""
        return self._call(self._target.resume, name)

    def pauses(self) -> builtins.list[Pause]:
        """Return the queues that are paused, each with the moment and the reason."""
        return self._call(self._target.pauses)
