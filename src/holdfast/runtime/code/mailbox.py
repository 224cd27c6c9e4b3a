"""The signals of a run: kept until somebody waits for them, first in, first out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.runtime.code.box import Box, Buffered
from holdfast.runtime.code.matching import Pattern
from holdfast.runtime.code.messages import Message
from holdfast.types import JSON

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop


class Mailbox:
    """Messages by the signal's name, and who waits for them."""

    __slots__ = ("_boxes", "_loop")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._boxes: dict[str, Box] = {}  # none of them is empty

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names that the code waits for."""
        return tuple(name for name, box in self._boxes.items() if box.waits)

    @property
    def unread(self) -> list[Message]:
        """The messages that nobody has taken, by name."""
        boxes = self._boxes.values()
        return [buffered.message for box in boxes for buffered in box.buffered.values()]

    def put(self, message: Message) -> None:
        """Keep a message, and wake the first wait that would take it."""
        box = self._open(message.name)
        buffered = box.put(message)
        if not self._loop.ended:
            box.offer(buffered)

    async def take(self, name: str, match: JSON) -> msgspec.Raw:
        """Wait for the first message that contains `match`; None matches every message.

        As in asyncio.Queue, a message leaves the buffer when its waiter runs, not when it
        arrives: a waiter that is cancelled in between leaves it to the next. After the end of the
        run's own code no message is taken: they go along to the run that it continues as.
        """
        box, pattern = self._open(name), Pattern(match)
        buffered = None if self._loop.ended else box.find(pattern)
        try:
            if buffered is None:
                buffered = await self._arrival(box, pattern)
            box.remove(buffered)
        finally:
            if box.is_empty:
                self._boxes.pop(name, None)
        return buffered.message.payload

    async def _arrival(self, box: Box, pattern: Pattern) -> Buffered:
        loop, waiter = self._loop, box.join(pattern)
        found: Buffered | None = None
        try:
            while True:
                # Not a WorkflowFuture: the exact class is asyncio's fast path, and no code sees it.
                waiter.future = asyncio.Future[None](loop=loop)
                await waiter.future
                found = None if loop.ended else box.find(pattern)
                if found is not None:
                    return found
        finally:
            box.leave(waiter)
            offered = waiter.offered
            if offered is not None and offered is not found and not (loop.closing or loop.ended):
                box.offer(offered)  # to the next

    def _open(self, name: str) -> Box:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = Box()
        return box
