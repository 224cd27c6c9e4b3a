"""Wake-ups that a transaction sends itself, so that who waits is not kept waiting for another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from contract.actors import ManualWorker, new_run, signal, told
from contract.commands import RESIZE, activity, ordered
from scene import Scene

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.listening import channel
from holdfast.types import Notice

OTHERS_TELL = "select holdfast._tell('holdfast', array[array['work', 'mail']])"


class Telling(PostgresStore):
    """A store that tells, as those of clients and workers do."""

    def __init__(self, url: str, **options: int) -> None:
        super().__init__(url, **options, tells=True)


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url, kind=Telling) as scene:
        yield scene


async def sign_on(scene: Scene) -> ManualWorker:
    worker = ManualWorker(scene.store, "ann")
    await scene.store.heartbeat(worker.info(), [], lease_seconds=30)
    return worker


async def listen(scene: Scene, topic: str) -> asyncio.Queue[str]:
    heard: asyncio.Queue[str] = asyncio.Queue()
    await scene.store.listen(topic, heard.put_nowait)
    return heard


async def heard_until_marked(scene: Scene, topic: str, heard: asyncio.Queue[str]) -> list[str]:
    """Return all that a topic was told by now."""
    await scene.store.notify([Notice(topic, "marked")])
    payloads: list[str] = []
    async with asyncio.timeout(60):
        while (payload := await heard.get()) != "marked":
            payloads.append(payload)
    return payloads


async def test_a_start_wakes_workers_itself(scene: Scene) -> None:
    await sign_on(scene)
    heard = await listen(scene, "work")
    _, notices = await scene.store.start_runs([new_run()])
    assert notices == []
    assert await heard_until_marked(scene, "work", heard) == ["default"]


async def test_a_change_of_a_limit_wakes_the_workers_of_what_waits_for_it(scene: Scene) -> None:
    """A person at psql sends no wake-ups."""
    worker = await sign_on(scene)
    limit = ("queue", "mail", "concurrency")
    await scene.watcher.call("set_limit", *limit, 1)
    for queue in ("mail", "mail", "default"):
        await scene.store.start_runs([new_run(queue=queue)])
    assert len((await worker.claim(queues=["mail"])).tasks) == 1
    heard = await listen(scene, "work")
    await scene.watcher.call("set_limit", *limit, 1)
    await scene.watcher.call("set_limit", "queue", "default", "concurrency", 1)
    assert await heard_until_marked(scene, "work", heard) == []
    for change in (("set_limit", *limit, 2), ("remove_limit", *limit)):
        await scene.watcher.call(*change)
        assert await heard_until_marked(scene, "work", heard) == ["mail"]
    declared = json.dumps(
        [{"scope": "queue", "name": "mail", "kind": "ageing", "period_seconds": 9}]
    )
    for limits in (declared, "[]"):
        await scene.watcher.call("declare_limits", "shop", limits)
        assert await heard_until_marked(scene, "work", heard) == ["mail"]


async def test_a_start_that_no_worker_serves_wakes_none(scene: Scene) -> None:
    """One that signs on later claims behind that, and finds the run."""
    await sign_on(scene)
    heard = await listen(scene, "work")
    [started], notices = await scene.store.start_runs([new_run(queue="mail")])
    assert notices == []
    assert await heard_until_marked(scene, "work", heard) == []
    worker = ManualWorker(scene.store, "ben")
    assert (await worker.take(queues=["mail"])).run_id == started.run_id


async def test_a_start_leaves_the_wake_up_to_its_caller_while_others_tell(scene: Scene) -> None:
    """It waits for nobody: the other transaction stays open for as long as it likes."""
    await sign_on(scene)
    other = await scene.session()
    async with other.transaction():
        await other.connection.execute(OTHERS_TELL)
        async with asyncio.timeout(60):
            _, notices = await scene.store.start_runs([new_run()])
    assert notices == [Notice("work", "default")]


async def test_many_starts_leave_the_wake_up_to_their_caller(scene: Scene) -> None:
    await sign_on(scene)
    _, notices = await scene.store.start_runs([new_run(), new_run()])
    assert notices == [Notice("work", "default")]


async def test_a_start_that_finds_a_run_wakes_no_worker(scene: Scene) -> None:
    await sign_on(scene)
    run = new_run()
    await scene.store.start_runs([run])
    heard = await listen(scene, "work")
    _, notices = await scene.store.start_runs([run])
    assert notices == []
    assert await heard_until_marked(scene, "work", heard) == []


async def test_a_signal_and_an_end_are_told_with_their_transactions(scene: Scene) -> None:
    worker = await sign_on(scene)
    [started], _ = await scene.store.start_runs([new_run(waiter="client/1")])
    task = await worker.take()
    mine, client = await listen(scene, "worker/ann"), await listen(scene, "client/1")
    await signal(scene.store, task.run_id, "paid")
    assert await heard_until_marked(scene, "worker/ann", mine) == [str(started.run_id)]
    finished = await worker.finish(task, expected=2)
    assert finished.notices == []
    assert await heard_until_marked(scene, "client/1", client) == [
        told("client/1", started.run_id).payload
    ]


async def test_the_end_of_an_activity_is_told_with_its_transaction(scene: Scene) -> None:
    worker = await sign_on(scene)
    await ordered(scene.store, worker, activity())
    task = await worker.take(handlers=RESIZE)
    heard = await listen(scene, "work")
    ended = await worker.end(task, result="7")
    assert (ended.outcomes, ended.notices) == (["recorded"], [])
    assert await heard_until_marked(scene, "work", heard) == ["default"]


async def test_an_end_leaves_the_wake_up_to_its_caller_while_others_tell(scene: Scene) -> None:
    worker = await sign_on(scene)
    await ordered(scene.store, worker, activity())
    task = await worker.take(handlers=RESIZE)
    other = await scene.session()
    async with other.transaction():
        await other.connection.execute(OTHERS_TELL)
        async with asyncio.timeout(60):
            ended = await worker.end(task, result="7")
    assert ended.notices == [Notice("work", "default")]


async def test_the_deletion_of_a_flow_tells_with_its_transaction_unless_others_tell(
    scene: Scene,
) -> None:
    """The caller is left with what the transaction could not tell."""
    other = await scene.session()
    for others_tell in (False, True):
        await scene.value("select (holdfast.create_flow('trip')).flow_slug")
        await scene.value("select (holdfast.add_step('trip', 'a')).step_slug")
        run = new_run(name="trip", version=0, waiter="client/1")
        await scene.store.start_flows([run])
        heard = await listen(scene, "client/1")
        async with other.transaction(), asyncio.timeout(60):
            if others_tell:
                await other.connection.execute(OTHERS_TELL)
            deleted = await scene.store.delete_flow("trip", terminate=True)
        notice = Notice("client/1", str(run.run_id))
        assert list(deleted.notices) == ([notice] if others_tell else [])
        payloads = await heard_until_marked(scene, "client/1", heard)
        assert payloads == ([] if others_tell else [notice.payload])


async def test_a_rolled_back_start_wakes_no_worker(scene: Scene) -> None:
    await sign_on(scene)
    heard = await listen(scene, "work")
    other = await scene.session()
    transaction = other.transaction()
    await transaction.start()
    [row] = await other.connection.fetch(
        "select told from holdfast.start_runs(array[holdfast.new_run_id()], array['shop/order'],"
        " p_tell => 'holdfast')"
    )
    await transaction.rollback()
    assert row["told"]
    assert await heard_until_marked(scene, "work", heard) == []


@pytest.mark.parametrize("topic", ["work", "worker/" + "w" * 47, "worker/" + "w" * 48, "tür"])
async def test_sql_names_channels_as_python_does(scene: Scene, topic: str) -> None:
    named = await scene.value("select holdfast._channel('holdfast', $1)", topic)
    assert named == channel("holdfast", topic)


KINDS = "array[array['work', 'a'], array['starts', 'b'], array['activities', 'c']]"


async def test_who_sends_hints_is_left_what_any_worker_may_take(scene: Scene) -> None:
    heard = await listen(scene, "work")
    connection = scene.watcher.connection
    left = await connection.fetchval(f"select holdfast._tell('holdfast:hints', {KINDS})")
    assert left == [["starts", "b"], ["activities", "c"]]
    assert await heard_until_marked(scene, "work", heard) == ["a"]
    left = await connection.fetchval("select holdfast._tell('holdfast:hints', '{{starts,b}}')")
    assert left == [["starts", "b"]]


async def test_for_all_others_it_is_work(scene: Scene) -> None:
    """Also for a queue that has the name of a topic."""
    heard = await listen(scene, "work")
    connection = scene.watcher.connection
    assert await connection.fetchval(f"select holdfast._tell('holdfast', {KINDS})") is None
    assert await heard_until_marked(scene, "work", heard) == ["a", "b", "c"]
    left = await connection.fetchval(f"select holdfast._tell(null, {KINDS})")
    assert left == [["work", "a"], ["work", "b"], ["work", "c"]]
    left = await connection.fetchval(
        "select holdfast._tell(null, '{{work,starts},{x,activities}}')"
    )
    assert left == [["work", "starts"], ["x", "activities"]]


async def test_what_is_left_while_others_tell_is_left_with_the_hints(scene: Scene) -> None:
    other = await scene.session()
    async with other.transaction():
        await other.connection.execute(OTHERS_TELL)
        connection = scene.watcher.connection
        left = await connection.fetchval(f"select holdfast._tell('holdfast:hints', {KINDS})")
    assert left == [["starts", "b"], ["activities", "c"], ["work", "a"]]
