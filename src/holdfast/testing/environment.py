"""A worker, a client and a store in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, cast, overload
from uuid import UUID

import msgspec

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.codec import encode
from holdfast.definitions.app import App
from holdfast.definitions.startable import Startable
from holdfast.definitions.starts import StartOptions, ToStart
from holdfast.store.memory.clock import EPOCH, VirtualClock
from holdfast.store.port import Store
from holdfast.testing.clock import StoreClock, Watchdog
from holdfast.testing.lending import lend
from holdfast.testing.line import Line
from holdfast.testing.plan import LoggedStore, Plan
from holdfast.testing.stand_in import StandIn
from holdfast.testing.workers import KillableWorker, Replaced, replacement
from holdfast.types import ANY_END, Published, RunFilter, RunRecord
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import checked_micros, to_datetime
from holdfast.values.numbers import true_or_false
from holdfast.values.patterns import pattern_of
from holdfast.values.waits import require_asyncio
from holdfast.worker import WorkerOptions
from holdfast.worker.options import given_options

__all__ = ["Environment"]

In = TypeVar("In")
Out = TypeVar("Out")
Ts = TypeVarTuple("Ts")

_QUIET_ROUNDS = 20  # turns of the event loop without a change: nothing more will happen
_LOOK_SECONDS = 0.001  # between checks while a step does real work
_PATIENCE_SECONDS = 5.0  # of real time, in which another task of the test may send a message
_ALONE_SECONDS = 0.2  # of real time, in which a thread or a callback of the event loop may
_PACKAGE = Path(__file__).parent.parent
_FOR_EVER = 1e9  # seconds
_MOST_TICKS = 100  # of schedules, in which nothing else comes due: a run may wait for what they do
_MOST_SUCCESSORS = 1_000  # of a run that continues as new; one with more may never end


class _Client(Client):
    @property
    def busy(self) -> bool:
        return self._session.busy


class Environment:
    """A worker, a client and an in-memory store whose time is virtual.

    Workflow code takes no real time. Steps and activities take the time that they need, and their
    own limits are real time. Async ones run on the test's own event loop.
    """

    def __init__(
        self,
        app: App,
        *others: App,
        options: WorkerOptions | None = None,
        replay: bool = True,
        plan: Plan | None = None,
        database: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """Wire everything up; entering the `async with` block starts it.

        `others` get workers of their own: they are the services whose activities and workflows
        are called by name. With `replay`, each run is replayed whenever it wakes and before it
        ends. Workflow code is refused then if it calls `datetime.now()`, `time.time()`, `uuid4()`
        or `random` itself, blocks with `time.sleep()`, uses an `asyncio.Lock` or similar that the
        run has not made, or does not await a step: it gets stuck here, not after a deploy.

        `database` is the URL of one for the data of transactions; their steps are recorded here.
        Virtual time begins at `now`, by default at the beginning of 2026.
        """
        self.store = LoggedStore(VirtualClock(EPOCH if now is None else checked_micros(now)))
        self.store.lends = partial(lend, database, {})
        self.apps, self._plan = (app, *others), plan or Plan()
        self._clock = StoreClock(self.store, self._plan.draw or (lambda: 0))
        # However far time jumps, the worker counts as alive.
        options = msgspec.structs.replace(
            given_options(options), lease_seconds=_FOR_EVER, silent_seconds=_FOR_EVER
        )
        if true_or_false(replay, "replay"):
            options = msgspec.structs.replace(options, check="refuse")
        self._options = options
        self._replaced: Replaced = {}
        line = cast("Store", Line(self.store, self._plan, self._kill, of_client=True))
        self._stand_in = StandIn(line, self.store)
        self._employ()
        self._client = _Client(store=line, app=app)
        self.client: Client = self._client
        self._watchdog = Watchdog()
        self._moving = asyncio.Lock()  # one task at a time moves time, although several may wait
        self._reviving: asyncio.Task[None] | None = None

    def _employ(self) -> None:
        """Make a worker for each app, on a line of their own to the store."""
        self._line = line = Line(self.store, self._plan, self._kill)
        given = self._plan, self._replaced, self._stand_in
        self.workers = [
            KillableWorker(each, cast("Store", line), self._options, self._clock, *given)
            for each in self.apps
        ]

    @property
    def worker(self) -> KillableWorker:
        """The worker of the first app."""
        return self.workers[0]

    async def __aenter__(self) -> Self:
        require_asyncio()
        self._watchdog.start()
        for worker in self.workers:
            await worker.start()
        await self.client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        if self._reviving is not None:
            await asyncio.wait([self._reviving])
        for worker in reversed(self.workers):
            await worker.stop(grace=0)
        self._watchdog.stop()

    @property
    def now(self) -> datetime:
        """The virtual time, in UTC."""
        return to_datetime(self.store.time())

    @overload
    async def run(
        self, workflow: Startable[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> Out: ...
    @overload
    async def run(
        self, workflow: Startable[In, Out], input: In, **options: Unpack[StartOptions]
    ) -> Out: ...
    @overload
    async def run(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> Out: ...
    async def run(self, workflow: ToStart, *args: *tuple[object, ...], **options: Any) -> object:
        """Start a run and return its result; time jumps as far as the run needs.

        `options` are those of `Client.start`. Raises what `result` raises.
        """
        start = cast("Callable[..., Awaitable[RunHandle[object]]]", self.client.start)
        return await self.result(await start(workflow, *args, **options))

    async def result(self, handle: RunHandle[Out]) -> Out:
        """Return a run's result; time jumps as far as the run needs.

        Raises what `RunHandle.result` raises, and AssertionError for a run that will not end
        however much time passes: it or a child of it is stuck, or it waits for a signal, for a
        decision, or for an activity that no worker here has, or it continues as new without end.
        That is after 0.2 s, in which a thread or a callback may send what it waits for, or after
        5 s while other tasks of the test run.
        """
        waiting = asyncio.ensure_future(handle.result())
        try:
            await self._jump_until(waiting, handle.run_id)
            return await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def advance(self, duration: Duration) -> None:
        """Move time on, stopping at each moment at which something is due."""
        async with self._moving:
            until = self.store.time() + round(seconds(duration) * 1e6)
            await self.wait_until_idle()
            while (at := self._next_at()) is not None and at <= until:
                await self._move(at)
            await self._move(until)

    async def publish(
        self, topic: str, payload: object = None, *, event_id: str | None = None
    ) -> Published:
        """Publish an event, as `client.topics.publish` does; return what it has reached.

        What it starts runs when time passes, or while a result is awaited.
        """
        return await self.client.topics.publish(topic, payload, event_id=event_id)

    async def post(
        self, url: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Post to the URL of a webhook, as others do; return False if its run has had its POST.

        `body` is sent as JSON, bytes as they are. `client.webhooks.list` gives the URLs of a run.
        Raises what `client.webhooks.receive` raises; the secret of a signature is in the
        environment, as for a server.
        """
        sent = body if isinstance(body, bytes) else encode(body).encode()
        return await self.client.webhooks.receive(url, sent, headers=headers)

    def replace(self, step: object, with_: Callable[..., object] | list[object]) -> None:
        """Call another function in place of that of a step, until the environment ends.

        `step` may be an activity, a job or a step of a flow as well. The function gets the same
        arguments, and may be async or not. A list says how the attempts of each call end: each
        of its values is raised if it is an exception, else returned, and the last stands for all
        later attempts. Each call begins with the first one.

        ```python
        env.replace(charge, lambda customer, cents: "receipt")
        env.replace(charge, [ConnectionError("no answer"), "receipt"])
        ```

        Raises ConfigurationError for what is not a step, and for what cannot stand for one.
        """
        function, stand_in = replacement(step, with_)
        self._replaced[function] = stand_in

    async def kill(self) -> None:
        """Kill the workers, as `kill -9` does, and start others, which replay the open runs.

        Nothing is given back, and nothing more is recorded. Async steps are cancelled; a step in
        a thread has had its effect, and runs again.
        """
        self._kill()
        await self.wait_until_idle()

    def _kill(self) -> None:
        if not self._line.is_cut:
            self._line.is_cut = True
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """Start new workers for those that were killed, and let them take over at once."""
        killed = self.workers
        for worker in killed:
            await worker.kill()
        self._employ()
        for worker in self.workers:
            await worker.start()
        ids = [worker.worker_id for worker in killed]
        await self.store.reap_workers(worker_ids=ids)
        self.store.expire(ids)
        self.store.wake_all()

    async def wait_until_idle(self) -> None:
        """Wait until nothing more happens unless time passes or a message is sent.

        Steps and activities that are running are waited for.
        """
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            if (reviving := self._reviving) is not None:
                quiet = 0
                await asyncio.wait([reviving])
                if self._reviving is reviving:
                    self._reviving = None
                reviving.result()
            elif self._client.busy or any(worker.busy for worker in self.workers):
                quiet = 0
                executing = [await worker.look(self.store) for worker in self.workers]
                await asyncio.sleep(_LOOK_SECONDS if any(executing) else 0)
            else:
                quiet += 1
                await asyncio.sleep(0)

    def _next_at(self, *, schedules: bool = True) -> int | None:
        moments = [self._clock.next_at(), self.store.next_due_at(schedules=schedules)]
        return min((at for at in moments if at is not None), default=None)

    async def _move(self, at: int) -> None:
        self.store.advance_to(at)
        self._clock.fire()
        line = self._line
        try:
            await self.worker.maintain()
        except asyncio.CancelledError:
            if not line.is_cut:  # else it was the worker that was killed
                raise
        await self.wait_until_idle()

    async def _jump_until(self, waiting: asyncio.Future[Out], run_id: UUID) -> None:
        loop = asyncio.get_running_loop()
        moved_at = accompanied_at = loop.time()
        successors: set[UUID] = set()
        only_ticks = 0
        while not waiting.done():
            async with self._moving:
                moved = await self._jump_once(waiting, run_id)
            has_ticked = moved and self._next_at(schedules=False) is None
            only_ticks = only_ticks + 1 if has_ticked else 0
            if only_ticks > _MOST_TICKS:
                raise AssertionError(await self._describe_wait(run_id))
            successors.add(await self._newest(run_id))
            if len(successors) > _MOST_SUCCESSORS:
                raise AssertionError(
                    f"run {run_id} has continued as new {_MOST_SUCCESSORS:,} times and has not "
                    "ended: move time on with `env.advance`, and send it what ends it"
                )
            now = loop.time()
            if moved:
                moved_at = accompanied_at = now
                continue
            if _has_other_tasks():
                accompanied_at = now
            if now > min(moved_at + _PATIENCE_SECONDS, accompanied_at + _ALONE_SECONDS):
                raise AssertionError(await self._describe_wait(run_id))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _jump_once(self, waiting: asyncio.Future[Out], run_id: UUID) -> bool:
        """Move time to the next due moment. Return False if there is none and the run is open."""
        await self.wait_until_idle()
        if waiting.done():
            return True
        await self._refuse_stuck(run_id)
        at = self._next_at()
        if at is not None:
            await self._move(at)
        return at is not None

    async def _refuse_stuck(self, run_id: UUID) -> None:
        """Fail if the run, or a child that it may wait for, cannot continue with this code."""
        page = await self.store.list_runs(RunFilter(states=("stuck",), limit=100))
        newest = await self._newest(run_id)
        for run in page.runs:
            if run.wait is not None and await self._descends(run, newest):
                why = self._words(run, run.wait.stuck or "")
                raise AssertionError(f"run {run.run_id} ({run.name}) is stuck: {why}")
        for held_by, what, why in self.store.held():
            run = (await self.client.runs.get(held_by)).record
            if await self._descends(run, newest):
                why = self._words(run, why)
                raise AssertionError(f"{what} of run {held_by} cannot be begun: {why}")

    def _words(self, run: RunRecord, words: str) -> str:
        """Return words that the store has of a run, decoded by the codec of its app."""
        payloads = next((each.payloads for each in self.apps if each.name == run.app), None)
        return words if payloads is None else payloads.open_words(words)

    async def _descends(self, run: RunRecord, ancestor: UUID) -> bool:
        while run.run_id != ancestor:
            if run.parent_run_id is None:
                return False
            run = (await self.client.runs.get(run.parent_run_id)).record
        return True

    async def _newest(self, run_id: UUID) -> UUID:
        """Return the newest of the runs that a run continued as."""
        return (await self.store.newest_runs([run_id])).get(run_id, run_id)

    async def _describe_wait(self, run_id: UUID) -> str:
        run = (await self.client.runs.get(await self._newest(run_id))).record
        return (
            f"run {run.run_id} ({run.name}) waits for {await self._name_wait(run)}: that does "
            "not come by itself"
        )

    async def _name_wait(self, run: RunRecord) -> str:
        approvals = await self.store.list_approvals(run_id=run.run_id)
        if approvals:
            return f"a decision of {approvals[0].key}"
        if webhooks := await self.client.webhooks.list(run.run_id):
            return f"a POST to webhook {webhooks[0].key}: send one with `env.post`"
        awaiting = run.wait.awaiting if run.wait is not None else ()
        names = [each for each in awaiting if each != ANY_END]
        if events := [pattern for name in names if (pattern := pattern_of(name)) is not None]:
            return f"an event of {' or '.join(events)}: publish one with `env.publish`"
        if names:
            return f"signal {' or '.join(names)}"
        if unserved := await self.store.unserved(silent_seconds=None):
            queue, handler, _ = unserved[0]
            name = handler.removesuffix("@0")  # an activity has no version
            return f"{name} of queue {queue}, which no worker of this environment has"
        return "the end of an activity or a child" if awaiting else "something"


def _has_other_tasks() -> bool:
    """Return True if the test has other tasks than this one: one may send what a run waits for."""
    current = asyncio.current_task()
    return any(task is not current and not _is_own(task) for task in asyncio.all_tasks())


def _is_own(task: asyncio.Task[Any]) -> bool:
    """Return True for a task of the worker or the client."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and Path(code.co_filename).is_relative_to(_PACKAGE)
