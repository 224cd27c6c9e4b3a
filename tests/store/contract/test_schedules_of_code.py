"""T6. Schedules of code: several deployments agree, and the newest counts."""

from __future__ import annotations

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import EnsuredSchedules, NewSchedule, When, schedules_digest

from .actors import ManualWorker
from .schedule_actors import new_schedule

A, B = new_schedule("shop/a"), new_schedule("shop/b")
CHANGED = new_schedule("shop/a", when=When(every_seconds=7))
HANDLERS = ("shop/order@1",)


async def ensure(
    store: Store, *schedules: NewSchedule, app: str = "shop", starting: bool = False
) -> EnsuredSchedules:
    """Do what a worker does that has these schedules in its code."""
    digest = schedules_digest(schedules)
    return (await store.ensure_schedules(app, digest, schedules, restore=starting))[0]


async def heard(
    store: Store, worker: ManualWorker, started_at: int, handlers: tuple[str, ...] = HANDLERS
) -> None:
    """Let a worker of the app be heard."""
    info = worker.info(started_at=started_at, handlers=handlers)
    await store.heartbeat(info, [], lease_seconds=30, interval_seconds=10)


async def paused(store: Store) -> dict[str, str | None]:
    return {each.name: each.paused_by for each in await store.list_schedules()}


async def test_an_app_without_schedules_writes_nothing(store: Store) -> None:
    assert await ensure(store) == EnsuredSchedules("current")


async def test_schedules_are_added_changed_paused_and_resumed(store: Store) -> None:
    assert await ensure(store, A, B) == EnsuredSchedules("written", added=("shop/a", "shop/b"))
    assert await ensure(store, B, A) == EnsuredSchedules("current")
    answer = await ensure(store, CHANGED)
    assert answer == EnsuredSchedules("written", changed=("shop/a",), paused=("shop/b",))
    found = await store.get_schedule("shop/a")
    assert found is not None
    assert (found.when, found.from_code) == (CHANGED.when, True)
    assert await paused(store) == {"shop/a": None, "shop/b": "code"}


async def test_an_older_deployment_that_restarts_changes_nothing(
    store: Store, clock: Clock
) -> None:
    """While workers with newer code are heard; when they are gone, it counts."""
    await ensure(store, A, B)
    await clock.advance(10)
    await ensure(store, CHANGED)
    for _ in range(3):
        await clock.advance(30)
        assert await ensure(store, A, B) == EnsuredSchedules("superseded")
        assert await ensure(store, CHANGED) == EnsuredSchedules("current")
    await clock.advance(91)
    answer = await ensure(store, A, B)
    assert answer == EnsuredSchedules("written", changed=("shop/a",), resumed=("shop/b",))
    assert await ensure(store, CHANGED) == EnsuredSchedules("superseded")
    assert await paused(store) == {"shop/a": None, "shop/b": None}


async def test_an_older_deployment_counts_again_although_the_clock_has_gone_back(
    store: Store, clock: Clock
) -> None:
    """The newer code was heard in what is now the future; it is gone all the same."""
    await ensure(store, A, B)
    await clock.advance(10)
    await ensure(store, CHANGED)
    await clock.advance(-3600)
    assert await ensure(store, A, B) == EnsuredSchedules("superseded")
    await clock.advance(91)
    assert (await ensure(store, A, B)).status == "written"
    assert (await ensure(store, CHANGED)).status == "superseded"


async def test_apps_do_not_touch_each_others_schedules(store: Store) -> None:
    await ensure(store, A)
    assert (await ensure(store, new_schedule("shop2/a"), app="shop2")).paused == ()
    await ensure(store, B)
    assert await paused(store) == {"shop/a": "code", "shop/b": None, "shop2/a": None}


async def test_what_users_changed_stays_until_the_code_changes(store: Store) -> None:
    await ensure(store, A)
    slower = new_schedule("shop/a", when=When(every_seconds=3600))
    await store.update_schedule(slower)
    await store.pause_schedule("shop/a", note="on holiday")
    assert (await ensure(store, A, B)).changed == ()
    found = await store.get_schedule("shop/a")
    assert found is not None
    assert (found.when, found.paused_by, found.note) == (slower.when, "user", "on holiday")
    assert (await ensure(store, CHANGED, B)).changed == ("shop/a",)
    found = await store.get_schedule("shop/a")
    assert found is not None
    assert (found.when, found.paused_by) == (CHANGED.when, "user")


async def test_a_deleted_schedule_comes_back_with_the_next_worker(store: Store) -> None:
    """Not as long as no worker starts."""
    await ensure(store, A, B)
    await store.delete_schedule("shop/a")
    assert await ensure(store, A, B) == EnsuredSchedules("current")
    digest = schedules_digest((A, B))
    answer, _ = await store.ensure_schedules("shop", digest, (A, B), restore=True)
    assert answer == EnsuredSchedules("written", added=("shop/a",))
    assert await paused(store) == {"shop/a": None, "shop/b": None}


async def test_schedules_of_users_stay_when_the_code_has_none(store: Store) -> None:
    await store.create_schedule(new_schedule("shop/by-hand"))
    await ensure(store, A)
    assert (await ensure(store)).paused == ("shop/a",)
    assert await paused(store) == {"shop/a": "code", "shop/by-hand": None}


async def test_the_name_of_a_users_schedule_is_refused(store: Store) -> None:
    """Nothing is written then."""
    await store.create_schedule(A)
    with pytest.raises(InvalidInput, match="shop/a"):
        await ensure(store, B, A)
    assert await paused(store) == {"shop/a": None}


async def test_values_that_are_not_allowed_are_refused(store: Store) -> None:
    wrong = msgspec.structs.replace(A, when=When())
    with pytest.raises(InvalidInput):
        await ensure(store, wrong)
    assert await store.list_schedules() == []


@pytest.mark.parametrize("handlers", [HANDLERS, ()])
async def test_newer_code_counts_although_the_database_was_away(
    store: Store, ann: ManualWorker, clock: Clock, handlers: tuple[str, ...]
) -> None:
    """Nobody could say that it is there. Who was heard since then for long knows who is gone."""
    await ensure(store, A, B)
    await ensure(store, CHANGED)
    started_at = await store.now()
    await heard(store, ann, started_at, handlers)
    await clock.advance(100)
    assert await ensure(store, A, B) == EnsuredSchedules("superseded")  # before it is heard itself
    for _ in range(2):
        await heard(store, ann, started_at, handlers)
        for starting in (False, True):
            answer = await ensure(store, A, B, starting=starting)
            assert answer == EnsuredSchedules("superseded")
        await clock.advance(10)
    assert await ensure(store, CHANGED) == EnsuredSchedules("current")
    assert await paused(store) == {"shop/a": None, "shop/b": "code"}
    for _ in range(10):
        await clock.advance(10)
        await heard(store, ann, started_at, handlers)
    assert (await ensure(store, A, B)).status == "written"


async def test_older_code_that_starts_counts_after_all_workers_were_killed(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """A roll-back need not wait until a worker was heard for long."""
    await ensure(store, A, B)
    await ensure(store, CHANGED)
    await heard(store, ann, await store.now())
    await clock.advance(91)
    assert (await ensure(store, A, B, starting=True)).status == "written"


@pytest.mark.parametrize("was_killed", [False, True])
async def test_older_code_counts_where_only_sweeps_work(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock, was_killed: bool
) -> None:
    """They are never heard for long."""
    await ensure(store, A, B)
    await ensure(store, CHANGED)
    if was_killed:
        await heard(store, bob, await store.now())
    await clock.advance(91)
    info = ann.info(started_at=await store.now(), handlers=HANDLERS)
    await store.begin_sweep(info, seconds=50)
    assert (await ensure(store, A, B)).status == "written"
