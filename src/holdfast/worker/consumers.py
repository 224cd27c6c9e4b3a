"""The consumers of a worker: started, kept, drained and asked as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from holdfast.definitions.app import App
from holdfast.store.port import Store
from holdfast.types import Notice, WorkerInfo
from holdfast.worker.attempts import Launcher
from holdfast.worker.clock import Clock
from holdfast.worker.consumer_loop import ConsumerLoop
from holdfast.worker.giving_back import MessageEnds
from holdfast.worker.options import WorkerOptions
from holdfast.worker.releases import LastCalls


class Consumers:
    """All consumers of a worker, treated as one."""

    def __init__(
        self,
        app: App,
        store: Store,
        info: WorkerInfo,
        options: WorkerOptions,
        clock: Clock,
        launcher: Launcher,
        notify: Callable[[list[Notice]], None],
        *,
        has_heartbeat: bool,
    ) -> None:
        self._store = store
        # Three heartbeats, as for leases: what is in flight here must not come to others as well.
        least = 3 * options.heartbeat_seconds if has_heartbeat else options.lease_seconds
        layers = app.registry.layers.messages
        self._loops = [
            ConsumerLoop(each, store, info, clock, launcher, layers, notify, least)
            for each in app.consumers.values()
            if each.queue in (info.consumes or ())
        ]
        self._grace_over = asyncio.Event()
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def executing(self) -> bool:
        """True if a call runs."""
        return any(each.executing for each in self._loops)

    @property
    def busy(self) -> bool:
        """True if something is under way that continues without input and without waiting."""
        return any(each.busy for each in self._loops)

    @property
    def ended(self) -> int:
        """How many messages calls have ended with, well or not."""
        return sum(each.ended for each in self._loops)

    async def next_due_at(self) -> int | None:
        """Return when the first message of a queue that is not paused is due; None for never.

        For what is in flight that is the end of its visibility.
        """
        moments: list[int] = []
        for queue in (each.consumer.queue for each in self._loops):
            if any(not found.is_paused for found in await self._store.list_queues(queue)):
                messages = await self._store.list_messages(queue, limit=10, clip=0)
                moments += [message.visible_at for message in messages]
        return min(moments, default=None)

    def wake(self) -> None:
        """Look for messages now."""
        for each in self._loops:
            each.wake()

    async def start(self) -> None:
        """Receive from now on."""
        self._event_loop = asyncio.get_running_loop()
        for each in self._loops:
            await each.start()

    async def extend(self, store: Store) -> None:
        """Keep what is in flight here. Called from the heartbeat's thread, with its store."""
        if self._event_loop is not None:
            for each in self._loops:
                await each.extend(store, self._event_loop)

    def give_up(self) -> MessageEnds:
        """Stop acting for what is in flight here; return how it ends. Called by the watchdog."""
        ends = [each.ends() for each in self._loops]
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            if self._event_loop is not None:
                self._event_loop.call_soon_threadsafe(self._forget)
        return MessageEnds(
            [ack for each in ends for ack in each.acks],
            [message for each in ends for message in each.returns],
        )

    def _forget(self) -> None:
        for each in self._loops:
            each.forget()

    async def drain(self, grace_seconds: float, last_calls: LastCalls) -> None:
        """Receive no more, let calls end within the grace period, and give back the rest."""
        over = self._grace_over
        await asyncio.gather(*(each.drain(over, grace_seconds, last_calls) for each in self._loops))

    def end_grace(self) -> None:
        """End the grace period now."""
        self._grace_over.set()
