"""The loop of one consumer: receive messages, call its function, acknowledge or give them back.

It receives as many messages as calls have room, and acknowledges in the same transaction the
deliveries that have ended since. The heartbeat keeps what is in flight here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from holdfast.codec import check_open
from holdfast.definitions.consumers import Consumer, Failure
from holdfast.definitions.middleware import Layer
from holdfast.errors import DatabaseError, HoldfastError, UnknownQueue
from holdfast.store.port import Store, messages_topic
from holdfast.store.receiver import Receiver
from holdfast.types import MessageReturn, Notice, QueueInfo, Receipt, Receive, WorkerInfo
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Launcher
from holdfast.worker.backoff import Backoff, first_of, spread
from holdfast.worker.clock import Clock
from holdfast.worker.giving_back import MessageEnds
from holdfast.worker.message_calls import (
    HeldDelivery,
    MessageCall,
    give_back,
    warn_of_absent,
    warn_of_late,
)
from holdfast.worker.message_starts import MessageStarts
from holdfast.worker.outage import OUTAGE
from holdfast.worker.releases import LastCalls

logger = get_logger("holdfast.consumers")

_POLL_SECONDS: Final = 5.0  # notifications may get lost
_ABSENT_SECONDS: Final = 5.0  # between two looks for a queue that does not exist
_LOSS: Final = "ends of messages were not recorded: they are due again when their visibility ends"
_KNOWN_SECONDS: Final = 10.0  # then the settings of the queue are read again
_SIBLINGS_SECONDS: Final = 0.02  # a message that has ended waits so long for the others
_LOCKED_SECONDS: Final = 0.25  # between two tries of starts that meet a lock of others


class ConsumerLoop:
    """The loop of one consumer."""

    def __init__(
        self,
        consumer: Consumer,
        store: Store,
        info: WorkerInfo,
        clock: Clock,
        launcher: Launcher,
        layers: list[Layer],
        notify: Callable[[list[Notice]], None],
        least_visibility: float,
    ) -> None:
        self.consumer = consumer
        self._store, self._worker_id, self._clock = store, info.worker_id, clock
        self._launcher, self._layers, self._notify = launcher, layers, notify
        self._receiver = Receiver(store, consumer.queue)
        self._held: dict[UUID, HeldDelivery] = {}
        self._running: set[MessageCall] = set()
        self._whole: list[Receipt] = []  # deliveries that have ended well
        self._single: list[Receipt] = []  # messages of other deliveries that have ended well
        self._unanswered = set[Receipt]()  # acknowledged once, by a call that did not answer
        self._returns: list[MessageReturn] = []
        self._starts = MessageStarts(consumer, store, notify, self._recorded)
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], Awaitable[None]] | None = None
        self._looking, self._poll_seconds = False, spread(_POLL_SECONDS)
        self._is_fifo: bool | None = None  # None while the queue is not known
        self.ended = 0  # messages of calls that have ended
        self._least_visibility, self.visibility = least_visibility, 0.0
        self._warned_at = self._known_until = -math.inf

    async def start(self) -> None:
        """Receive from now on."""
        queue = self.consumer.queue
        self._stop_listening = await self._store.listen(
            messages_topic(queue), lambda _: self._woken.set()
        )
        self.wake()
        self._task = asyncio.create_task(self._run(), name=f"holdfast consumer of {queue}")

    def wake(self) -> None:
        """Look for messages now."""
        self._woken.set()

    @property
    def executing(self) -> bool:
        """True if a call runs."""
        return bool(self._running)

    @property
    def busy(self) -> bool:
        """True if a call runs, or its end is not recorded, or messages are being received."""
        unrecorded = self._held or self._whole or self._single or self._returns
        return bool(unrecorded) or self._looking or self._woken.is_set()

    # Receiving

    async def _run(self) -> None:
        backoff: Backoff | None = None
        while True:
            self._woken.clear()
            self._looking = True
            try:
                pause = await self._turn()
            except UnknownQueue:
                pause = self._absent()
            except DatabaseError as error:
                pause = (backoff := backoff or Backoff(limit=_POLL_SECONDS)).take()
                OUTAGE.tell(logger, f"{self.consumer} failed to receive, and tries again", error)
            except Exception:
                pause = _POLL_SECONDS
                logger.exception("%s failed to receive; it is tried again", self.consumer)
            else:
                backoff = None
            self._looking = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause, self._poll_seconds)):
                    await self._woken.wait()

    async def _turn(self) -> float:
        """Record ends, receive what there is room for; return how long to sleep, in seconds."""
        if self._is_fifo is None or time.monotonic() > self._known_until:
            await self._read_queue()
        await self._flush()
        room = self.consumer.concurrency - len(self._running)
        if room <= 0:
            return self._siblings_pause(math.inf)
        acks, self._whole = self._whole, []
        try:
            answer = await self._receiver.receive(self._receive(room, acks))
        except BaseException:  # they may be acknowledged, or not: a second time changes nothing
            self._whole = acks + self._whole
            self._unanswered.update(acks)
            raise
        self._notify(list(answer.notices))
        warn_of_late(self.consumer, acks, answer.acked, self._unanswered)
        deliveries = [HeldDelivery.of(each) for each in answer.deliveries]
        if any((each.group is not None) is not self._is_fifo for each in deliveries):
            self._is_fifo = None  # it was deleted, and is of another kind now
            for delivery in deliveries:
                self._return_uncounted(delivery, delivery.messages)
            return 0.0
        for delivery in deliveries:
            self._accept(delivery)
        if deliveries:
            is_full = len(self._running) >= self.consumer.concurrency
            return self._siblings_pause(math.inf) if is_full else 0.0
        pause = self._poll_seconds
        if answer.next_due_at is not None:
            pause = min(pause, max(0.001, (answer.next_due_at - answer.now) / 1e6))
        return self._siblings_pause(pause)

    def _receive(self, room: int, acks: Sequence[Receipt]) -> Receive:
        batch = self.consumer.batch
        return Receive(
            queue=self.consumer.queue,
            limit=room if self._is_fifo or batch is None else batch,
            visibility_seconds=self.visibility,
            consumer=self._worker_id,
            per_group=batch or 1,
            acks=[ack.delivery_id for ack in acks],
        )

    async def _read_queue(self) -> None:
        """Learn what the queue is. Raises UnknownQueue."""
        for found in await self._store.list_queues(self.consumer.queue):
            self._take_visibility(found)
            self._is_fifo = found.settings.fifo
            self._known_until = time.monotonic() + _KNOWN_SECONDS
            return
        raise UnknownQueue(self.consumer.queue)

    def _take_visibility(self, found: QueueInfo) -> None:
        asked = self.consumer.visibility_seconds or found.settings.visibility_seconds
        self.visibility = max(asked, self._least_visibility)

    def _absent(self) -> float:
        self._is_fifo = None
        now = time.monotonic()
        if now - self._warned_at > 60:
            self._warned_at = now
            warn_of_absent(self.consumer)
        return _ABSENT_SECONDS

    # Calls

    def _accept(self, delivery: HeldDelivery) -> None:
        """Call the function with what was received."""
        self._held[delivery.delivery_id] = delivery
        places = sorted(delivery.messages)
        calls = [places] if self.consumer.batch is not None else [[place] for place in places]
        for each in calls:
            self._call(delivery, each)

    def _call(self, delivery: HeldDelivery, places: Sequence[int]) -> None:
        readable, payloads = list[int](), list[object]()
        for at, place in enumerate(places, 1):
            try:
                check_open((delivery.messages[place].payload,))
                payloads.append(self.consumer.decode(delivery.messages[place].payload))
                readable.append(place)
            except Exception as error:  # also of the type's own code; it would spoil the others
                self._give_back(delivery, place, error)
                if delivery.group is not None:  # what comes after it waits for it
                    self._return_uncounted(delivery, places[at:])
                    break
        if not readable:
            self._release(delivery)
            return
        call = MessageCall(self.consumer, delivery, readable, self._clock.now(), self._ended)
        delivery.calls.append(call)
        self._running.add(call)
        argument = payloads if self.consumer.batch is not None else payloads[0]
        self._launcher.launch_given(call, ((argument,), {}), self._layers)

    def _ended(self, call: MessageCall) -> None:
        """Take the end of a call."""
        self._running.discard(call)
        delivery = call.delivery
        self.ended += len(call.places)
        if delivery.delivery_id in self._held:
            failed = dict(call.failed())
            for place, error in failed.items():
                self._give_back(delivery, place, error, waits=call.waits(place))
            done = [place for place in call.places if place not in failed]
            if (runs := call.context.take_runs()) and done:
                self._starts.add(delivery, done, runs)
            else:
                delivery.open.difference_update(done)
                delivery.done += done
                delivery.done_since = min(delivery.done_since, time.monotonic())
            self._release(delivery)
        self._woken.set()

    def _recorded(
        self, delivery: HeldDelivery, places: Sequence[int], error: HoldfastError | None
    ) -> None:
        """Take the end of messages whose call has started runs."""
        delivery.is_whole = False
        if error is None or delivery.delivery_id not in self._held:
            delivery.open.difference_update(places)
            return
        for place in places:
            self._give_back(delivery, place, error)

    def _give_back(
        self, delivery: HeldDelivery, place: int, error: Failure, *, waits: bool = False
    ) -> None:
        self._returns.append(give_back(self.consumer, delivery, place, error, waits))
        delivery.open.discard(place)
        delivery.is_whole = False
        self._woken.set()

    def _return_uncounted(self, delivery: HeldDelivery, places: Collection[int]) -> None:
        """Give messages back at once; this receive of them does not count."""
        self._returns += delivery.uncounted(places)
        delivery.open.difference_update(places)
        delivery.is_whole = False

    def _release(self, delivery: HeldDelivery) -> None:
        """If all its messages have ended, let the delivery go; acknowledge it as a whole."""
        if delivery.is_whole and not delivery.open:
            del self._held[delivery.delivery_id]
            self._whole.append(delivery.receipt())

    # Ends

    def _siblings_pause(self, pause: float) -> float:
        """Return when to look again for messages whose delivery still runs."""
        if self._starts.waiting:  # for a lock of others, or an object
            pause = min(pause, _LOCKED_SECONDS)
        since = min((each.done_since for each in self._held.values()), default=math.inf)
        return min(pause, max(0.001, since + _SIBLINGS_SECONDS - time.monotonic()))

    async def _flush(self, *, at_once: bool = False) -> None:
        """Record the ends of messages that are not those of a whole delivery."""
        if self._starts.waiting and not at_once:
            await self._starts.record()
        limit = math.inf if at_once else time.monotonic() - _SIBLINGS_SECONDS
        done, self._single = self._single, []
        for delivery in list(self._held.values()):
            if delivery.done and (not delivery.open or delivery.done_since <= limit):
                done += [delivery.receipt(place) for place in delivery.done]
                delivery.done, delivery.done_since = [], math.inf
                delivery.is_whole = False
            if not delivery.open and not delivery.done:
                del self._held[delivery.delivery_id]
        if at_once:
            done, self._whole = [*done, *self._whole], []
        returns, self._returns = self._returns, []
        try:
            if done:
                acked, notices = await self._store.ack_messages(done)
                warn_of_late(self.consumer, done, acked, self._unanswered)
                done = []
                self._notify(notices)
            if returns:
                _, notices = await self._store.return_messages(returns)
                returns = []
                self._notify(notices)
        finally:  # after an error they are recorded by a later turn: a second time changes nothing
            self._single, self._returns = done + self._single, returns + self._returns
            self._unanswered.update(done)
        if at_once:  # at last: an object that a start waits for may never be there
            await self._starts.record(at_once=True)

    # Keeping what is in flight

    async def extend(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the deliveries that are in flight for a while. Called from the heartbeat's thread.

        What is lost is told to its calls.
        """
        due = time.monotonic() - self.visibility / 3
        held = [each for each in list(self._held.values()) if each.extended_at <= due and each.open]
        if not held:
            return
        for found in await store.list_queues(self.consumer.queue):  # it may have been updated
            self._take_visibility(found)
        now = time.monotonic()
        receipts = [each.receipt() for each in held]
        kept = await store.extend_deliveries(receipts, seconds=self.visibility)
        for delivery, is_kept in zip(held, kept, strict=True):
            delivery.extended_at = now
            if not is_kept:
                loop.call_soon_threadsafe(self._lose, delivery)

    def _lose(self, delivery: HeldDelivery) -> None:
        """Stop the calls of a delivery that is not in flight here any more."""
        if self._held.pop(delivery.delivery_id, None) is not delivery or not delivery.open:
            return
        delivery.warn_of_loss(self.consumer)
        self._stop_calls(delivery)

    def _stop_calls(self, delivery: HeldDelivery) -> None:
        for call in delivery.calls:
            if not call.ended:
                call.cancel()
                self._running.discard(call)
        self._woken.set()

    # Draining

    async def drain(
        self, grace: asyncio.Event, grace_seconds: float, last_calls: LastCalls
    ) -> None:
        """Receive no more; let calls end until `grace` is set or the time is over; give back."""
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        end = asyncio.get_running_loop().time() + grace_seconds
        record = partial(last_calls.make, partial(self._flush, at_once=True), _LOSS)
        while self._running and not grace.is_set():
            self._woken.clear()
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await first_of(self._woken, grace, left)
            await record()
        await record()
        ends = self.ends()
        self.forget()
        self._single, self._returns = [*ends.acks], [*ends.returns]
        await record()
        if self._stop_listening is not None:
            await last_calls.make(self._stop_listening, _LOSS)
        await last_calls.make(self._receiver.close, _LOSS)

    def ends(self) -> MessageEnds:
        """Return how all that is in flight ends now. Safe from any thread.

        What still runs is given back, and this receive does not count.
        """
        held = list(self._held.values())
        done = [each.receipt(place) for each in held for place in list(each.done)]
        left = [one for each in held for one in each.uncounted(list(each.open))]
        return MessageEnds([*self._whole, *self._single, *done], [*self._returns, *left])

    def forget(self) -> None:
        """Stop what still runs, and forget all that is in flight: others have it now."""
        held, self._held = self._held, {}
        self._whole, self._single, self._returns = [], [], []
        self._starts.forget()
        for delivery in held.values():
            self._stop_calls(delivery)
