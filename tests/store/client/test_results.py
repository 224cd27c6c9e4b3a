"""Waiting for the ends of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client, unserved, waiting
from holdfast.client.handle import RunHandle
from holdfast.client.run import Run
from holdfast.errors import (
    DatabaseUnavailable,
    HoldfastError,
    InsufficientRights,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTerminated,
    RunTimedOut,
)
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import NewRun, Notice, RunRecord, StartedRun, WorkerInfo

from .workflows import Finisher, Order, Receipt, app, order, tick


async def test_a_result_has_the_type_that_the_workflow_declares(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(order, Order(7))
    await finisher.complete(Receipt(7, paid=True))
    assert await handle.result() == Receipt(7, paid=True)
    by_id = client.handle(handle.run_id, order)
    assert await by_id.result() == Receipt(7, paid=True)
    assert await client.handle(handle.run_id).result() == {"number": 7, "paid": True}


async def test_an_app_restores_results_of_handles_made_from_ids(
    store: Store, finisher: Finisher
) -> None:
    async with Client(store=store, app=app) as client:
        handle = await client.start("order", Order(7))
        await finisher.complete(Receipt(7, paid=True))
        assert await client.handle(str(handle.run_id)).result() == Receipt(7, paid=True)


async def test_waiting_callers_are_woken_by_notification(
    client: Client,
    finisher: Finisher,
    registrations: Registrations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is looked at by itself here: only a notice can end the waits."""
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 3600)
    handles = await client.start_many(tick, [None] * 100)
    waits = [asyncio.create_task(handle.result()) for handle in (*handles, handles[0])]
    await registrations.of(*handles)
    await finisher.complete(5)
    assert await asyncio.gather(*waits) == [5] * 101


class Registrations:
    """Tells which runs a store was asked to tell the end of."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: set[UUID] = set()
        self._changed = asyncio.Event()
        ask = store.wait_for_end

        async def wait_for_end(topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
            answer = await ask(topic, run_ids)
            self._seen.update(run_ids)
            self._changed.set()
            return answer

        monkeypatch.setattr(store, "wait_for_end", wait_for_end)

    async def of(self, *handles: RunHandle[object]) -> None:
        """Return once all of these runs are registered."""
        while not {handle.run_id for handle in handles} <= self._seen:
            self._changed.clear()
            await self._changed.wait()


@pytest.fixture
def registrations(store: Store, monkeypatch: pytest.MonkeyPatch) -> Registrations:
    return Registrations(store, monkeypatch)


class MuteStore(MemoryStore):
    """A store whose wake-ups are all lost."""

    async def notify(self, notices: Sequence[Notice]) -> None:
        pass


async def test_lost_notices_only_make_a_result_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0.01)
    store = MuteStore()
    registrations = Registrations(store, monkeypatch)
    async with Client(store=store) as client:
        handle = await client.start(tick)
        wait = asyncio.create_task(handle.result())
        await registrations.of(handle)
        await Finisher(store).complete(3)
        assert await wait == 3


class LeavingStore(MemoryStore):
    """A store that goes away while runs are read for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.is_away = asyncio.Event(), asyncio.Event()

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        if not self.is_away.is_set():
            self.reading.set()
            await self.is_away.wait()
            raise DatabaseUnavailable("away")
        return await super().get_runs(run_ids, payloads=payloads)


async def test_a_caller_that_leaves_while_a_read_fails_takes_nobody_along() -> None:
    store = LeavingStore()
    async with Client(store=store) as client:
        ends = client._session.ends
        one, other = await client.start_many(tick, [None] * 2)
        async with asyncio.timeout(60):
            async with ends.expect(one.run_id):
                kept = asyncio.create_task(ends.wait(other.run_id, None))
                ends._hear(str(one.run_id))  # as when it has ended
                await store.reading.wait()
            store.is_away.set()
            await Finisher(store).complete(3)
            assert (await kept).output == "3"


class DeafStore(MemoryStore):
    """A store that can be made to lose its listening connection."""

    callback: Callable[[str], None]

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        self.callback = callback

        async def stop() -> None:
            pass

        return stop


async def test_after_a_lost_connection_every_wait_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 3600)
    store = DeafStore()
    registrations = Registrations(store, monkeypatch)
    async with Client(store=store) as client:
        handle = await client.start(tick)
        wait = asyncio.create_task(handle.result())
        await registrations.of(handle)
        await Finisher(store).complete(3)
        store.callback("")
        assert await wait == 3


class AwayStore(MemoryStore):
    """A store that cannot be asked about runs until it is back."""

    away = False

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        if self.away:
            self.away = False
            raise DatabaseUnavailable("the server restarts")
        return await super().get_runs(run_ids, payloads=payloads)


async def test_a_wait_outlasts_a_database_that_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 22."""
    store = AwayStore()
    registrations = Registrations(store, monkeypatch)
    async with Client(store=store) as client:
        handle = await client.start(tick)
        wait = asyncio.create_task(handle.result())
        await registrations.of(handle)
        monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0.01)
        store.away = True
        await Finisher(store).fail(ValueError("bent"))
        with pytest.raises(RunFailed, match="bent"):
            await wait
        assert not store.away


async def test_a_failed_run_raises_its_recorded_error(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.fail(LookupError("no such thing"))
    with pytest.raises(RunFailed, match="no such thing") as caught:
        await handle.result()
    assert caught.value.matches(LookupError)
    assert not caught.value.matches(OSError)
    assert (await client.runs.wait(handle.run_id)).status == "failed"


async def test_each_end_has_an_error_of_its_own(client: Client, store: Store) -> None:
    """S10."""
    cancelled, terminated = await client.start(tick), await client.start(tick)
    assert await cancelled.cancel("changed my mind")
    assert await terminated.terminate()
    with pytest.raises(RunCancelled):
        await cancelled.result()
    with pytest.raises(RunTerminated):
        await terminated.result()


async def test_a_run_past_its_deadline_raises_timed_out(client: Client, store: Store) -> None:
    """S10."""
    handle = await client.start(tick, timeout=0)
    async with asyncio.timeout(60):
        while (await store.time_out_runs())[0] == 0:
            pass
    with pytest.raises(RunTimedOut):
        await handle.result()


async def test_a_caller_may_stop_waiting_and_the_run_goes_on(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(tick)
    with pytest.raises(ResultTimeout) as caught:
        await handle.result(timeout="10ms")
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.seconds == 0.01
    assert await handle.status() == "running"
    await finisher.complete(1)
    assert await handle.result() == 1


async def test_a_cancelled_wait_leaves_the_others_waiting(
    client: Client, finisher: Finisher, registrations: Registrations
) -> None:
    handle = await client.start(tick)
    gone, stays = asyncio.create_task(handle.result()), asyncio.create_task(handle.result())
    await registrations.of(handle)
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    await finisher.complete(1)
    assert await stays == 1


async def test_a_missing_run_is_not_found(client: Client) -> None:
    run_id = uuid4()
    with pytest.raises(RunNotFound) as caught:
        await client.handle(run_id).result()
    assert caught.value.run_id == run_id


@pytest.fixture
def found_running(client: Client, store: Store, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have the run `k` started right after a look that did not find it; set when one finds it."""
    look, seen = store.get_runs, asyncio.Event()
    run_id = client.handle((tick, "k")).run_id

    async def get_runs(run_ids: Sequence[UUID], *, payloads: bool = True) -> dict[UUID, RunRecord]:
        found = await look(run_ids, payloads=payloads)
        if run_id in run_ids and run_id not in found:
            assert not (await client.start(tick, key="k")).already_existed
        elif run_id in found:
            seen.set()
        return found

    monkeypatch.setattr(store, "get_runs", get_runs)
    return seen


async def test_a_run_that_is_started_during_the_look_is_waited_for(
    client: Client, finisher: Finisher, found_running: asyncio.Event
) -> None:
    result = asyncio.create_task(client.handle((tick, "k")).result())
    await found_running.wait()
    assert len(await finisher.complete(5)) == 1
    assert await result == 5


async def test_a_run_that_is_started_during_the_look_is_waited_for_as_a_run(
    client: Client, finisher: Finisher, found_running: asyncio.Event
) -> None:
    wait = asyncio.create_task(client.runs.wait((tick, "k")))
    await found_running.wait()
    assert len(await finisher.complete(5)) == 1
    run = await wait
    assert (run.status, run.output) == ("completed", 5)


@pytest.mark.usefixtures("found_running")
@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_a_run_that_is_started_during_the_look_has_not_ended(
    client: Client, timeout: float
) -> None:
    for wait in (client.handle((tick, "k")).result, partial(client.runs.wait, (tick, "k"))):
        with pytest.raises(ResultTimeout) as caught:
            await wait(timeout=timeout)
        assert caught.value.seconds == timeout


async def test_run_returns_the_result_of_what_it_started(
    client: Client, store: Store, finisher: Finisher
) -> None:
    result = asyncio.create_task(client.run(order, Order(7)))
    assert len(await until_one_is_due(finisher, Receipt(7, paid=True))) == 1
    assert await result == Receipt(7, paid=True)


async def until_one_is_due(finisher: Finisher, output: object) -> list[object]:
    async with asyncio.timeout(60):
        while True:
            if ended := await finisher.complete(output):
                return [*ended]


async def test_run_waits_for_a_run_that_was_there_before(
    client: Client, finisher: Finisher
) -> None:
    await client.start(tick, key="k")
    await finisher.complete(8)
    assert await client.run(tick, key="k") == 8


async def test_run_stops_waiting_when_told(client: Client) -> None:
    with pytest.raises(ResultTimeout):
        await client.run(tick, key="k", wait=0.01)
    assert (await client.runs.get((tick, "k"))).status == "running"


class Reluctant(MemoryStore):
    """A store that answers a start only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        answer = await super().start_runs(runs)
        await self.let.wait()
        return answer


async def test_an_end_that_is_told_before_the_start_is_answered_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker may be faster than the answer to the start."""
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 3600)
    store = Reluctant()
    async with Client(store=store) as client:
        result = asyncio.create_task(client.run(tick))
        assert await until_one_is_due(Finisher(store), 4)
        store.let.set()
        assert await result == 4


async def test_closing_the_client_fails_the_waiting_callers(
    store: Store, registrations: Registrations
) -> None:
    async with Client(store=store) as client:
        handle = await client.start(tick)
        wait = asyncio.create_task(handle.result())
        await registrations.of(handle)
    with pytest.raises(HoldfastError, match="closed"):
        await wait


async def test_a_client_without_waiting_callers_costs_nothing(
    client: Client, finisher: Finisher
) -> None:
    before = asyncio.all_tasks()
    handle = await client.start(tick)
    await finisher.complete(1)
    await handle.result()
    # The one that sees whether the listening connection still answers stays with it.
    before |= {task for task in asyncio.all_tasks() if task.get_name() == "holdfast listening"}
    started = asyncio.all_tasks() - before
    if started:
        await asyncio.wait(started, timeout=60)
    assert asyncio.all_tasks() == before


async def test_wait_returns_the_run_however_it_ended(client: Client) -> None:
    handle = await client.start(tick)
    await handle.terminate()
    run: Run = await client.runs.wait(handle.run_id, timeout=60)
    assert run.status == "terminated"


async def test_the_client_returns_the_result_of_a_run_that_is_named(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(order, Order(7), key="order-7")
    await finisher.complete(Receipt(7, paid=True))
    assert await client.result(handle.run_id) == {"number": 7, "paid": True}
    assert await client.result(handle.run_id, order) == Receipt(7, paid=True)
    assert await client.result((order, "order-7"), timeout=0) == Receipt(7, paid=True)
    assert await client.handle((order, "order-7")).result() == Receipt(7, paid=True)
    with pytest.raises(RunNotFound):
        await client.result(uuid4(), timeout=0)
    failing = await client.start(tick)
    await failing.terminate()
    with pytest.raises(RunTerminated):
        await client.result(str(failing.run_id))


async def test_without_time_a_run_that_has_ended_still_gives_its_result(
    client: Client, finisher: Finisher
) -> None:
    handle = await client.start(tick)
    with pytest.raises(ResultTimeout):
        await handle.result(timeout=0)
    with pytest.raises(RunNotFound):
        await client.handle(uuid4()).result(timeout=0)
    await finisher.complete(3)
    assert await handle.result(timeout=0) == 3
    assert (await client.runs.wait(handle.run_id, timeout=0)).status == "completed"


@pytest.mark.parametrize("is_served", [False, True])
async def test_a_caller_is_told_once_that_no_worker_serves_the_run(
    client: Client,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_served: bool,
) -> None:
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(unserved, "_INTERVAL_SECONDS", 0)
    if is_served:
        info = WorkerInfo(
            worker_id="ann",
            hostname="here",
            pid=1,
            queues=("orders",),
            handlers=app.handlers(),
            concurrency=10,
            holdfast_version="0",
        )
        await store.heartbeat(info, [], lease_seconds=30)
    asked = 0
    ask = store.unserved

    async def count(**options: Any) -> list[tuple[str, str, int]]:
        nonlocal asked
        asked += 1
        return await ask(**options)

    monkeypatch.setattr(store, "unserved", count)
    handle = await client.start(order, Order(7))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        waits = [group.create_task(handle.result()) for _ in range(2)]
        while asked < 3:
            await asyncio.sleep(0.001)
        for wait in waits:
            wait.cancel()
    told = [record.getMessage() for record in caplog.records if "no live worker" in record.message]
    assert len(told) == (0 if is_served else 1)
    for text in told:
        assert f"run {handle.run_id}" in text
        assert "shop/order@1 of queue orders" in text


@pytest.mark.parametrize("fault", ["refused", "slow"])
async def test_a_result_does_not_depend_on_the_look_for_workers(
    client: Client, store: Store, finisher: Finisher, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A role may lack the rights, and the database may take its time."""
    monkeypatch.setattr(waiting, "FIRST_LOOK_SECONDS", 0)
    monkeypatch.setattr(waiting, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0)
    asked = asyncio.Event()

    async def unserved(**options: Any) -> list[tuple[str, str, int]]:
        asked.set()
        if fault == "slow":
            await asyncio.Event().wait()
        raise InsufficientRights("permission denied for table workers")

    monkeypatch.setattr(store, "unserved", unserved)
    handle = await client.start(order, Order(7))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        result = group.create_task(handle.result())
        await asked.wait()
        await finisher.complete(Receipt(7, paid=True))
    assert result.result() == Receipt(7, paid=True)
