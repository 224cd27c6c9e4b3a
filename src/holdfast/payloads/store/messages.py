"""Messages of queues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.codec import is_sealed
from holdfast.errors import ConfigurationError
from holdfast.payloads.store.part import SEALED_SHOWS, PayloadPart
from holdfast.types import (
    KeptMessage,
    ListedMessage,
    MessageChange,
    MessagePage,
    NewMessage,
    NewRun,
    Notice,
    Receipt,
    Receive,
    Received,
)


class PayloadMessages(PayloadPart):
    """Encodes the payloads of messages."""

    async def send_messages(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> tuple[list[int], list[Notice]]:
        """Send messages; see `MessageStore.send_messages`. Their payloads stay in the database."""
        return await self._store.send_messages(queue, self.sealed_messages(queue, messages))

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        return await self._store.ack_and_start(receipts, await self.sealed_runs(runs))

    def sealed_messages(self, queue: str, messages: Sequence[NewMessage]) -> list[NewMessage]:
        """Return messages to send whose payloads are encoded.

        Raises PayloadError for one that is too large.
        """
        what = f"the payload of a message to queue {queue}"
        return [
            each
            if each.payload == "null"
            else msgspec.structs.replace(each, payload=self.payloads.seal(each.payload, what))
            for each in messages
        ]

    async def receive_messages(self, receive: Receive) -> Received:
        """Hand messages out; see `MessageStore.receive_messages`.

        Raises ConfigurationError for a condition on encoded payloads.
        """
        if receive.contains is not None and self.payloads.codecs:
            raise ConfigurationError(
                f"queue {receive.queue}: a receive cannot have a condition: the payloads are "
                "encoded by a payload_codec, and the database cannot look into them"
            )
        received = await self._store.receive_messages(receive)
        if not received.deliveries:
            return received
        opened = [
            msgspec.structs.replace(
                each, messages=[self._opened(message, "payload") for message in each.messages]
            )
            for each in received.deliveries
        ]
        return msgspec.structs.replace(received, deliveries=opened)

    async def list_messages(
        self, queue: str, *, limit: int = 100, clip: int | None = None
    ) -> list[ListedMessage]:
        """Return messages; see `MessageStore.list_messages`. What is sealed is read whole."""
        shown = max(clip, SEALED_SHOWS) if clip else clip
        found = await self._store.list_messages(queue, limit=limit, clip=shown)
        if shown and any(len(each.payload) == shown and is_sealed(each.payload) for each in found):
            found = await self._store.list_messages(queue, limit=limit)
        opened = [self._opened(each, "payload") for each in found]
        if clip is None:
            return opened
        return [msgspec.structs.replace(each, payload=each.payload[:clip]) for each in opened]

    async def message_page(
        self,
        queue: str,
        *,
        limit: int,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        """Return messages; see `MessageStore.message_page`. What is sealed is read whole."""
        shown = max(clip, SEALED_SHOWS) if clip else clip
        read = partial(self._store.message_page, queue, limit=limit, cursor=cursor, origin=origin)
        page = await read(clip=shown)
        if shown and any(
            len(each.payload) == shown and is_sealed(each.payload) for each in page.messages
        ):
            page = await read(clip=None)
        opened = [self._opened(each, "payload") for each in page.messages]
        if clip is not None:
            opened = [msgspec.structs.replace(each, payload=each.payload[:clip]) for each in opened]
        return MessagePage(opened, page.cursor)

    async def get_message(self, queue: str, message_id: int) -> ListedMessage | None:
        found = await self._store.get_message(queue, message_id)
        return None if found is None else self._opened(found, "payload")

    async def change_message(
        self, queue: str, message_id: int, change: MessageChange
    ) -> tuple[bool, list[Notice]]:
        if change.payload is not None:
            [sealed] = self.sealed_messages(queue, [NewMessage(change.payload)])
            change = msgspec.structs.replace(change, payload=sealed.payload)
        return await self._store.change_message(queue, message_id, change)

    async def list_kept(self, queue: str, *, limit: int = 100) -> list[KeptMessage]:
        found = await self._store.list_kept(queue, limit=limit)
        return [self._opened(each, "payload") for each in found]
