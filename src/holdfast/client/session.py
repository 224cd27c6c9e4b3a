"""An open client: the store, and the tasks that serve the client's callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

import msgspec

from holdfast.client.chains import heir, latest, successor
from holdfast.client.coalescing import MAX_BATCH, Coalescer, persist
from holdfast.client.naming import Names
from holdfast.client.references import RunRef
from holdfast.client.updates import Replies
from holdfast.client.waiting import EndWatcher, within
from holdfast.errors import ResultTimeout, RunNotFound
from holdfast.insight.retries import find_retry
from holdfast.store.notifier import Notifier
from holdfast.store.port import Store
from holdfast.types import (
    Delivered,
    Delivery,
    End,
    LoggedEvent,
    NewRun,
    NewSignal,
    Notice,
    StartedRun,
)

LANES = 2  # chunks of a large start that are in flight at once
FOLLOW_SECONDS = (0.05, 1.0)  # between two looks at a log that is followed: least, most


class Session:
    """Wires a store to what makes many callers cheap: coalescing, one topic, late notices."""

    def __init__(self, store: Store, app: str | None = None) -> None:
        """`app` is meant where a workflow's name says none."""
        self.store = store
        self.names = Names(store, app)
        self.ends = EndWatcher(store)
        self.replies = Replies(store, self.ends)
        self._notifier = Notifier(store.notify)
        self._starts = Coalescer(self._start_batch)
        self._signals = Coalescer(self._signal_batch)

    async def newest_of(self, run: RunRef) -> UUID:
        """Return the id of the run that is meant: of a key, the newest run.

        Raises what `Names.run` raises.
        """
        run_id = await self.names.run(run)
        return await latest(self.store, run_id) if isinstance(run, tuple) else run_id

    @property
    def idle(self) -> bool:
        """Say whether every wake-up has been sent."""
        return self._notifier.idle

    async def close(self) -> None:
        """Finish what was asked for, send the last wake-ups, and stop."""
        await self._starts.close()
        await self._signals.close()
        await self.replies.close()
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

    async def wait(self, run_id: UUID, timeout: float | None) -> End:
        """Return how a run ended, or the last of those that it continued as.

        Raises RunNotFound, and ResultTimeout after `timeout` seconds.
        """
        began = asyncio.get_running_loop().time()
        end = await self.ends.wait(run_id, timeout)
        return await self._last_end(end, run_id, timeout, began)

    async def start_and_wait(self, run: NewRun, timeout: float | None) -> End:
        """Start a run that names this session's topic as its waiter; return how it ended.

        Raises ResultTimeout after `timeout` seconds.
        """
        began = asyncio.get_running_loop().time()
        async with self.ends.expect(run.run_id) as end:
            started = await self._starts.submit(run)
            if started.run_id == run.run_id:
                self.ends.watch(run.run_id, registered=started.created)
                ended = await within(end, run.run_id, timeout)
            else:  # the key's run is from before names had apps
                ended = await self.ends.wait(started.run_id, timeout)
        return await self._last_end(ended, run.run_id, timeout, began)

    async def signal(self, signal: NewSignal, *, by_key: bool = False) -> tuple[Delivery, UUID]:
        """Send a signal, in one transaction with the others that are sent meanwhile.

        What is for a run that continued as new goes to the newest, and what is for a key also to
        the retry of its run. Returns the run it came to.
        """
        return await self._pass_on(await self._signals.submit(signal), signal, by_key)

    async def signal_many(self, signals: Sequence[NewSignal]) -> list[Delivery]:
        """Send signals, in chunks, in the order given."""
        outcomes: list[Delivery] = []
        for at in range(0, len(signals), MAX_BATCH):
            chunk = signals[at : at + MAX_BATCH]
            found = await persist(partial(self._signal_batch, chunk))
            ended = {
                signal.run_id
                for signal, outcome in zip(chunk, found, strict=True)
                if outcome == "ended"
            }
            newest = await self.store.newest_runs(list(ended)) if ended else {}
            for signal, outcome in zip(chunk, found, strict=True):
                goes_on = newest.get(signal.run_id, signal.run_id) != signal.run_id
                outcomes.append((await self._pass_on(outcome, signal))[0] if goes_on else outcome)
        return outcomes

    async def update(
        self, signal: NewSignal, timeout: float | None, *, by_key: bool = False
    ) -> str:
        """Send an update, and return its answer as JSON text.

        Raises UpdateRejected, UpdateFailed, RunEnded, RunNotFound, and ResultTimeout after
        `timeout` seconds.
        """
        update_id = signal.signal_id
        assert update_id is not None, "an update has an id"
        await self.replies.listen()
        ask = msgspec.structs.replace(signal, update=True, reply_to=self.replies.topic)
        with self.replies.expect(update_id) as woken:
            limit = asyncio.timeout(timeout)
            try:
                async with limit:
                    outcome, run_id = await self.signal(ask, by_key=by_key)
                    at_once = outcome != "delivered"
                    return await self.replies.find(run_id, update_id, woken, at_once=at_once)
            except TimeoutError:
                if timeout is None or not limit.expired():
                    raise
                awaited = f"answered update {signal.name} ({update_id})"
                raise ResultTimeout(signal.run_id, timeout, awaited) from None

    async def change(
        self, run_id: UUID, call: Callable[[Sequence[UUID]], Awaitable[Delivered]]
    ) -> tuple[Delivery, UUID]:
        """Change a run, or the newest of those that it continued as; return which it was."""
        while True:
            (outcome,) = self.settle(await persist(partial(call, [run_id])))
            next_id = await heir(self.store, run_id) if outcome == "ended" else None
            if next_id is None:
                return outcome, run_id
            run_id = next_id

    async def read_log(self, run_id: UUID, from_index: int) -> list[LoggedEvent]:
        """Return a run's log from an index on, empty where there is none."""
        events = (await self.store.read_events([(run_id, from_index)])).get(run_id, [])
        return [LoggedEvent(run_id, idx, event) for idx, event in enumerate(events, from_index)]

    async def read_batches(
        self, run_id: UUID, from_index: int
    ) -> AsyncGenerator[list[LoggedEvent]]:
        """Yield a run's log as it grows, until the run has ended, as much as there is at a time.

        Looks at short intervals while things happen, at longer ones when nothing does, and at
        once when the run ends. Raises RunNotFound.
        """
        interval = FOLLOW_SECONDS[0]
        async with self.ends.expect(run_id) as end:
            self.ends.watch(run_id)
            while True:
                ended = end.done()
                entries = await self.read_log(run_id, from_index)
                if entries:
                    yield entries
                if ended:
                    end.result()  # raises where there is no such run
                    return
                from_index += len(entries)
                interval = FOLLOW_SECONDS[0] if entries else min(interval * 1.5, FOLLOW_SECONDS[1])
                await asyncio.wait([end], timeout=interval)

    def tell(self, notices: Iterable[Notice]) -> None:
        """Send the wake-ups of a change soon."""
        self._notifier.submit(notices)

    def settle(self, delivered: Delivered) -> list[Delivery]:
        """Pass on the wake-ups of a change and return its outcomes."""
        self.tell(delivered.notices)
        return delivered.outcomes

    async def _last_end(self, end: End, run_id: UUID, timeout: float | None, began: float) -> End:
        while end.status == "continued":
            next_id = await heir(self.store, end.run_id)
            if next_id is None:  # retention has removed it meanwhile
                raise RunNotFound(successor(end) or end.run_id)
            passed = asyncio.get_running_loop().time() - began
            try:
                end = await self.ends.wait(next_id, timeout and max(0.0, timeout - passed))
            except ResultTimeout:
                assert timeout is not None
                raise ResultTimeout(run_id, timeout) from None
        return end

    async def _pass_on(
        self, outcome: Delivery, signal: NewSignal, by_key: bool = False
    ) -> tuple[Delivery, UUID]:
        """Send a signal for a run that continued as new to those that go on for it."""
        while outcome == "ended":
            next_id = await heir(self.store, signal.run_id, next_only=signal.signal_id is not None)
            if next_id is None and by_key:
                next_id = await self._retry_of(signal.run_id)
            if next_id is None:
                break
            signal = msgspec.structs.replace(signal, run_id=next_id)
            outcome = await self._signals.submit(signal)
        return outcome, signal.run_id

    async def _retry_of(self, run_id: UUID) -> UUID | None:
        retry = await find_retry(self.store, run_id)
        return None if retry is None else retry.run_id

    async def _start_batch(self, runs: Sequence[NewRun]) -> list[StartedRun]:
        started, notices = await self.store.start_runs(runs)
        self._notifier.submit(notices)
        return started

    async def _signal_batch(self, signals: Sequence[NewSignal]) -> list[Delivery]:
        return self.settle(await self.store.signal_runs(signals))
