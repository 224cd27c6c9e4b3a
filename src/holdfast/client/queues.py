"""`client.queues`: message queues; and pauses of queues."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from holdfast.client.control import list_pauses, set_pause
from holdfast.client.message import Message, receive_messages
from holdfast.client.messages import (
    Messages,
    Outgoing,
    ack_messages,
    changes_of,
    check_page,
    create_queue,
    encode_message,
    encode_messages,
    encode_receive,
    extend_messages,
    nack_messages,
    purge_messages,
    redrive_messages,
    send_messages,
)
from holdfast.client.session import Group
from holdfast.definitions.message_queues import settings_of
from holdfast.errors import UnknownQueue
from holdfast.store.port import messages_topic
from holdfast.store.shared_calls import persist
from holdfast.types import (
    KeptMessage,
    ListedMessage,
    MessagePage,
    Notice,
    Pause,
    QueueInfo,
    QueueMetrics,
)
from holdfast.values.durations import Duration
from holdfast.values.names import check_queue_name


class Queues(Group):
    """Message queues: create them, send messages to them, receive and acknowledge messages.

    And pauses: nothing is taken from a paused queue, neither messages nor runs nor activities.
    """

    async def create(
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
        """Create a message queue. Return False if one with the same settings exists.

        In a queue that is `fifo`, messages have groups, and each group is handed out in its order.
        With `priorities`, messages can be more or less urgent; with `filters`, a receive can have a
        condition. A message that was received `max_receives` times and given back each time moves
        to the queue `dead_letters`, by default the name with `.dead` added. A deduplication id is
        known for `deduplication`. Acknowledged messages are kept for `keep`.

        Raises QueueExists if a queue of this name has other settings, InvalidName,
        ConfigurationError and InvalidInput.

        ```python
        await client.queues.create("parcels", visibility="1m", max_receives=5)
        ```
        """
        kind = fifo, priorities, filters
        new = settings_of(name, kind, visibility, max_receives, dead_letters, deduplication, keep)
        return await create_queue(self._session, new)

    async def update(
        self,
        name: str,
        *,
        visibility: Duration | None = None,
        max_receives: int | None = None,
        dead_letters: str | None = None,
        deduplication: Duration | None = None,
        keep: Duration | None = None,
    ) -> bool:
        """Change settings of a message queue; None leaves one as it is. Return False if none was.

        With `max_receives` 0, nothing becomes a dead letter any more; with `keep` 0, acknowledged
        messages are not kept. What is in flight stays so for as long as it was received; consumers
        that run take on a new visibility within seconds.

        Raises UnknownQueue, ConfigurationError and InvalidInput.

        ```python
        await client.queues.update("parcels", visibility="5m", keep="7d")
        ```
        """
        changes = changes_of(name, visibility, max_receives, dead_letters, deduplication, keep)
        found = await self.get(name)
        settings = replace(found.settings, **changes)
        return await persist(partial(self._session.store.update_queue, settings))

    async def get(self, name: str) -> QueueInfo:
        """Return a message queue. Raises UnknownQueue.

        ```python
        print((await client.queues.get("parcels")).settings.visibility_seconds)
        ```
        """
        for found in await self._session.store.list_queues(check_queue_name(name)):
            return found
        raise UnknownQueue(f"there is no message queue {name!r}: create it first")

    async def delete(self, name: str) -> bool:
        """Delete a message queue with all that is in it. Return False if there is none.

        Raises QueueInUse if it has the dead letters of another queue.

        ```python
        await client.queues.delete("parcels")
        ```
        """
        return await persist(partial(self._session.store.delete_queue, check_queue_name(name)))

    async def list(self) -> list[QueueInfo]:
        """Return the message queues by name.

        ```python
        print([queue.settings.name for queue in await client.queues.list()])
        ```
        """
        return await self._session.store.list_queues()

    async def send(
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
        """Send a message. Return its id; for a `dedup_id` that is known, that of the first message.

        It is due `delay` from now, or `at` a moment with a time zone; one in the past is due now.
        With a `connection` of asyncpg, psycopg or SQLAlchemy the send is part of its transaction;
        `notify` then wakes receivers at the commit. Otherwise sends of the same moment share a
        transaction. Raises UnknownQueue, InvalidInput and PayloadError.

        ```python
        await client.queues.send("parcels", {"id": 7}, delay="10s")
        ```
        """
        new = [encode_message(Outgoing(payload, delay, group, dedup_id, priority, headers, at))]
        return (await send_messages(self._session, queue, new, connection, notify))[0]

    async def send_many(
        self,
        queue: str,
        messages: Iterable[Outgoing],
        *,
        connection: object = None,
        notify: bool = False,
    ) -> builtins.list[int]:
        """Send messages; return their ids in the order given. See `send`.

        Without a connection they are sent in transactions of 1,000.

        ```python
        from holdfast.client import Outgoing

        await client.queues.send_many("parcels", [Outgoing({"id": 8}), Outgoing({"id": 9})])
        ```
        """
        new = encode_messages(messages)
        return await send_messages(self._session, queue, new, connection, notify)

    async def receive(
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
    ) -> builtins.list[Message]:
        """Receive up to `limit` messages, of a FIFO queue up to `per_group` of so many groups.

        They are in flight for `visibility`, by default the queue's: then others receive them,
        unless they are acknowledged. If nothing is due, wait for it up to `wait`. Only messages
        whose payload contains `contains`, in a queue with filters. Payloads are decoded as `type`.

        Raises UnknownQueue and InvalidInput.

        ```python
        for message in await client.queues.receive("parcels", 10, wait="1s"):
            print(message.id, message.payload)
            await message.ack()
        ```
        """
        receive = encode_receive(queue, limit, visibility, contains, per_group, consumer)
        return await receive_messages(self._session, receive, wait, type)

    async def pop(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: Duration = 0,
        contains: object = None,
        per_group: int = 1,
        type: object = object,
    ) -> builtins.list[Message]:
        """Receive messages and acknowledge them in one transaction: each comes at most once.

        Messages are lost if the program ends before it has done their work, or if the answer of the
        database gets lost. Arguments and errors are those of `receive`.

        ```python
        for message in await client.queues.pop("parcels", 10):
            print(message.payload)
        ```
        """
        receive = encode_receive(queue, limit, None, contains, per_group)
        return await receive_messages(self._session, replace(receive, pops=True), wait, type)

    async def ack(self, messages: Messages, *, connection: object = None) -> builtins.list[bool]:
        """Acknowledge messages: they are done. Return for each if it was in flight still.

        One that was not may have been received by others: its receipt is old and changes nothing.
        With a `connection` this is part of its transaction.

        ```python
        messages = await client.queues.receive("parcels", 10)
        await client.queues.ack(messages)
        ```
        """
        return await ack_messages(self._session, messages, connection)

    async def nack(
        self,
        messages: Messages,
        *,
        delay: Duration = 0,
        error: str | None = None,
        counted: bool = True,
    ) -> builtins.list[bool]:
        """Give messages back: due again after a delay, or dead letters if received too often.

        Return for each if it was in flight still. `error` says why it was given back. With
        `counted=False` this receive does not count: the message was not tried.

        ```python
        [message] = await client.queues.receive("parcels")
        await client.queues.nack(message, delay="10s", error="the warehouse does not answer")
        ```
        """
        return await nack_messages(self._session, messages, delay, error, counted)

    async def extend(self, messages: Messages, visibility: Duration) -> builtins.list[bool]:
        """Keep messages in flight for so long from now. Return for each if it was in flight still.

        What was received together is kept together.

        ```python
        [message] = await client.queues.receive("parcels")
        await client.queues.extend(message, "5m")
        ```
        """
        return await extend_messages(self._session, messages, visibility)

    async def purge(self, queue: str) -> int:
        """Delete all messages that wait in a queue; what is in flight stays. Return how many.

        ```python
        await client.queues.purge("parcels")
        ```
        """
        return await purge_messages(self._session, queue)

    async def redrive(self, queue: str, message_ids: Iterable[int] | None = None) -> int:
        """Move dead letters back to the queue that they come from. Return how many.

        They are due at once, as if they had never been received; those in flight stay. With
        `message_ids` only these. What fails again meanwhile stays.

        ```python
        await client.queues.redrive("parcels")
        ```
        """
        return await redrive_messages(self._session, queue, message_ids)

    async def metrics(self, queue: str | None = None) -> builtins.list[QueueMetrics]:
        """Count what is due, delayed, in flight and dead in a queue, or in all; up to 10,000 each.

        ```python
        [counted] = await client.queues.metrics("parcels")
        print(counted.due, counted.in_flight, counted.dead)
        ```
        """
        name = None if queue is None else check_queue_name(queue)
        return await self._session.store.queue_metrics(name)

    async def messages(self, queue: str, limit: int = 100) -> builtins.list[ListedMessage]:
        """Return messages without receiving them: first what waits, in the order of receives.

        Dead letters are in the queue of the dead letters. Payloads are JSON texts.

        ```python
        for message in await client.queues.messages("parcels.dead"):
            print(message.message_id, message.error)
        ```
        """
        check_page(limit)
        return await self._session.reads.list_messages(check_queue_name(queue), limit=limit)

    async def page(
        self,
        queue: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        """Return a page of messages without receiving them, and the cursor of the next page.

        First what waits, of a FIFO queue group by group, then what is in flight. With `clip`
        payloads are the first so many characters of their JSON texts. With `origin` only the dead
        letters of that queue: a page may be short then, and have a cursor still.

        ```python
        page = await client.queues.page("parcels.dead", origin="parcels", clip=100)
        print(len(page.messages), page.cursor)
        ```
        """
        check_page(limit, clip, origin)
        return await self._session.store.message_page(
            check_queue_name(queue), limit=limit, cursor=cursor, clip=clip, origin=origin
        )

    async def kept(self, queue: str, limit: int = 100) -> builtins.list[KeptMessage]:
        """Return messages that were acknowledged and are kept, the newest first.

        ```python
        print([message.message_id for message in await client.queues.kept("parcels")])
        ```
        """
        check_page(limit)
        return await self._session.reads.list_kept(check_queue_name(queue), limit=limit)

    async def pause(self, name: str, reason: str | None = None) -> bool:
        """Let nothing be taken from a queue. Return False if it was paused before.

        Workers begin nothing of it, and receives find no messages. What runs already is not
        disturbed. The pause also holds for workers that start later.

        ```python
        await client.queues.pause("mail", reason="the mail server is down")
        ```
        """
        return await set_pause(self._session, "queue", check_queue_name(name), True, reason)

    async def resume(self, name: str) -> bool:
        """Let workers and receivers continue with a queue. Return False if it was not paused.

        ```python
        await client.queues.resume("mail")
        ```
        """
        resumed = await set_pause(self._session, "queue", check_queue_name(name), False)
        self._session.tell([Notice(messages_topic(name), name)])
        return resumed

    async def pauses(self) -> builtins.list[Pause]:
        """Return the queues that are paused, each with the moment and the reason.

        ```python
        print([pause.name for pause in await client.queues.pauses()])
        ```
        """
        return await list_pauses(self._session, "queue")
