"""Starts with rules that meet inside the database, held at the worst moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from contract.actors import ManualWorker, new_run
from scene import Scene, Session, finished

from holdfast.errors import RunActive, StartThrottled
from holdfast.store.postgres import start_statement
from holdfast.store.postgres.database import translated
from holdfast.types import DeclaredRules, NewRun, StartedRun, StartRules

QUEUE = StartRules(singleton_conflict="queue")
REFUSE = StartRules(singleton_conflict="refuse")
DEBOUNCE = StartRules(debounce_seconds=60.0)
THROTTLE = StartRules(throttle_limit=1, throttle_period_seconds=60.0, throttle_excess="refuse")


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        yield scene


async def declare(scene: Scene, rules: StartRules) -> None:
    await scene.store.declare_start_rules([DeclaredRules("order", 1, rules)])


async def start_one(scene: Scene, run: NewRun) -> StartedRun:
    [started], _ = await scene.store.start_runs([run])
    return started


async def start_within(session: Session, run: NewRun) -> Any:
    """Start a run in a session's own transaction."""
    statement = start_statement([run])
    [row] = await session.connection.fetch(statement.text, *statement.arguments)
    return row


async def test_start_waits_for_a_start_with_its_key_and_is_refused(scene: Scene) -> None:
    await declare(scene, REFUSE)
    session, first, second = await scene.session(), new_run(), new_run()
    opened = session.connection.transaction()
    await opened.start()
    await start_within(session, first)
    started = await scene.while_blocked(start_one(scene, second), opened.commit)
    assert started == StartedRun(first.run_id, False, "running", "singleton")


async def test_start_waits_for_a_start_with_its_key_that_is_rolled_back(scene: Scene) -> None:
    await declare(scene, REFUSE)
    session, second = await scene.session(), new_run()
    opened = session.connection.transaction()
    await opened.start()
    await start_within(session, new_run())
    started = await scene.while_blocked(start_one(scene, second), opened.rollback)
    assert started == StartedRun(second.run_id, True, "running")


async def test_start_sees_an_end_that_it_waited_for(scene: Scene, ann: ManualWorker) -> None:
    await declare(scene, REFUSE)
    await start_one(scene, new_run())
    task, session, second = await ann.take(), await scene.session(), new_run()
    opened = session.connection.transaction()
    await opened.start()
    await session.commit("ann", finished(task))
    started = await scene.while_blocked(start_one(scene, second), opened.commit)
    assert started == StartedRun(second.run_id, True, "running")


async def test_end_does_not_wait_for_a_start_and_the_key_is_freed_after_that(
    scene: Scene, ann: ManualWorker
) -> None:
    """The start is behind a run that ends meanwhile: nobody lets its run begin but maintenance."""
    await declare(scene, QUEUE)
    await start_one(scene, new_run())
    task, session, second = await ann.take(), await scene.session(), new_run()
    async with session.transaction():
        await start_within(session, second)
        await ann.finish(task)
        assert await scene.store.free_singletons() == (1, [])  # the key is locked: it stays
    assert await ann.claims() == []
    count, notices = await scene.store.free_singletons()
    assert (count, [notice.topic for notice in notices]) == (1, ["work"])
    assert await ann.claims() == [second.run_id]
    assert await scene.store.free_singletons() == (0, [])


async def test_run_that_is_locked_begins_when_maintenance_finds_it_free(
    scene: Scene, ann: ManualWorker
) -> None:
    await declare(scene, QUEUE)
    first, second, third = new_run(), new_run(), new_run()
    for run in (first, second, third):
        await start_one(scene, run)
    task, session = await ann.take(), await scene.session()
    async with session.transaction():
        await session.call("pause_runs", [second.run_id], None)
        await ann.finish(task)
        assert await ann.claims() == []
    await scene.store.free_singletons()
    await scene.store.resume_runs([second.run_id])
    assert await ann.claims() == [second.run_id]  # its place in line is kept


async def test_racing_debounced_starts_lead_to_the_run_of_the_first(scene: Scene) -> None:
    await declare(scene, DEBOUNCE)
    session, first, second = await scene.session(), new_run(input="1"), new_run(input="2")
    opened = session.connection.transaction()
    await opened.start()
    await start_within(session, first)
    started = await scene.while_blocked(start_one(scene, second), opened.commit)
    assert started == StartedRun(first.run_id, False, "running")
    assert (await scene.store.get_runs([first.run_id]))[first.run_id].input == "2"


async def test_start_does_not_wait_for_a_debounced_run_that_has_begun(
    scene: Scene, ann: ManualWorker
) -> None:
    """That run may be starting another one with its key, and would wait for this start."""
    await declare(scene, StartRules(debounce_seconds=0.001))
    first, second = new_run(), new_run()
    await start_one(scene, first)
    await scene.value("update holdfast.start_keys set expires_at = 'infinity' returning 1")
    assert (await ann.take()).run_id == first.run_id
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [first.run_id])
        async with asyncio.timeout(20):
            assert (await start_one(scene, second)).created


async def test_slot_of_a_start_that_is_rolled_back_is_free(scene: Scene) -> None:
    await declare(scene, THROTTLE)
    session, second = await scene.session(), new_run()
    opened = session.connection.transaction()
    await opened.start()
    await start_within(session, new_run())
    started = await scene.while_blocked(start_one(scene, second), opened.rollback)
    assert started.created
    assert (await start_one(scene, new_run())).refused == "throttle"


async def test_sql_raises_what_the_rules_refuse(scene: Scene) -> None:
    """S3. A trigger is told by an error: it cannot look at an outcome."""
    await declare(scene, REFUSE)
    text = "select holdfast.start_run('x/order', '{}')"
    rules = [DeclaredRules("x/order", 1, REFUSE), DeclaredRules("x/tick", 1, THROTTLE)]
    await scene.store.declare_start_rules(rules)
    first: UUID = await scene.value(text)
    with pytest.raises(RunActive) as active, translated():
        await scene.value(text)
    assert active.value.run_id == first
    await scene.value("select holdfast.start_run('x/tick')")
    with pytest.raises(StartThrottled), translated():
        await scene.value("select holdfast.start_run('x/tick')")


@pytest.mark.parametrize(
    "rules",
    [
        {"singleton_conflict": "explode"},
        {"singleton_conflict": "refuse", "singleton_key": "customer"},
        {"debounce_seconds": 0},
        {"debounce_seconds": 5, "debounce_max_wait_seconds": 4},
        {"debounce_seconds": 5, "singleton_conflict": "queue", "singleton_key": "input.a"},
        {"throttle_limit": 0, "throttle_period_seconds": 1, "throttle_excess": "delay"},
        {"throttle_limit": 1},
        {"throttle_limit": "many"},
        ["refuse"],
    ],
)
async def test_rules_that_cannot_work_are_refused(scene: Scene, rules: object) -> None:
    """22023, and nothing is written."""
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await scene.watcher.call("declare_start_rules", ["x/order"], [1], [json.dumps(rules)])
    assert await scene.store.list_start_rules() == []
    assert await scene.store.start_wait(uuid4()) is None


async def test_a_start_that_began_earlier_gets_no_slot_before_the_one_that_was_first(
    scene: Scene,
) -> None:
    """F30. Slots of a key are in the order of their starts, whatever the statements' moments."""
    rules = StartRules(throttle_limit=2, throttle_period_seconds=60.0, throttle_excess="delay")
    await declare(scene, rules)
    began = [5, 0, 1]  # seconds: the second transaction had begun before the first
    runs = [new_run() for _ in began]
    for seconds, run in zip(began, runs, strict=True):
        session = await scene.session()
        at = f"2030-01-01 00:00:{seconds:02}+00"
        await session.connection.execute("select set_config('holdfast.fake_now', $1, false)", at)
        await start_within(session, run)
    found = await scene.store.get_runs([run.run_id for run in runs])
    due = [found[run.run_id].wait.visible_at for run in runs]  # type: ignore[union-attr]
    assert [at - due[0] for at in due] == [0, 0, 60_000_000]
