"""An open client: the store, and the tasks that serve the client's callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from uuid import UUID

from holdfast.client.coalescing import MAX_BATCH, Coalescer, persist
from holdfast.client.waiting import EndWatcher, within
from holdfast.store.notifier import Notifier
from holdfast.store.port import Store
from holdfast.types import (
    Delivered,
    Delivery,
    End,
    LoggedEvent,
    NewRun,
    NewSignal,
    StartedRun,
)

LANES = 2  # chunks of a large start that are in flight at once
FOLLOW_SECONDS = (0.05, 1.0)  # between two looks at a log that is followed: least, most


class Session:
    """Wires a store to what makes many callers cheap: coalescing, one topic, late notices."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ends = EndWatcher(store)
        self._notifier = Notifier(store.notify)
        self._starts = Coalescer(self._start_batch)
        self._signals = Coalescer(self._signal_batch)

    async def close(self) -> None:
        """Finish what was asked for, send the last wake-ups, and stop."""
        await self._starts.close()
        await self._signals.close()
        await self.ends.close()
        await self._notifier.stop()

    async def start(self, runs: Sequence[NewRun]) -> Sequence[StartedRun]:
        """Start runs: one in a transaction with others asked for meanwhile, many in chunks.

        After an error some chunks may be started.
        """
        if len(runs) == 1:
            return [await self._starts.submit(runs[0])]
        chunks = [runs[at : at + MAX_BATCH] for at in range(0, len(runs), MAX_BATCH)]
        answers: list[Sequence[StartedRun]] = [()] * len(chunks)
        places = iter(range(len(chunks)))

        async def work() -> None:
            for place in places:
                chunk = chunks[place]
                answers[place] = await persist(partial(self._start_batch, chunk))

        lanes = [asyncio.create_task(work()) for _ in range(LANES)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()  # where one has failed; otherwise they have ended
        return [started for answer in answers for started in answer]

    async def start_and_wait(self, run: NewRun, timeout: float | None) -> End:
        """Start a run that names this session's topic as its waiter; return how it ended.

        Raises ResultTimeout after `timeout` seconds.
        """
        async with self.ends.expect(run.run_id) as end:
            started = await self._starts.submit(run)
            self.ends.watch(run.run_id, registered=started.created)
            return await within(end, run.run_id, timeout)

    async def signal(self, signal: NewSignal) -> Delivery:
        """Send a signal, in one transaction with the others that are sent meanwhile."""
        return await self._signals.submit(signal)

    async def signal_many(self, signals: Sequence[NewSignal]) -> list[Delivery]:
        """Send signals, in chunks, in the order given."""
        outcomes: list[Delivery] = []
        for at in range(0, len(signals), MAX_BATCH):
            chunk = signals[at : at + MAX_BATCH]
            outcomes += await persist(partial(self._signal_batch, chunk))
        return outcomes

    async def read_log(self, run_id: UUID, since: int) -> list[LoggedEvent]:
        """Return a run's log from an index on, empty where there is none."""
        events = (await self.store.read_events([(run_id, since)])).get(run_id, [])
        return [LoggedEvent(run_id, idx, event) for idx, event in enumerate(events, since)]

    async def follow(self, run_id: UUID, since: int) -> AsyncGenerator[LoggedEvent]:
        """Yield a run's log as it grows, until the run has ended.

        Looks at short intervals while things happen, at longer ones when nothing does, and at
        once when the run ends. Raises RunNotFound.
        """
        interval = FOLLOW_SECONDS[0]
        async with self.ends.expect(run_id) as end:
            self.ends.watch(run_id)
            while True:
                ended = end.done()
                entries = await self.read_log(run_id, since)
                for entry in entries:
                    yield entry
                if ended:
                    end.result()  # raises where there is no such run
                    return
                since += len(entries)
                interval = FOLLOW_SECONDS[0] if entries else min(interval * 1.5, FOLLOW_SECONDS[1])
                await asyncio.wait([end], timeout=interval)

    def settle(self, delivered: Delivered) -> list[Delivery]:
        """Pass on the wake-ups of a change and return its outcomes."""
        self._notifier.submit(delivered.notices)
        return delivered.outcomes

    async def _start_batch(self, runs: Sequence[NewRun]) -> list[StartedRun]:
        started, notices = await self.store.start_runs(runs)
        self._notifier.submit(notices)
        return started

    async def _signal_batch(self, signals: Sequence[NewSignal]) -> list[Delivery]:
        return self.settle(await self.store.signal_runs(signals))
