"""Claims under limits that meet inside the database, and what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from contract.actors import ManualWorker, start
from msgspec.structs import replace
from scene import DEADLINE_SECONDS, Scene

from holdfast.types import ClaimedTask, Claims, LimitRule
from holdfast.worker import WorkerOptions
from holdfast.worker import claimer as claimer_module
from holdfast.worker.claimer import Claimer
from holdfast.worker.clock import EngineClock

BUY = ("shop/buy@1",)
BY_CUSTOMER = LimitRule(
    scope="workflow", name="shop/buy", kind="concurrency", most=1, key="input.customer"
)
WAITING = """
    with numbers as (
        select gen_random_uuid() as run_id, n, json_build_object('customer', {customer}) as input
        from generate_series(1, {count}) as n
    ), runs as (
        insert into holdfast.runs (run_id, name, version, queue, priority, input, created_at)
        select run_id, 'shop/buy', 1, 'default', 2, input, holdfast.now()
        from numbers
    ), events as (
        insert into holdfast.events (run_id, idx, event_type, at)
        select run_id, 0, 'WorkflowStarted', holdfast.now() from numbers
    )
    insert into holdfast.tasks (
        run_id, queue, handler, priority, visible_at, limited_at, limit_keys)
    select run_id, 'default', 'shop/buy@1', 2, 'infinity',
        holdfast.now() - interval '1 min' + n * interval '1 us',
        holdfast._limit_keys('default', 'shop/buy@1', '', 0, input)
    from numbers
"""
PAGES = """
    select holdfast._pages_of_tasks() + coalesce(
        pg_stat_get_xact_blocks_fetched('holdfast.limit_holders'::regclass), 0)
"""
READ = """
    select coalesce(sum(seq_tup_read), 0)::int from pg_stat_xact_user_tables
    where schemaname = 'holdfast' and relname in ('tasks', 'runs', 'limit_holders')
"""


async def buy(scene: Scene, customer: str) -> UUID:
    """Start a run for a customer."""
    return await start(scene.store, name="shop/buy", input=f'{{"customer": "{customer}"}}')


@pytest.mark.parametrize("commits", [True, False])
async def test_claims_under_one_limit_do_not_overlap(
    scene: Scene, ann: ManualWorker, commits: bool
) -> None:
    """The second claim finds the limit locked, does not wait, and asks again soon."""
    await scene.store.set_limit(BY_CUSTOMER)
    first, second = await buy(scene, "a"), await buy(scene, "a")
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    taken = await session.call("claim_tasks", "bob", ["default"], list(BUY), 10, 30.0)
    assert len(taken) == 2  # a run, and the row about the claim
    async with asyncio.timeout(DEADLINE_SECONDS):
        answer = await ann.claim(handlers=BUY)
    assert (answer.tasks, answer.limited) == ([], True)
    assert answer.next_due_at is not None
    assert answer.next_due_at - answer.now == 5_000
    await (transaction.commit() if commits else transaction.rollback())
    claimed = await ann.claims(handlers=BUY)
    assert len(claimed) == (0 if commits else 1)
    assert {*claimed} <= {first, second}


async def test_a_change_of_a_limit_that_is_not_committed_holds_up_only_its_tasks(
    scene: Scene, ann: ManualWorker
) -> None:
    await scene.store.set_limit(BY_CUSTOMER)
    await buy(scene, "a")
    other = await start(scene.store)
    session = await scene.session()
    async with session.transaction(), asyncio.timeout(DEADLINE_SECONDS):
        await session.call(
            "set_limit", "workflow", "shop/buy", "concurrency", 2, None, "input.customer"
        )
        assert await ann.claims(handlers=(*BUY, "order@1")) == [other]
    assert len(await ann.claims(handlers=BUY)) == 1


async def test_a_start_in_an_open_transaction_stops_nobody(scene: Scene, ann: ManualWorker) -> None:
    """It writes no row that others need: starts and claims of the same key pass."""
    await scene.store.set_limit(BY_CUSTOMER)
    session = await scene.session()
    async with session.transaction(), asyncio.timeout(DEADLINE_SECONDS):
        await session.call("start_run", "shop/buy", '{"customer": "a"}')
        run_id = await buy(scene, "a")
        assert await ann.claims(handlers=BUY) == [run_id]
    assert await ann.claims(handlers=BUY) == []


async def test_a_task_that_is_locked_does_not_keep_others_from_its_place(
    scene: Scene, ann: ManualWorker
) -> None:
    """A session that holds the first run of a group open stops only that run."""
    await scene.store.set_limit(BY_CUSTOMER)
    first, second = await buy(scene, "a"), await buy(scene, "a")
    session = await scene.session()
    async with session.transaction(), asyncio.timeout(DEADLINE_SECONDS):
        await session.connection.execute(
            "select from holdfast.tasks where run_id = $1 for update", first
        )
        assert await ann.claims(handlers=BUY) == [second]
    assert await ann.claims(handlers=BUY) == []


async def test_a_claim_does_not_read_what_waits_for_one_key(
    scene: Scene, ann: ManualWorker
) -> None:
    """Plans that were made on empty tables stay right beside 20,000 runs of a key that is full.

    To read them all, a claim would read at least a page for each.
    """
    await scene.store.set_limit(BY_CUSTOMER)
    connection = scene.watcher.connection
    await connection.execute("vacuum analyze")
    claim = ("claim_tasks", "ann", ["default"], list(BUY), 10, 30.0)
    for _ in range(8):
        await scene.watcher.call(*claim)
    await connection.execute(WAITING.format(count=20_000, customer="'much'"))
    assert len(await scene.watcher.call(*claim)) == 2
    small = await buy(scene, "small")
    async with connection.transaction():
        before = await connection.fetchval(PAGES), await connection.fetchval(READ)
        task, _ = await scene.watcher.call(*claim)
        pages = await connection.fetchval(PAGES) - before[0]
        rows = await connection.fetchval(READ) - before[1]
    assert (task["run_id"], rows, pages < 1_000) == (small, 0, True), pages


async def test_a_claim_reads_of_each_key_what_it_may_take(scene: Scene, ann: ManualWorker) -> None:
    """Plans that were made on empty tables find the tasks of a key among those of 5,000 keys."""
    await scene.store.set_limit(BY_CUSTOMER)
    connection = scene.watcher.connection
    for number in range(200):
        await buy(scene, f"first-{number}")
    claim = ("claim_tasks", "ann", ["default"], list(BUY), 50, 30.0)
    await scene.watcher.call(*claim)
    await connection.execute(WAITING.format(count=5_000, customer="n"))
    async with connection.transaction():
        before = await connection.fetchval(PAGES)
        answer = await scene.watcher.call(*claim)
        pages = await connection.fetchval(PAGES) - before
    assert (len(answer), pages < 4_000) == (51, True), pages


async def test_a_worker_claims_again_at_once_after_a_claim_that_changes_what_tasks_wait_for(
    scene: Scene, ann: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F30. Such a claim takes nothing; a poll would come an hour later."""
    monkeypatch.setattr(claimer_module, "_FIRST_POLL_SECONDS", 3600)
    for scope, name in (("queue", "default"), ("workflow", "shop/buy")):
        await scene.store.set_limit(replace(BY_CUSTOMER, scope=scope, name=name, key=""))
        if scope == "queue":
            await buy(scene, "ann")
            waiting = await buy(scene, "ann")
            task = await ann.first(handlers=BUY)
            assert await ann.claims(handlers=BUY) == []
    await scene.store.terminate_runs([task.run_id])
    claimed: asyncio.Queue[ClaimedTask] = asyncio.Queue()
    answers: list[Claims] = []

    def accept(tasks: Sequence[ClaimedTask]) -> None:
        for each in tasks:
            claimed.put_nowait(each)

    claim = scene.store.claim_tasks

    async def recorded(*args: Any, **options: Any) -> Claims:
        answers.append(await claim(*args, **options))
        return answers[-1]

    monkeypatch.setattr(scene.store, "claim_tasks", recorded)
    claimer = Claimer(
        scene.store,
        ManualWorker(scene.store, "bob").info(handlers=BUY),
        WorkerOptions(lease_seconds=60, poll_seconds=3600),
        EngineClock(),
        lambda notices: None,
        lambda deadline: None,
    )
    await claimer.start({"workflow": accept})
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await claimed.get()).run_id == waiting
    finally:
        await claimer.stop()
    assert answers[0].tasks == []
    assert answers[0].next_due_at == answers[0].now
