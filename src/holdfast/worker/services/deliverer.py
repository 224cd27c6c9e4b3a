"""Delivering events to URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from holdfast.types import ClaimedDelivery, EndedDelivery
from holdfast.values.loggers import get_logger
from holdfast.webhooks import sign, webhook_id_of
from holdfast.worker.requests import SECONDS, post
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.topics")

_AT_ONCE: Final = 50
_EACH: Final = 10  # at once to one target: one that hangs does not hold up the others
_LEASE_SECONDS: Final = 6 * SECONDS


class Deliverer(Service):
    """Send the requests that are due, and record what came of each.

    If a worker dies, another one sends its requests again when the lease is over: receivers tell
    repetitions by their id.
    """

    duty = "deliveries"
    _seconds = 5.0

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._more = asyncio.Event()

    def notified(self, payload: str) -> None:
        """Hear that there is something to deliver."""
        self._more.set()
        self.due_at(self._clock.now())

    async def run_once(self) -> None:
        """Send until nothing is due. Where nothing is delivered to URLs, that is one question."""
        if await self._store.next_delivery_at() is None:
            return
        sending: dict[asyncio.Task[None], int] = {}
        error: BaseException | None = None  # of one call: it cuts off no other request
        try:
            while True:
                claimed = list[ClaimedDelivery]()
                try:
                    if error is None and (room := _AT_ONCE - len(sending)):
                        claimed = await self._store.claim_deliveries(
                            limit=room,
                            each=_EACH,
                            busy=sorted(sending.values()),
                            lease_seconds=_LEASE_SECONDS,
                        )
                except Exception as failure:
                    error = failure
                for delivery in claimed:
                    task = asyncio.create_task(self._deliver(delivery))
                    sending[task] = delivery.subscription_id
                if not sending:
                    break
                await self._wait_for_one(sending)
                for task in [task for task in sending if task.done()]:
                    del sending[task]
                    error = error or task.exception()
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        if error is not None:
            raise error
        due_at = await self._store.next_delivery_at()
        # What is due and was not given here is left for the next time.
        if due_at is not None and due_at > self._clock.now():
            self.due_at(due_at)

    async def _wait_for_one(self, sending: Iterable[asyncio.Task[None]]) -> None:
        """Wait until a request has ended, or until there is more to deliver."""
        more = asyncio.create_task(self._more.wait())
        try:
            await asyncio.wait([*sending, more], return_when=asyncio.FIRST_COMPLETED)
        finally:
            more.cancel()
            self._more.clear()

    async def _deliver(self, delivery: ClaimedDelivery) -> None:
        now = self._clock.now() // 1_000_000
        webhook_id = webhook_id_of(delivery.event_id, delivery.subscription_id)
        body = delivery.body()
        headers = {
            "content-type": "application/json",
            "user-agent": "holdfast",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(delivery.secret, webhook_id, now, body),
        }
        answer = await post(delivery.url, headers, body, allow_inner=delivery.allow_inner)
        ended = EndedDelivery(delivery.delivery_id, delivery.attempt, *answer)
        dead = await self._store.end_deliveries([ended])
        if dead:
            logger.warning(
                "event %s of %s did not reach the URL of subscription %d in %d attempts: %s",
                delivery.event_id,
                delivery.topic,
                delivery.subscription_id,
                delivery.attempt,
                answer.error,
            )
