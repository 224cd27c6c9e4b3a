"""Starts that do not say how long a run is kept obey what its code has declared."""

from __future__ import annotations

from uuid import UUID, uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import DeclaredRetention, DeclaredRules, NewRun, StartRules

from .actors import ManualWorker, get, new_run, start
from .commands import child
from .flow_actors import Flows, single
from .schedule_actors import ManualScheduler, run_of

DAY = 86_400.0


async def kept(store: Store, run_id: UUID) -> float:
    """Return the days for which a run is kept."""
    return ((await get(store, run_id)).retention_seconds or 0.0) / DAY


async def declare(store: Store, name: str, days: float, version: int = 1) -> None:
    """Declare how long runs of a workflow or a flow are kept."""
    await store.declare_retentions([DeclaredRetention(name, version, days * DAY)])


async def test_start_without_a_retention_has_the_declared_one(store: Store) -> None:
    assert await kept(store, await start(store)) == 30
    await declare(store, "order", 90)
    assert await kept(store, await start(store)) == 90
    assert await kept(store, await start(store, name="other")) == 30
    assert await kept(store, await start(store, retention_seconds=DAY)) == 1
    many = [NewRun(run_id=uuid4(), name=name) for name in ("order", "other")]
    await store.start_runs(many)
    assert [await kept(store, new.run_id) for new in many] == [90, 30]


async def test_program_of_an_older_version_changes_nothing(store: Store) -> None:
    """As with rules for starts: during a deployment the newer code holds."""
    for days, version, then in ((5, 2, 5), (7, 1, 5), (6, 2, 6), (8, 3, 8)):
        await declare(store, "order", days, version)
        assert await kept(store, await start(store)) == then


async def test_children_ticks_and_flows_have_the_declared_one(
    store: Store, clock: Clock, flows: Flows, ann: ManualWorker
) -> None:
    for name, days in (("mail", 2), ("shop/order", 3), ("shop/trip", 4)):
        await declare(store, name, days)
    await start(store)
    child_id = uuid4()
    command = child(child_id, workflow_name="mail", retention=None)
    await ann.command(await ann.take(), command, awaiting=())
    assert await kept(store, child_id) == 2
    await flows.define(single("one"))
    assert await kept(store, await flows.start()) == 4
    sally = ManualScheduler(store)
    tick = await sally.create()
    await clock.advance(60)
    assert await kept(store, run_of(await sally.fire(tick))) == 3


async def test_debounced_run_gets_the_declared_one_back(store: Store) -> None:
    """Each start gives the run that waits all its options."""
    await declare(store, "order", 9)
    rules = StartRules(debounce_seconds=60.0, debounce_max_wait_seconds=600.0)
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    run_id = await start(store, retention_seconds=DAY)
    assert await kept(store, run_id) == 1
    await store.start_runs([new_run()])
    assert await kept(store, run_id) == 9
