"""The worker's parts on their own: clock, claimer, log reader, heartbeat, drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from holdfast import App, Context, Retry, StepFailed
from holdfast.client import Client
from holdfast.errors import DatabaseError, DatabaseUnavailable, RunTimedOut
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.testing import Environment
from holdfast.types import ClaimedTask, Claims, Event, Heartbeat, Notice, Taker
from holdfast.values.moments import to_micros
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker import claimer as claimer_module
from holdfast.worker import clock as clocks
from holdfast.worker.agenda import Agenda
from holdfast.worker.claimer import Claimer
from holdfast.worker.clock import EngineClock
from holdfast.worker.duties import Duties
from holdfast.worker.heartbeat import HeartbeatService
from holdfast.worker.log_reader import LogReader
from holdfast.worker.observing import Observing
from holdfast.worker.services import service as service_module
from holdfast.worker.services.deadlines import Deadlines
from holdfast.worker.services.service import Service, ServiceContext
from holdfast.worker.services.statistics import OldStatistics, Samples
from holdfast.worker.services.unserved import Unserved
from holdfast.worker.services.upkeep import OldEvents, OldKeys, QueueUpkeep, UnusedLimits
from tests.runtime.desk import CountedBeats, Nobody, eventually, info

HOUR = 3_600_000_000
LEASE = 30.0

app = App("services")


class Odd(BaseException):
    """What a test framework raises, say: no Exception."""


@app.step(retry=Retry.NEVER)
async def odd_async() -> None:
    raise Odd("async")


@app.step(retry=Retry.NEVER)
def odd_sync() -> None:
    raise Odd("sync")


@app.workflow
async def oddity(ctx: Context) -> list[bool]:
    seen: list[bool] = []
    for step in (odd_async, odd_sync):
        try:
            await step()
        except StepFailed as error:
            seen.append(error.matches(Odd))
    return seen


@app.workflow
async def waiting(ctx: Context) -> None:
    await ctx.wait_for_signal("go")


async def test_a_step_may_raise_what_is_not_an_exception() -> None:
    """Its run hears of it as of any other failure."""
    async with Environment(app) as env:
        assert await env.run(oddity) == [True, True]


# The clock


class SlowAnswers(MemoryStore):
    """Answers `now` halfway through a round trip of two milliseconds of the local clock."""

    def __init__(self) -> None:
        super().__init__()
        self.local = 0

    async def now(self) -> int:
        self.local += 1_000
        now = await super().now()
        self.local += 1_000
        return now


class SlowBeats(SlowAnswers):
    """Answers heartbeats as slowly."""

    async def heartbeat(self, *beat: Any, **intervals: float) -> Heartbeat:
        self.local += 1_000
        answer = await super().heartbeat(*beat, **intervals)
        self.local += 1_000
        return answer


async def test_a_new_worker_places_the_databases_clock_in_the_middle_of_the_round_trip() -> None:
    """Trap 21. S8. Else it would run ahead, and its timers with it."""
    store = SlowAnswers()
    clock = EngineClock(lambda: store.local * 1000)
    worker = Worker(app, store, clock=clock)
    await worker.start()
    try:
        assert clock.now() - store.time() == 1_000
    finally:
        await worker.stop(0)


async def test_a_heartbeat_brings_the_databases_time_back() -> None:
    """Trap 21. Clocks drift, and a machine that slept has lost time: an idle worker hears of it."""
    store = SlowBeats()
    clock = EngineClock(lambda: store.local * 1000)
    clock.observe(0, 10_000, store.time() + HOUR)
    service = HeartbeatService(
        lambda: store, info(), Nobody(), clock, interval_seconds=2, lease_seconds=LEASE
    )
    await service.run_once(store)
    assert clock.now() - store.time() == 1_000


def test_engine_time_is_the_databases_however_wrong_the_machines_clock_is() -> None:
    """Trap 21."""
    local = 5 * HOUR
    clock = EngineClock(lambda: local * 1000)
    clock.observe(local, local, HOUR)
    assert clock.now() == HOUR
    local += 1_000_000
    assert clock.now() == HOUR + 1_000_000


def test_engine_time_stands_still_if_a_sharper_sample_is_earlier() -> None:
    """Trap 21."""
    local = 0
    clock = EngineClock(lambda: local * 1000)
    clock.observe(0, 2_000, HOUR)
    local = 10_000
    before = clock.now()
    clock.observe(local, local, HOUR + 1_000)
    assert clock.now() == before


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
def test_engine_time_follows_a_database_whose_clock_is_set(step: int) -> None:
    """At once, also if the answer that says so took long."""
    local = 0
    clock = EngineClock(lambda: local * 1000)
    clock.observe(0, 2_000, 2 * HOUR)
    local = 1_000_000
    before = clock.now()
    clock.observe(local, local + 500_000, before + 250_000 + step)
    assert clock.now() == before + step


@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forward"])
@pytest.mark.parametrize("asked", [1_000_000, 1_006_000], ids=["before", "meanwhile"])
def test_an_answer_that_comes_late_does_not_bring_the_old_time_back(asked: int, step: int) -> None:
    """The heartbeat's thread had no processor while a claim heard that the clock was set."""
    local = 0
    clock = EngineClock(lambda: local * 1000)
    clock.observe(0, 2_000, 2 * HOUR)
    local = 1_000_000
    before = clock.now()
    clock.observe(local + 5_000, local + 7_000, before + 6_000 + step)
    clock.observe(asked, asked + 60_000, before + asked - local)
    assert abs(clock.now() - before - step) <= 1_000
    local += 100_000
    now = clock.now()
    clock.observe(local, local + 2_000, now + 1_000 - step)  # and it is set once more
    assert clock.now() == now - step


def test_a_slow_answer_is_no_sign_that_the_clock_was_set() -> None:
    """The database may have looked at its clock at the begin or at the end of the round trip."""
    local = 0
    clock = EngineClock(lambda: local * 1000)
    clock.observe(0, 2_000, HOUR)
    for round_trip in (3_000_000, 30_000_000):
        for looked_after in (0, round_trip):
            before = clock.now()
            clock.observe(local, local + round_trip, before + looked_after)
            assert clock.now() == before


async def test_an_alarm_looks_again_although_the_clock_was_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was set for an hour of wrong time, and the clock is corrected meanwhile."""
    monkeypatch.setattr(clocks, "_LONGEST_SLEEP", 0.01)
    clock, rung = EngineClock(), asyncio.Event()
    clock.observe(clock.local(), clock.local(), HOUR)
    clock.call_at(2 * HOUR, rung.set)
    await asyncio.sleep(0)
    clock.observe(clock.local(), clock.local(), 2 * HOUR)
    async with asyncio.timeout(60):
        await rung.wait()


# Claims and reads


class HeldClaims(MemoryStore):
    """Lets a claim wait, after it has leased its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.leased = asyncio.Event()
        self.answer = asyncio.Event()

    async def claim_tasks(self, *args: object, **options: object) -> Claims:
        claims = await super().claim_tasks(*args, **options)  # type: ignore[arg-type]
        self.leased.set()
        await self.answer.wait()
        return claims


class Basket:
    """Takes what is claimed."""

    def __init__(self) -> None:
        self.tasks: list[ClaimedTask] = []

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        self.tasks += tasks


async def test_a_claim_under_way_is_known_of_when_the_claimer_has_stopped() -> None:
    """Trap 26. Else its leases could not be given back."""
    store, basket = HeldClaims(), Basket()
    async with Client(store=store, app=app) as client:
        handle = await client.start(waiting)
        claimer = Claimer(
            store,
            replace(info(), handlers=app.handlers(), concurrency=10),
            WorkerOptions(lease_seconds=LEASE, poll_seconds=60),
            EngineClock(),
            lambda notices: None,
            lambda deadline: None,
        )
        await claimer.start({"workflow": basket.accept})
        await store.leased.wait()
        stopping = asyncio.create_task(claimer.stop())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not stopping.done()
        store.answer.set()
        await stopping
        assert [task.run_id for task in basket.tasks] == [handle.run_id]


async def test_a_due_time_that_is_reported_during_a_claim_is_kept() -> None:
    """A run may suspend until then after the claim has looked: else a poll would find it."""
    store = HeldClaims()
    async with Client(store=store, app=app):
        claimer = Claimer(
            store,
            replace(info(), handlers=app.handlers(), concurrency=10),
            WorkerOptions(lease_seconds=LEASE, poll_seconds=3600),
            EngineClock(lambda: store.time() * 1000),
            lambda notices: None,
            lambda deadline: None,
        )
        basket = Basket()
        claimer.wake()
        await claimer.start({"workflow": basket.accept})
        await store.leased.wait()
        store.leased.clear()
        claimer.due_at(store.time())
        store.answer.set()
        async with asyncio.timeout(30):  # a poll would come later
            await store.leased.wait()
        await claimer.stop()


async def test_with_a_backlog_steps_are_handed_over_only_for_a_moment_after_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a flow of short steps needs no claim for each of them, and what waits gets its turn."""
    store = MemoryStore(wall_clock)
    async with Client(store=store, app=app) as client:
        for _ in range(3):
            await client.start(waiting)
        claimer = Claimer(
            store,
            replace(info(), handlers=app.handlers(), concurrency=2),
            WorkerOptions(lease_seconds=LEASE, poll_seconds=60),
            EngineClock(),
            lambda notices: None,
            lambda deadline: None,
        )
        basket = Basket()
        claimer.room.count(basket.tasks)
        await claimer.run_once({"workflow": basket.accept})
        assert len(basket.tasks) == 2
        monkeypatch.setattr(claimer_module, "_HAND_OVER_SECONDS", 3600)
        assert claimer.taker(2) == Taker(2, ("default",), tuple(app.handlers()), LEASE)
        monkeypatch.setattr(claimer_module, "_HAND_OVER_SECONDS", 0)
        assert claimer.taker(2) is None
        basket.tasks.clear()
        await claimer.run_once({"workflow": basket.accept})
        assert len(basket.tasks) == 1
        assert claimer.taker(2) is not None  # nothing waits any more


class BrokenReads(MemoryStore):
    """Fails to read logs a few times, in a way that nobody has foreseen."""

    failures = 2

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("permission denied (42501)")
        return await super().read_events(ranges)


async def test_a_log_is_read_again_whatever_the_failure() -> None:
    """A run that is held waits for it, and nobody else asks."""
    store = BrokenReads()
    async with Client(store=store, app=app) as client:
        handle = await client.start(waiting)
        answered = asyncio.get_running_loop().create_future()
        reader = LogReader(store)
        reader.read(handle.run_id, 0, answered.set_result)
        log = await answered
        assert [event.type for event in log] == ["WorkflowStarted"]
        await reader.stop()


class SlowReads(MemoryStore):
    """Reaches its worker over a link that carries a log in twice the usual time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int]] = []

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        self.calls.append((len(ranges), patience))
        if 2 * len(ranges) > patience:
            raise DatabaseUnavailable("no answer in time") from TimeoutError()
        return await super().read_events(ranges)


async def test_logs_too_long_for_the_connection_are_read_one_by_one_with_more_time() -> None:
    """Repeated as they were they would never come, and their runs would stand still for good."""
    store = SlowReads()
    async with Client(store=store, app=app) as client:
        handles = [await client.start(waiting) for _ in range(4)]
        store.calls.clear()
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in handles]
        reader = LogReader(store)
        for handle, answer in zip(handles, answers, strict=True):
            reader.read(handle.run_id, 0, answer.set_result)
        logs = await asyncio.gather(*answers)
        assert [len(log) for log in logs] == [1, 1, 1, 1]
        assert store.calls == [(4, 1), (2, 2), (2, 2), *[(1, 4)] * 4]
        await reader.stop()


class HeldReads(MemoryStore):
    """Reads no log until it is allowed to, and brings none with a claim."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()
        self.allowed.set()

    async def claim_tasks(self, *args: object, **options: object) -> Claims:
        claims = await super().claim_tasks(*args, **options)  # type: ignore[arg-type]
        tasks = [msgspec.structs.replace(task, tail_from=None) for task in claims.tasks]
        return msgspec.structs.replace(claims, tasks=tasks)

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        self.asked.set()
        await self.allowed.wait()
        return await super().read_events(ranges)


@pytest.mark.parametrize("same", [True, False], ids=["cached", "elsewhere"])
async def test_a_run_whose_log_is_still_being_read_is_released_by_a_drain(same: bool) -> None:
    """Trap 26. S12. At once, not at its lease's end."""
    store = HeldReads()
    async with Client(store=store, app=app) as client:
        worker = Worker(app, store)
        await worker.start()
        handle = await client.start(waiting)
        while (wait := (await handle.get()).wait) is None or not wait.awaiting:
            await asyncio.sleep(0)
        if not same:
            await worker.stop(0)
            worker = Worker(app, store)
            await worker.start()
        store.asked.clear()
        store.allowed.clear()
        await handle.signal("go")
        await store.asked.wait()
        await worker.stop(0)
        wait = (await handle.get()).wait
        assert wait is not None
        assert wait.worker is None


# The heartbeat


class HeldAndCounted(HeldReads, CountedBeats):
    """Both."""


async def test_leases_stay_alive_while_logs_are_being_read() -> None:
    """A long log may take longer than a lease; the run would be poisoned by its own reading."""
    store = HeldAndCounted()
    async with Client(store=store, app=app) as client:
        worker = Worker(app, store)
        await worker.start()
        handle = await client.start(waiting)
        while (wait := (await handle.get()).wait) is None or not wait.awaiting:
            await asyncio.sleep(0)
        await worker.stop(0)
        options = WorkerOptions(heartbeat_seconds=0.02, lease_seconds=LEASE)
        worker = Worker(app, store, options, heartbeat_store=lambda: store)
        await worker.start()
        store.asked.clear()
        store.allowed.clear()
        await handle.signal("go")
        await store.asked.wait()
        for _ in range(3):
            store.advance(0.7 * LEASE)
            await asyncio.to_thread(store.await_renewal)
            wait = (await handle.get()).wait
            assert wait is not None
            assert wait.until is not None
            assert to_micros(wait.until) > await store.now()
        store.allowed.set()
        await handle.result(timeout=60)
        assert "WorkerLost" not in [entry.event.type for entry in await handle.log()]
        await worker.stop(0)


async def test_leases_stay_alive_while_a_step_blocks_the_event_loop() -> None:
    """Trap 24. T8. The heartbeat's thread renews them, so nobody else gets the run."""
    store, blocking = CountedBeats(), App("blocking")
    claimed: list[ClaimedTask] = []

    @blocking.step
    async def block() -> None:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(4):
                store.await_renewal()
                store.advance(0.7 * LEASE)
                claim = store.claim_tasks(
                    "rival", ["default"], blocking.handlers(), 10, lease_seconds=LEASE
                )
                claimed.extend(pool.submit(asyncio.run, claim).result().tasks)

    @blocking.workflow
    async def stubborn(ctx: Context) -> None:
        await block()

    options = WorkerOptions(lease_seconds=LEASE, heartbeat_seconds=0.01, silent_seconds=1e9)
    worker = Worker(blocking, store, options, heartbeat_store=lambda: store)
    async with Client(store=store, app=blocking) as client:
        await worker.start()
        handle = await client.start(stubborn)
        await handle.result()
        await worker.stop(0)
        assert claimed == []
        assert "WorkerLost" not in [entry.event.type for entry in await handle.log()]


# Services


def lent(store: MemoryStore) -> ServiceContext:
    """What a worker lends to its services."""
    return ServiceContext(
        store, "ann", EngineClock(lambda: store.time() * 1000), list[Notice]().extend, 60
    )


@pytest.mark.parametrize(
    ("known", "level"),
    [
        ("services/waiting@1", "WARNING"),
        ("services/waiting@2", "WARNING"),
        ("services/waiting_room@1", "DEBUG"),
        ("other/waiting@1", "DEBUG"),
    ],
    ids=["own", "another version", "another name", "another app"],
)
async def test_a_worker_warns_only_of_its_own_apps_names_without_a_live_worker(
    caplog: pytest.LogCaptureFixture, known: str, level: str
) -> None:
    """B7. A database is shared: what other apps have left is not this worker's concern."""
    store = MemoryStore()
    async with Client(store=store, app=app) as client:
        await client.start(waiting)
        with caplog.at_level("DEBUG", "holdfast.maintenance"):
            await Unserved(lent(store), [known]).run_once()
    (record,) = caplog.records
    assert record.levelname == level
    assert "no worker runs services/waiting@1 of queue default: 1 task(s) wait" in record.message


async def test_each_name_without_a_live_worker_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B7. T9. And again if a worker served it meanwhile."""
    store = MemoryStore()
    unserved = Unserved(lent(store), app.handlers())

    async def warnings() -> int:
        store.advance(60)
        await unserved.run_once()
        return caplog.text.count(
            "no worker runs services/waiting@1 of queue default: 1 task(s) wait"
        )

    async with Client(store=store, app=app) as client:
        await client.start(waiting)
        assert [await warnings() for _ in range(3)] == [1, 1, 1]
        info = Worker(app, store).info
        await store.heartbeat(info, [], lease_seconds=LEASE)
        assert await warnings() == 1
        await store.remove_worker(info.worker_id)
        assert await warnings() == 2


class CountedCalls(MemoryStore):
    """Counts the calls of its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "calls" and hasattr(MemoryStore, name):
            self.calls[name] += 1
        return super().__getattribute__(name)


class Often(Service):
    """Has no name in answers to heartbeats, so it runs at each interval."""

    runs = 0

    async def run_once(self) -> None:
        self.runs += 1


async def test_services_of_an_idle_worker_ask_nothing_while_heartbeats_name_no_duty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E28. One question for all that maintenance waits for."""
    monkeypatch.setattr(service_module, "_LEAST_SECONDS", 0)
    store, clock = CountedCalls(), EngineClock()
    agenda = Agenda(heartbeat_seconds=HOUR, silent_seconds=8.0)
    context = ServiceContext(store, "ann", clock, lambda _: None, 0.001, Observing(), agenda)
    often = Often(context)
    for each in (Unserved, Samples, OldStatistics):  # they ask once, some seconds from now
        monkeypatch.setattr(each, "_first_seconds", HOUR)
    duties = Duties(context, app, info(), WorkerOptions(), None)
    asked = {
        "reap_workers",
        "time_out_runs",
        "time_out_activities",
        "next_look",
        "next_delivery_at",
        "return_expired",
        "sweep_queues",
        "free_singletons",
        "expire_start_keys",
        "sweep_limits",
        "look_at_alerts",
    }

    async def pass_intervals() -> Counter[str]:
        runs, before = often.runs, store.calls.copy()
        await eventually(lambda: often.runs > runs + 50)
        return store.calls - before

    agenda.tell(())
    await duties.start()
    await often.start()
    try:
        await pass_intervals()
        assert asked & set(store.calls) == {"next_look"}  # once: when the next schedule is due
        for name in (
            "workers",
            "deadlines",
            "schedules",
            "queues",
            "limits",
            "start keys",
            "alerts",
        ):
            agenda.tell((name,))
            assert await pass_intervals(), name
            agenda.tell(())
            await pass_intervals()
        assert not await pass_intervals()
    finally:
        await duties.stop()
        await often.stop()


class NoReaping(MemoryStore):
    """Cannot remove dead workers."""

    async def reap_workers(
        self, *, observer: str, silent_seconds: float
    ) -> tuple[list[str], list[Notice]]:
        raise DatabaseError("permission denied (42501)")


async def test_a_service_runs_although_another_one_fails() -> None:
    store = NoReaping()
    worker = Worker(app, store, WorkerOptions(maintenance_seconds=0.02))
    async with Client(store=store, app=app) as client:
        await worker.start()
        handle = await client.start(waiting, timeout="1h")
        store.advance(2 * HOUR / 1e6)
        with pytest.raises(RunTimedOut):
            await handle.result(timeout=120)
        await worker.stop(0)


async def test_a_service_may_be_started_and_stopped_twice() -> None:
    store = DeadlineMeanwhile()
    deadlines = Deadlines(lent(store))
    for _ in range(2):
        await deadlines.start()
        await deadlines.start()
        await eventually(lambda: store.looks > 0)
        await deadlines.stop()
        await deadlines.stop()
        assert store.looks == 1
        store.looks = 0


class LastWords(Service):
    """Has something to say to the database when it is stopped in the middle of a run."""

    def __init__(self, say: Callable[[], Awaitable[None]]) -> None:
        super().__init__(lent(MemoryStore()))
        self.begun, self.said, self._say = asyncio.Event(), 0, say

    async def run_once(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.said += 1
            await self._say()


async def unreachable() -> None:
    raise DatabaseUnavailable("the database cannot be reached: connection reset by peer")


async def unanswered() -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("say", [unreachable, unanswered])
async def test_a_service_stops_in_a_run_whatever_the_database_answers_meanwhile(
    say: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13. Else a worker that sweeps never stops when its database has gone."""
    monkeypatch.setattr(service_module, "_STOP_SECONDS", 0.1)
    service = LastWords(say)
    await service.start()
    async with asyncio.timeout(60):
        await service.begun.wait()
        await service.stop()
    assert service.said == 1


class FullBatches(MemoryStore):
    """Has more old rows than one batch, of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    async def sweep_limits(self, *, limit: int = 1000) -> int:
        self.batches += 1
        return limit if self.batches < 3 else 0

    expire_start_keys = sweep_queues = sweep_topics = sweep_limits


class SlowBatches(MemoryStore):
    """Ends a batch of more than a hundred rows, as a call that takes too long."""

    async def sweep_queues(self, *, limit: int = 1000) -> int:
        if limit > 100:
            raise DatabaseUnavailable("it took longer than 20 s")
        return limit

    sweep_topics = sweep_queues


@pytest.mark.parametrize("kind", [OldEvents, QueueUpkeep])
async def test_a_batch_that_takes_too_long_is_followed_by_smaller_ones(
    kind: type[OldEvents | QueueUpkeep],
) -> None:
    """Fault: it was begun again and again, and nothing was ever deleted."""
    service = kind(lent(SlowBatches()))
    assert [await service.attempt() for _ in range(3)] == [False, False, True]
    assert service.next_due is not None


class FullReturns(MemoryStore):
    """Has more messages that are beyond their visibility than one batch."""

    batches = 0

    async def return_expired(self, *, limit: int = 100) -> tuple[int, int | None]:
        self.batches += 1
        return limit if self.batches < 3 else 0, None


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (UnusedLimits, FullBatches),
        (OldKeys, FullBatches),
        (OldEvents, FullBatches),
        (QueueUpkeep, FullBatches),
        (QueueUpkeep, FullReturns),
    ],
)
async def test_old_rows_are_looked_for_seldom_and_deleted_at_once(
    kind: type[UnusedLimits | OldKeys | OldEvents | QueueUpkeep],
    make: type[FullBatches | FullReturns],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle worker asks little; the next look by itself would be minutes away."""
    monkeypatch.setattr(OldEvents, "_first_seconds", 0.0)
    store = make()
    service = kind(lent(store)._replace(interval_seconds=60.0))
    await service.start()
    await eventually(lambda: store.batches == 3)
    await service.stop()


class DeadlineMeanwhile(MemoryStore):
    """Hears of a deadline while it is asked for those that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.hear: list[Callable[[], None]] = []
        self.looks = 0

    async def time_out_runs(self, *, limit: int) -> tuple[int, int | None, list[Notice]]:
        self.looks += 1
        answer = await super().time_out_runs(limit=limit)
        while self.hear:
            self.hear.pop()()
        return answer


async def test_a_deadline_that_is_reported_during_a_search_is_kept() -> None:
    """S10. Trap 3. Else it would be met at the next look only."""
    store = DeadlineMeanwhile()
    deadlines = Deadlines(lent(store))
    store.hear.append(lambda: deadlines.due_at(0))
    await deadlines.start()
    await eventually(lambda: store.looks > 1)
    await deadlines.stop()


class LostClaim(CountedBeats):
    """Loses the answer to the first claim that leases something."""

    lost: Sequence[ClaimedTask] = ()

    async def claim_tasks(self, *asked: Any, **options: Any) -> Claims:
        claims = await super().claim_tasks(*asked, **options)
        if claims.tasks and not self.lost:
            self.lost = claims.tasks
            raise DatabaseUnavailable("the connection was lost")
        return claims


async def test_a_claim_without_an_answer_does_not_wait_for_the_end_of_its_lease() -> None:
    """S12. The worker asks which leases it does not know, and gives them back uncounted."""
    store = LostClaim()
    options = WorkerOptions(heartbeat_seconds=0.02, lease_seconds=LEASE)
    async with Client(store=store, app=app) as client:
        worker = Worker(app, store, options, heartbeat_store=lambda: store)
        await worker.start()
        handle = await client.start(waiting)
        await eventually(lambda: bool(store.lost))
        store.advance(LEASE / 10)
        await handle.signal("go")
        await handle.result(timeout=60)
        assert "WorkerLost" not in [entry.event.type for entry in await handle.log()]
        await worker.stop(0)


async def test_what_a_heartbeat_named_is_not_due_once_it_was_looked_at() -> None:
    """Fault: `worker --once` said that more was due, although it had just looked."""
    store, agenda = MemoryStore(), Agenda(heartbeat_seconds=HOUR, silent_seconds=8.0)
    service = UnusedLimits(
        ServiceContext(store, "ann", EngineClock(), lambda _: None, 0.001, Observing(), agenda)
    )
    agenda.tell({"limits"})
    assert service.next_due is not None
    assert await service.attempt()
    assert service.next_due is None
