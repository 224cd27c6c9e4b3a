"""Runs that calls of a consumer have started: in transactions that acknowledge the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.definitions.consumers import Consumer
from holdfast.errors import DatabaseError, HoldfastError, LockTimeout
from holdfast.store.port import Store
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import NewRun, Notice
from holdfast.worker.message_calls import HeldDelivery, warn_of_late


class _Start(msgspec.Struct, eq=False):
    delivery: HeldDelivery
    places: Sequence[int]
    runs: Sequence[NewRun]


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

    async def record(self) -> None:
        """Acknowledge and start what there is, each call in a transaction of its own.

        What the database could not be asked for is tried again by the next call of this, and its
        error is raised. So is what met the lock of another transaction, without an error. A second
        time after an answer that was lost changes nothing.
        """
        results = await asyncio.gather(*map(self._record, self.waiting), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

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
        self.waiting.remove(start)
