"""T6. Schedulers, users and ends of runs that meet inside the database, at the worst moment."""

from __future__ import annotations

from typing import Any

import pytest
from contract.actors import ManualWorker
from contract.schedule_actors import (
    NAME,
    ORDER,
    TARGET,
    ManualScheduler,
    new_schedule,
    run_of,
    summary,
)
from scene import Scene, finished

from holdfast.errors import TransientDatabaseError
from holdfast.types import (
    DueSchedule,
    Firing,
    NewSubscription,
    QueueSettings,
    QueueTarget,
    RunTarget,
    SendTarget,
    schedules_digest,
    tick_event,
)


@pytest.fixture
def sally(scene: Scene) -> ManualScheduler:
    return ManualScheduler(scene.store)


async def due_now(scene: Scene, sally: ManualScheduler, **policy: object) -> DueSchedule:
    """Create a schedule whose first tick has just come, and lease it."""
    await sally.create(**policy)
    return await next_tick(scene, sally)


async def next_tick(scene: Scene, sally: ManualScheduler) -> DueSchedule:
    """Let the next tick of the schedule be a moment ago."""
    await scene.value(
        "update holdfast.schedules set look_at = holdfast.now() - interval '1 s',"
        " next_tick_at = holdfast.now() - interval '1 s' returning 1"
    )
    return await sally.take()


def arguments(due: DueSchedule) -> tuple[object, ...]:
    """Return the arguments of `fire_schedules` that fire a schedule's expected tick."""
    return (
        *([due.name], [due.revision], [due.expected], [due.expected], [None], [None]),
        *([due.name], [due.expected], [], [], [], [], []),
    )


async def fire(sally: ManualScheduler, due: DueSchedule) -> frozenset[str]:
    assert due.expected is not None
    return (await sally.move(due, due.expected)).moved


async def test_of_two_sweepers_one_fires(scene: Scene, sally: ManualScheduler) -> None:
    """The first has fired and not committed: the second does not wait for it."""
    due = await due_now(scene, sally)
    session = await scene.session()
    async with session.transaction():
        [row] = await session.call("fire_schedules", *arguments(due))
        assert row["moved"] == [NAME]
        assert await fire(sally, due) == frozenset()
    assert await fire(sally, due) == frozenset()
    assert await scene.value("select count(*) from holdfast.runs") == 1


@pytest.mark.parametrize("kind", ["topic", "queue"])
async def test_of_two_sweepers_one_sends(scene: Scene, sally: ManualScheduler, kind: Any) -> None:
    """Nothing is sent before the commit of the one that fires, and nothing after a roll-back."""
    await scene.store.create_queue(QueueSettings(name="polls"))
    everything = NewSubscription(pattern="#", target=QueueTarget(queue="polls"))
    await scene.store.subscribe(everything)
    target = SendTarget(kind=kind, name="polls")
    due = await due_now(scene, sally, target=target, overlap="allow")
    session = await scene.session()
    firing = session.transaction()
    await firing.start()
    await session.call("fire_schedules", *arguments(due))
    assert await fire(sally, due) == frozenset()
    await firing.rollback()
    assert await scene.value("select count(*) from holdfast.messages") == 0
    async with session.transaction():
        [row] = await session.call("fire_schedules", *arguments(due))
        assert row["moved"] == [NAME]
        assert await fire(sally, due) == frozenset()
    assert await fire(sally, due) == frozenset()
    assert due.expected is not None
    await scene.store.trigger_schedule(NAME, at=due.expected)
    assert await scene.value("select count(*) from holdfast.messages") == 1


async def test_a_sender_that_meets_a_lock_is_fired_later(
    scene: Scene, sally: ManualScheduler
) -> None:
    """Another publish of the tick's event id is open: the call gives up, and nothing is lost."""
    target = SendTarget(kind="topic", name="clock")
    due = await due_now(scene, sally, target=target, overlap="allow")
    assert due.expected is not None
    session = await scene.session()
    publishing = session.transaction()
    await publishing.start()
    await session.call("publish", "other", "1", tick_event(NAME, due.expected))
    with pytest.raises(TransientDatabaseError):
        await fire(sally, due)
    await publishing.rollback()
    assert await fire(sally, due) == {NAME}
    assert (await sally.bucket(due.expected)).outcome == "sent"


async def test_a_sweeper_that_rolls_back_leaves_the_tick(
    scene: Scene, sally: ManualScheduler
) -> None:
    due = await due_now(scene, sally)
    session = await scene.session()
    firing = session.transaction()
    await firing.start()
    await session.call("fire_schedules", *arguments(due))
    await firing.rollback()
    assert await fire(sally, due) == {NAME}
    assert await scene.value("select count(*) from holdfast.runs") == 1


@pytest.mark.parametrize(
    ("function", "values"),
    [
        ("pause_schedule", (NAME,)),
        ("delete_schedule", (NAME,)),
        ("update_schedule", (NAME, TARGET.name, None, 7.0)),
    ],
)
async def test_a_change_before_the_commit_of_which_a_tick_comes(
    scene: Scene, sally: ManualScheduler, function: str, values: tuple[object, ...]
) -> None:
    """The tick does not fire, neither while the change is open nor after it."""
    due = await due_now(scene, sally)
    session = await scene.session()
    async with session.transaction():
        await session.call(function, *values)
        assert await fire(sally, due) == frozenset()
    assert await fire(sally, due) == frozenset()
    assert await scene.value("select count(*) from holdfast.runs") == 0


@pytest.mark.parametrize("function", ["pause_schedule", "delete_schedule"])
async def test_a_change_waits_for_a_tick_that_fires(
    scene: Scene, sally: ManualScheduler, function: str
) -> None:
    """The run starts; what was changed is what holds afterwards."""
    due = await due_now(scene, sally)
    session = await scene.session()
    firing = session.transaction()
    await firing.start()
    await session.call("fire_schedules", *arguments(due))
    change = getattr(scene.store, function)(NAME)
    assert await scene.while_blocked(change, firing.commit) is True
    assert await scene.value("select count(*) from holdfast.runs") == 1
    found = await scene.store.get_schedule(NAME)
    assert found is None or found.paused_by == "user"
    assert await fire(sally, due) == frozenset()


async def test_a_run_that_ends_while_a_tick_is_buffered_behind_it(
    scene: Scene, sally: ManualScheduler, ann: ManualWorker
) -> None:
    """The end is written and not committed when the tick comes: the tick starts a run then."""
    due = await due_now(scene, sally, overlap="buffer_one")
    await fire(sally, due)
    task = await ann.take(handlers=ORDER)
    again = await next_tick(scene, sally)
    session = await scene.session()
    ending = session.transaction()
    await ending.start()
    await session.commit("ann", finished(task))
    await scene.while_blocked(fire(sally, again), ending.commit)
    assert summary(await scene.store.list_buckets(NAME)) == [("started", None)] * 2
    assert await scene.value("select buffered from holdfast.schedules") == 0


async def test_an_end_waits_for_a_tick_that_is_buffered_and_tells_of_it(
    scene: Scene, sally: ManualScheduler, ann: ManualWorker
) -> None:
    """The tick is written and not committed when the run ends: the schedulers are told."""
    due = await due_now(scene, sally, overlap="buffer_one")
    await fire(sally, due)
    task = await ann.take(handlers=ORDER)
    again = await next_tick(scene, sally)
    session = await scene.session()
    firing = session.transaction()
    await firing.start()
    await session.call("fire_schedules", *arguments(again))
    other = await scene.session()
    answer = await scene.while_blocked(other.commit("ann", finished(task)), firing.commit)
    assert "schedules" in [topic for topic, _ in answer["notices"]]
    assert (await scene.store.start_buffered(run_ids=[task.run_id]))[0] == 1


async def test_a_run_that_ends_while_a_scheduler_looks_starts_the_tick_that_waits(
    scene: Scene, sally: ManualScheduler, ann: ManualWorker
) -> None:
    """Nobody waits for its end yet: it is the newest of a chain, or the server had crashed."""
    limit = "alter function holdfast.start_buffered set lock_timeout = '60s'"
    await scene.watcher.connection.execute(limit)
    due = await due_now(scene, sally, overlap="buffer_one")
    await fire(sally, due)
    task = await ann.take(handlers=ORDER)
    await fire(sally, await next_tick(scene, sally))
    await scene.watcher.connection.execute("delete from holdfast.waiters")
    session = await scene.session()
    ending = session.transaction()
    await ending.start()
    await session.commit("ann", finished(task))
    looking = scene.store.start_buffered(run_ids=[task.run_id])
    started, _ = await scene.while_blocked(looking, ending.commit)
    assert started == 1


async def test_two_schedulers_start_a_buffered_tick_once(
    scene: Scene, sally: ManualScheduler, ann: ManualWorker
) -> None:
    due = await due_now(scene, sally, overlap="buffer_one")
    await fire(sally, due)
    await fire(sally, await next_tick(scene, sally))
    await ann.finish(await ann.take(handlers=ORDER))
    session = await scene.session()
    async with session.transaction():
        [row] = await session.call("start_buffered", 10, None)
        assert row["started"] == 1
        assert (await scene.store.start_buffered())[0] == 0
    assert (await scene.store.start_buffered())[0] == 0
    assert await scene.value("select count(*) from holdfast.runs") == 2


async def test_a_held_run_delays_the_tick_that_stops_it_and_no_other(
    scene: Scene, sally: ManualScheduler
) -> None:
    """Another session holds a run's row: the call gives up, and others are fired without it."""
    due = await due_now(scene, sally, overlap="terminate_running")
    await fire(sally, due)
    bucket = (await scene.store.list_buckets(NAME))[0]
    again = await next_tick(scene, sally)
    session = await scene.session()
    async with session.transaction():
        await session.connection.execute(
            "select from holdfast.tasks where run_id = $1 for update", run_of(bucket)
        )
        with pytest.raises(TransientDatabaseError):
            await fire(sally, again)
        await scene.store.create_schedule(new_schedule("shop/other"))
        other = await sally.take("shop/other")
        assert await fire_at(sally, other) == {"shop/other"}
    assert await fire(sally, again) == {NAME}


async def fire_at(sally: ManualScheduler, due: DueSchedule) -> frozenset[str]:
    firing = Firing(
        name=due.name,
        revision=due.revision,
        expected=due.expected,
        position=due.position,
        next_tick_at=None,
        ticks=[due.position],
    )
    return (await sally.store.fire_schedules([firing])).moved


async def test_the_schedules_that_are_due_are_found_by_index(scene: Scene) -> None:
    """Also beside many that are not, in a table without statistics."""
    await scene.value(
        "select count(holdfast.create_schedule('shop/s' || n, 'shop/order',"
        " p_every_seconds => 60)) from generate_series(1, 2000) as n"
    )
    await scene.value(
        "update holdfast.schedules set look_at = look_at + interval '1 day' returning 1"
    )
    for query in (
        "select * from holdfast.schedules where look_at <= now() and look_at < 'infinity'"
        " order by look_at limit 10",
        "select name from holdfast.schedules where buffered > 0 and paused_at is null limit 1",
    ):
        plan = await scene.watcher.connection.fetch("explain " + query)
        assert "Index" in "\n".join(row[0] for row in plan)


async def test_a_bad_expression_from_sql_does_not_block_others(
    scene: Scene, sally: ManualScheduler
) -> None:
    """The target of a schedule may be one that no worker has ever had."""
    await scene.value(
        "select holdfast.create_schedule('nightly', 'shop/nobody', p_cron => 'at dawn')"
    )
    found = await scene.store.get_schedule("shop/nightly")
    assert found is not None
    assert found.target == RunTarget(name="shop/nobody")
    assert await scene.value("select holdfast.pause_schedule('nightly', 'wrong')") is True


async def test_two_codes_of_an_app_do_not_wait_for_each_other(scene: Scene) -> None:
    """One decides which code counts, while the other says that it is there."""
    older, newer = [new_schedule("shop/a")], [new_schedule("shop/b")]
    for code in (older, newer):
        await scene.store.ensure_schedules("shop", schedules_digest(code), code)
    await scene.value(
        "update holdfast.schedule_sets set heard_at = heard_at - interval '2 min' returning 1"
    )
    session = await scene.session()
    opened = session.connection.transaction()
    await opened.start()
    # As if another code of the app were about to become the current one.
    await session.connection.execute(
        "select pg_advisory_xact_lock(hashtext('holdfast.schedule_sets'), hashtext('shop'))"
    )

    async def decide() -> None:
        await session.connection.execute("update holdfast.schedule_sets set is_current = false")
        await opened.commit()

    ensured, _ = await scene.while_blocked(
        scene.store.ensure_schedules("shop", schedules_digest(older), older), decide
    )
    assert ensured.status == "written"
