"""Deliveries that a worker holds, and the calls of consumers with their messages."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from msgspec import Struct, field

from holdfast.codec import describe, storable, summarize
from holdfast.definitions.consumers import Consumer, Discard, Failure, MessageContext, Snooze
from holdfast.errors import HoldfastError
from holdfast.types import MessageDelivery, MessageReturn, Receipt, StoredMessage
from holdfast.values.durations import LONGEST_SECONDS, seconds
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Execution

logger = get_logger("holdfast.consumers")


class MessageCall(Execution[MessageContext]):
    """One call of a consumer. After the report `failures` says why each message is not done."""

    __slots__ = ("consumer", "delivery", "failures", "is_listed", "places")

    def __init__(
        self,
        consumer: Consumer,
        delivery: HeldDelivery,
        places: Sequence[int],
        started_at: int,
        report: Callable[[MessageCall], None],
    ) -> None:
        context = MessageContext(
            consumer.queue,
            delivery.group,
            [delivery.messages[place] for place in places],
            consumer.app,
        )
        super().__init__(consumer, context, started_at, consumer.timeout_seconds, report)
        self.consumer, self.delivery, self.places = consumer, delivery, places
        self.failures: Sequence[Failure | None] = ()
        self.is_listed = False  # the function has said which messages failed

    def finished(self, future: asyncio.Future[object]) -> None:
        """Report which messages have failed."""
        if self.ended:
            super().finished(future)
            return
        try:
            self.failures = self.consumer.failures(future.result(), len(self.places))
        except asyncio.CancelledError:
            self.fail(asyncio.CancelledError("the consumer cancelled itself"))
        except BaseException as error:  # of any kind: otherwise the messages would stay in flight
            self.fail(error)
        else:
            self.is_listed = True
            self._end()

    def fail(self, error: BaseException) -> None:
        """Report that all messages of the call have failed."""
        if not (self.ended or self.drop_with_loop()):
            self.failures = [error] * len(self.places)
            self._end()

    def failed(self) -> Iterable[tuple[int, Failure]]:
        """Return the places of the messages that are not done, each with what it ended with."""
        for place, error in zip(self.places, self.failures, strict=True):
            if error is not None:
                yield place, error

    def waits(self, place: int) -> bool:
        """Return True if a message that failed waits for one of its group that failed before it.

        If the call raised, nobody knows which message it was: then none waits. For one that is
        discarded nothing waits.
        """
        back = (place for place, why in self.failed() if not isinstance(why, Discard))
        first = next(back, place)
        return self.is_listed and self.delivery.group is not None and place > first


def give_back(
    consumer: Consumer, delivery: HeldDelivery, place: int, failure: Failure, waits: bool
) -> MessageReturn:
    """Log the failure of a message, and return how it is given back.

    One that `waits` for another of its group is due with that one, and its receive does not count:
    otherwise it would become a dead letter together with it.
    """
    receipt = delivery.receipt(place)
    if isinstance(failure, Discard):
        number, reason = delivery.messages[place].message_id, storable(failure.reason)
        logger.warning("%s discards message %d: %s", consumer, number, reason)
        return MessageReturn(receipt, error=reason, discarded=True)
    if isinstance(failure, Snooze):
        return MessageReturn(receipt, seconds(failure.delay), counted=False)
    return _failed(consumer, delivery, place, failure, waits)


def _failed(
    consumer: Consumer, delivery: HeldDelivery, place: int, error: BaseException, waits: bool
) -> MessageReturn:
    message, text = delivery.messages[place], summarize(error)
    if waits:
        logger.warning(
            "%s: message %d is given back with the one before it in its group: %s",
            consumer,
            message.message_id,
            text,
        )
        return MessageReturn(delivery.receipt(place), error=text, counted=False)
    pause = pause_seconds(consumer, error, message.attempts)
    logger.warning(
        "%s: message %d failed (attempt %d): %s; if it may be received once more, in %.1f s%s",
        consumer,
        message.message_id,
        message.attempts,
        text,
        pause,
        "" if isinstance(error, HoldfastError) else f"\n{describe(error).traceback.rstrip()}",
    )
    return MessageReturn(delivery.receipt(place), pause, text)


def warn_of_late(
    consumer: Consumer, receipts: Sequence[Receipt], acked: Sequence[bool], unanswered: set[Receipt]
) -> None:
    """Log how many acknowledgements came too late.

    Those that are repeated because an earlier call did not answer do not count: that call may have
    acknowledged them. They leave `unanswered`.
    """
    late = sum(
        not in_time and receipt not in unanswered
        for receipt, in_time in zip(receipts, acked, strict=True)
    )
    unanswered.difference_update(receipts)
    if late:
        logger.warning(
            "%s ended %d delivery(s) too late: they were not in flight any more, and others "
            "may have the messages",
            consumer,
            late,
        )


def warn_of_absent(consumer: Consumer) -> None:
    """Log that the queue does not exist, and how to create it."""
    logger.warning(
        "%s waits: there is no message queue %s; declare it with app.message_queue(…), or "
        "create it with `holdfast queue create %s`",
        consumer,
        consumer.queue,
        consumer.queue,
    )


def pause_seconds(consumer: Consumer, error: BaseException, attempt: int) -> float:
    """Return how long a message waits after a failed attempt: what the error asks for, or usual."""
    pause = None
    try:
        pause = consumer.retry.asked_seconds(error)
    except Exception:
        logger.exception("delay of %s failed; the usual pause", consumer)
    if pause is None:
        pause = consumer.retry.delay_seconds(attempt, random.random)
    return min(pause, LONGEST_SECONDS)


class HeldDelivery(Struct):
    """A delivery in flight here: `open` are the places of messages that no call has ended."""

    queue_id: int
    delivery_id: UUID
    group: str | None
    messages: dict[int, StoredMessage]
    extended_at: float  # by the monotonic clock: when it was received, or kept last
    open: set[int] = field(default_factory=set[int])
    done: list[int] = field(default_factory=list[int])  # to be acknowledged
    calls: list[MessageCall] = field(default_factory=list[MessageCall])
    done_since: float = math.inf
    is_whole: bool = True  # none of its messages was acknowledged or given back alone

    @classmethod
    def of(cls, delivery: MessageDelivery) -> HeldDelivery:
        """Return a delivery that was received now."""
        messages = dict(enumerate(delivery.messages, 1))
        return cls(
            delivery.queue_id,
            delivery.delivery_id,
            delivery.group,
            messages,
            time.monotonic(),
            set(messages),
        )

    def receipt(self, place: int | None = None) -> Receipt:
        """Return the receipt of a message, or of all of them."""
        return Receipt(self.queue_id, self.delivery_id, place)

    def uncounted(self, places: Iterable[int]) -> list[MessageReturn]:
        """Return how messages are given back whose receive does not count."""
        return [MessageReturn(self.receipt(place), counted=False) for place in places]

    def warn_of_loss(self, consumer: Consumer) -> None:
        """Log that it is not in flight here any more."""
        logger.warning(
            "%s has lost a delivery of %d message(s): it was not kept in time, and others may "
            "have the messages",
            consumer,
            len(self.open),
        )
