"""Runs that calls of a consumer have started: in transactions that acknowledge the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.definitions.consumers import Consumer
from holdfast.errors import DatabaseError, HoldfastError, LockTimeout
from holdfast.store.port import Store
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import NewRun, Notice
from holdfast.worker.message_calls import HeldDelivery, warn_of_late

_SOON_SECONDS: Final = 0.25  # that other messages wait for a start: its input may be an object
_MOST_LATE: Final = 100  # starts that take longer: if there are more, the others wait for them


class _Start(msgspec.Struct, eq=False):
    delivery: HeldDelivery
    places: Sequence[int]
    runs: Sequence[NewRun]
    task: asyncio.Task[None] | None = None  # that records it


class MessageStarts:
    """What ended calls have started and is not recorded yet, each with its messages.

    `ended` is told of the messages of each: with None when they are not in flight any more, with
    the error of a start that the database refuses.
    """

    def __init__(
        self,
        consumer: Consumer,
        store: Store,
        notify: Callable[[list[Notice]], None],
        ended: Callable[[HeldDelivery, Sequence[int], HoldfastError | None], None],
    ) -> None:
        self._consumer, self._store, self._notify, self._ended = consumer, store, notify, ended
        self.waiting: list[_Start] = []  # to be recorded

    def add(self, delivery: HeldDelivery, places: Sequence[int], runs: Sequence[NewRun]) -> None:
        """Remember a call that has ended well: its messages stay open until `record`."""
        self.waiting.append(_Start(delivery, places, runs))

    async def record(self, *, at_once: bool = False) -> None:
        """Acknowledge and start what there is, each call in a transaction of its own.

        What the database could not be asked for is tried again by the next call of this, and its
        error is raised. So is what met the lock of another transaction, without an error. A second
        time after an answer that was lost changes nothing. What takes long continues beside the
        caller, and a later call takes its end; with `at_once` this call waits for all.
        """
        new = [each for each in self.waiting if each.task is None]
        for start in new:
            start.task = asyncio.create_task(self._record(start))
        waits = at_once or len(self.waiting) > _MOST_LATE
        asked = list(self.waiting if waits else new)
        try:
            if tasks := [each.task for each in asked if each.task is not None]:
                await asyncio.wait(tasks, timeout=None if waits else _SOON_SECONDS)
        except asyncio.CancelledError:
            for start in asked:
                if start.task is not None:
                    start.task.cancel()
                    start.task = None
            raise
        for error in self._take_ends():
            raise error

    def forget(self) -> None:
        """Stop what is not recorded yet: its messages are given back."""
        waiting, self.waiting = self.waiting, []
        for start in waiting:
            if start.task is not None:
                start.task.cancel()

    def _take_ends(self) -> list[BaseException]:
        """Let what has ended and is still waiting be tried again; return its errors."""
        errors: list[BaseException] = []
        for start in self.waiting:
            if start.task is not None and start.task.done():
                if (error := start.task.exception()) is not None:
                    errors.append(error)
                start.task = None
        return errors

    async def _record(self, start: _Start) -> None:
        delivery, receipts = start.delivery, [*map(start.delivery.receipt, start.places)]
        try:
            with BriefLocks():
                acked, notices = await self._store.ack_and_start(receipts, start.runs)
        except LockTimeout:  # it keeps no other waiting
            return
        except DatabaseError:
            raise
        except HoldfastError as error:
            self._ended(delivery, start.places, error)
        else:
            self._ended(delivery, start.places, None)
            self._notify(notices)
            warn_of_late(self._consumer, receipts[:1], [acked], set())
        if start in self.waiting:  # not forgotten meanwhile
            self.waiting.remove(start)
