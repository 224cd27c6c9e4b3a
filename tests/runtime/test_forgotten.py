"""A database that was set back to before a worker began, under that worker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import App, Client, Context
from holdfast.errors import DatabaseUnavailable
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.memory.flows.nesting import FlowNesting
from holdfast.store.memory.tables import Tables
from holdfast.store.port import Store
from holdfast.types import AppInfo
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.clock import EngineClock
from holdfast.worker.services.forgotten import Forgotten
from holdfast.worker.services.service import ServiceContext
from tests.runtime.desk import eventually

PATIENCE = "2m"
WARNING = "the database lacks its last sign-on"


class OldStore(MemoryStore):
    """Can be set back to before everything, or to when there were some apps alone."""

    def set_back(self, apps: Sequence[AppInfo] = ()) -> None:
        self._tables = Tables(FlowNesting())
        self._tables.apps = {each.app: each for each in apps}

    def declared(self) -> list[set[str]]:
        """Return what the code of the shop has declared."""
        tables = self._tables
        return [set(tables.queues.rows), {*map(str, tables.limits)}, {*tables.shapes}]


class Signing(Forgotten):
    """Signs an app on in its store; the first `failures` times it fails after that."""

    def __init__(self, store: Store, build: str | None = None) -> None:
        context = ServiceContext(store, "ann", EngineClock(), lambda _: None, 1.0)
        app = App("shop", build=build)

        @app.workflow
        async def pack(ctx: Context) -> None:
            pass

        super().__init__(context, app, self.sign_on)
        self.failures = self.signed_on = 0

    async def sign_on(self) -> None:
        await self._store.sign_on_app(AppInfo(app="shop", workflows=("pack",)))
        if self._build is not None:
            await self._store.declare_build("shop", self._build, ())
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable("away again")
        self.signed_on += 1


@pytest.fixture
def store() -> OldStore:
    return OldStore(wall_clock)


def shop() -> App:
    app = App("shop")
    app.message_queue("parcels")
    report = app.flow("report", input=list[int])

    @report.map(report.run)
    def double(number: int) -> int:
        return 2 * number

    @app.job(concurrency=1)
    def pack(number: int) -> int:
        return number

    return app


async def test_what_the_code_declares_is_written_again(
    store: OldStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: flows and queues were unknown, and limits not in force, until a restart."""
    options = WorkerOptions(heartbeat_seconds=0.02, poll_seconds=0.02)
    worker = Worker(shop(), store, options, heartbeat_store=lambda: store)
    await worker.start()
    try:
        before = store.declared()
        assert all(before)
        store.set_back()
        async with Client(store=store) as client:
            await eventually(lambda: store.declared() == before)
            assert (await client.run("shop/report", [1, 2], wait=PATIENCE)) == {"double": [2, 4]}
    finally:
        await worker.stop(0)
    assert WARNING in caplog.text


async def test_it_is_written_again_until_all_of_it_is(store: OldStore) -> None:
    service = Signing(store)
    await service.sign_on()
    await service.run_once()
    store.set_back()
    service.failures = 2
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await service.run_once()
    for _ in range(3):
        await service.run_once()
    assert service.signed_on == 2


async def test_a_sign_on_that_went_back(store: OldStore) -> None:
    service = Signing(store)
    await service.sign_on()
    early = await store.list_apps()
    await store.sign_on_app(AppInfo(app="shop", workflows=("pack", "ship")))
    await service.run_once()
    store.set_back(early)
    await service.run_once()
    assert service.signed_on == 2


async def test_each_build_signs_on_again(store: OldStore) -> None:
    """Fault: once one had, the others held their own sign-on for known: new runs never got them."""
    services = [Signing(store, build) for build in "123"]
    for each in services:
        await each.sign_on()
    for each in services:
        await each.run_once()
    store.set_back()
    for each in services:
        each.look()
        await each.run_once()
    assert {each.build for each in await store.list_builds("shop")} == {*"123"}
    for each in services:
        each.look()
        await each.run_once()
    assert [each.signed_on for each in services] == [2, 2, 2]


async def test_a_worker_that_was_called_silent_writes_nothing(store: OldStore) -> None:
    """Newer code may have declared other limits since."""
    service = Signing(store)
    await service.sign_on()
    await service.run_once()
    newer = AppInfo(app="shop", workflows=("pack", "ship"))
    await store.sign_on_app(newer)
    service.look()
    await service.run_once()
    assert service.signed_on == 1
