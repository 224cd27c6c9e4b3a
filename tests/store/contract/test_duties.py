"""What the answer to a heartbeat says of the duties that may have something to do."""

from __future__ import annotations

from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import AppInfo

from .actors import ManualWorker, start
from .schedule_actors import new_schedule
from .test_alerts import FAILED
from .test_deliveries import publish, subscribe
from .test_limits import queue_limit
from .test_messages import Mail


async def duties(store: Store, worker: ManualWorker) -> list[str]:
    await worker.beat()  # it is known
    answer = await store.heartbeat(worker.info(), [], lease_seconds=30, silent_seconds=8)
    return list(answer.duties)


async def test_only_workers_that_ask_are_told_of_duties(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    await bob.beat()
    await clock.advance(20)
    assert (await ann.beat()).duties == ()
    assert await duties(store, ann) == ["workers"]


async def test_a_worker_that_is_not_known_is_told_to_sign_on(
    store: Store, ann: ManualWorker
) -> None:
    """So it looks if the database was set back to before its start."""

    async def told() -> list[str]:
        return list(
            (await store.heartbeat(ann.info(), [], lease_seconds=30, silent_seconds=8)).duties
        )

    assert [await told(), await told()] == [["sign on"], []]
    await store.remove_worker(ann.worker_id)
    assert await told() == ["sign on"]


async def test_the_last_sign_on_of_an_app_never_goes_back(store: Store, clock: Clock) -> None:
    """Fault: after a step of the clock, or of sign-ons at once, it looked like a restore."""

    async def signed_on_at() -> int:
        await store.sign_on_app(AppInfo(app="shop", workflows=("pack",)))
        [info] = await store.list_apps()
        return info.signed_on_at

    first = await signed_on_at()
    await clock.advance(-3600)
    assert await signed_on_at() == first
    await clock.advance(3601)
    assert await signed_on_at() == first + 1_000_000


async def test_nothing_is_due_in_a_database_where_runs_only_wait(
    store: Store, ann: ManualWorker
) -> None:
    await start(store)
    assert await duties(store, ann) == []


async def test_deadlines_are_named_ten_seconds_ahead(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await start(store, timeout_seconds=60.0)
    await clock.advance(45)
    assert "deadlines" not in await duties(store, ann)
    await clock.advance(10)
    assert "deadlines" in await duties(store, ann)
    await clock.advance(10)
    assert "deadlines" in await duties(store, ann)
    await store.time_out_runs(limit=10)
    assert "deadlines" not in await duties(store, ann)


async def test_a_delivery_to_a_url_is_named_until_it_has_ended(
    store: Store, ann: ManualWorker
) -> None:
    await subscribe(store)
    assert await duties(store, ann) == []
    await publish(store)
    assert await duties(store, ann) == ["deliveries"]


async def test_alerts_are_named_once_in_ten_seconds(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await store.declare_alerts("test", [FAILED])
    assert await duties(store, ann) == ["alerts"]
    await store.look_at_alerts()
    assert await duties(store, ann) == []
    await clock.advance(9)
    assert await duties(store, ann) == []
    await clock.advance(1)
    assert await duties(store, ann) == ["alerts"]


async def test_limits_are_named_while_there_are_some(store: Store, ann: ManualWorker) -> None:
    await store.set_limit(queue_limit(2))
    assert await duties(store, ann) == ["limits"]


async def test_schedules_are_named_ten_seconds_ahead(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await store.create_schedule(new_schedule())
    assert await duties(store, ann) == ["schedules"]  # its tick is to be computed
    assert await store.due_schedules(limit=10, ahead_seconds=0, lease_seconds=20)
    assert await duties(store, ann) == []
    await clock.advance(12)
    assert await duties(store, ann) == ["schedules"]


async def test_what_is_in_flight_too_long_and_old_deduplication_ids_are_named(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    mail = Mail(store)
    await mail.create(visibility_seconds=30.0)
    await mail.send("1")
    await mail.take()
    assert await duties(store, ann) == []
    await clock.advance(40)
    assert await duties(store, ann) == ["queues"]
    await store.return_expired(limit=10)
    await store.sweep_queues(limit=10)
    assert await duties(store, ann) == []


async def test_workers_are_told_that_one_of_another_release_is_signed_on(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    await bob.beat()
    assert "other releases" not in await duties(store, ann)
    await bob.beat(holdfast_version="0.0.9")
    assert "other releases" in await duties(store, ann)
