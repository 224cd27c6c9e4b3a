"""Limits: how many tasks run at once or begin in a period, and in which order."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, Literal
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.definitions.limits import Limit, of_signature
from holdfast.definitions.signatures import Signature
from holdfast.errors import InvalidInput
from holdfast.insight.limits import check_limits, waiting_text
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Finish, FlowShape, LimitRule, NewRun, Notice, StepShape

from .actors import SECOND, ManualWorker, get, new_run, start
from .commands import activity, command, ordered

BUY = ("shop/buy@1",)


def queue_limit(most: int = 2, **fields: Any) -> LimitRule:
    """Return a limit of tasks at once in the queue `default`."""
    rule: dict[str, Any] = {
        "scope": "queue",
        "name": "default",
        "kind": "concurrency",
        "most": most,
        **fields,
    }
    return LimitRule(**rule)


def workflow_limit(most: int = 1, **fields: Any) -> LimitRule:
    """Return a limit of runs at once of the workflow `shop/buy`."""
    return queue_limit(most, scope="workflow", name="shop/buy", **fields)


def rate(most: int = 2, period: float = 10, **fields: Any) -> LimitRule:
    """Return a rate of the queue `default`."""
    return queue_limit(most, kind="rate", period_seconds=period, **fields)


async def buy(store: Store, customer: object = "ann", **fields: Any) -> UUID:
    """Start a run of `shop/buy` for a customer."""
    given = json.dumps({"customer": customer})
    return await start(store, name="shop/buy", input=given, **fields)


async def later(store: Store, clock: Clock, **fields: Any) -> UUID:
    """Start a run, later than those before it."""
    await clock.advance(1)
    return await start(store, **fields)


async def buys(worker: ManualWorker, limit: int = 100) -> list[ClaimedTask]:
    """Claim runs of `shop/buy`."""
    return (await worker.claim(limit, handlers=BUY)).tasks


async def test_a_queue_runs_no_more_than_its_limit(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Any number of workers, and the next one when one has ended."""
    run_ids = [await later(store, clock) for _ in range(4)]
    assert await store.set_limit(queue_limit(2)) is True
    first, second = (await ann.claim()).tasks
    assert [first.run_id, second.run_id] == run_ids[:2]
    answer = await bob.claim()
    assert (answer.tasks, answer.next_due_at) == ([], None)
    await ann.finish(first)
    assert await bob.claims() == [run_ids[2]]
    assert await bob.claims() == []


async def test_runs_started_after_the_limit_wait_in_the_order_of_their_starts(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    run_ids = [await later(store, clock) for _ in range(3)]
    for run_id in run_ids:
        run = await get(store, run_id)
        assert run.wait is not None
        assert (run.state, run.wait.visible_at) == ("queued", run.created_at)
    for run_id in run_ids:
        task = await ann.take()
        assert (task.run_id, task.input) == (run_id, "null")
        await ann.finish(task)


async def test_a_limit_of_turns_is_free_while_a_run_waits(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A suspended run executes nothing. It waits for the limit again when it wakes."""
    await store.set_limit(queue_limit(1))
    sleeper, other = await later(store, clock), await later(store, clock)
    task = await ann.take()
    assert task.run_id == sleeper
    await ann.suspend(task, until=await store.now() + SECOND)
    busy = await ann.take()
    assert busy.run_id == other
    await clock.advance(2)
    assert await ann.claims() == []
    await ann.finish(busy)
    assert (await ann.take()).run_id == sleeper


async def test_a_limit_of_runs_is_held_until_the_run_ends(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What began wakes without waiting for the limit: it holds its place."""
    await store.set_limit(workflow_limit(1))
    sleeper = await buy(store)
    await clock.advance(1)
    other = await buy(store)
    [task] = await buys(ann)
    assert task.run_id == sleeper
    await ann.suspend(task, until=await store.now() + SECOND)
    assert await buys(ann) == []
    await clock.advance(2)
    [task] = await buys(ann)
    assert task.run_id == sleeper
    await ann.finish(task)
    assert [task.run_id for task in await buys(ann)] == [other]


async def test_each_key_has_a_limit_of_its_own(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The key is read from the input; runs without it share one."""
    await store.set_limit(workflow_limit(1, key="input.customer"))
    customers = ("a", "b", 7, None, 1.5)
    first = [await buy(store, customer) for customer in customers]
    await clock.advance(1)
    for customer in customers:
        await buy(store, customer)
    taken = await buys(ann)
    assert sorted(task.run_id for task in taken) == sorted(first)
    assert await buys(ann) == []
    await ann.finish(taken[0])
    assert len(await buys(ann)) == 1


async def test_each_key_is_found_however_many_tasks_wait_for_others(
    store: Store, ann: ManualWorker
) -> None:
    """Small groups and large ones side by side: a claim reads them in batches."""
    await store.set_limit(workflow_limit(1, key="input.customer"))
    sizes = [20 if n % 5 == 0 else 1 for n in range(30)]
    named = [
        json.dumps({"customer": f"{n:02}"}) for n, size in enumerate(sizes) for _ in range(size)
    ]
    await store.start_runs([NewRun(run_id=uuid4(), name="shop/buy", input=each) for each in named])
    taken: list[ClaimedTask] = []
    while tasks := await buys(ann, limit=7):
        taken += tasks
    assert sorted(task.input or "" for task in taken) == sorted(set(named))
    for task in taken:
        await ann.finish(task)
    again = {task.input for _ in range(3) for task in await buys(ann, limit=7)}
    assert len(again) == 6


async def test_all_limits_of_a_task_must_allow_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A queue's, a workflow's, and one for each key."""
    await store.set_limit(queue_limit(3))
    await store.set_limit(workflow_limit(2))
    await store.set_limit(workflow_limit(1, key="input.customer"))
    for customer in "aabbc":
        await buy(store, customer)
    other = await later(store, clock)
    handlers = (*BUY, "order@1")
    taken = (await ann.claim(handlers=handlers)).tasks
    taken += (await ann.claim(handlers=handlers)).tasks
    kinds = [task.name for task in taken]
    assert (kinds.count("shop/buy"), other in [task.run_id for task in taken]) == (2, True)
    inputs = [task.input for task in taken if task.input != "null"]
    assert len(set(inputs)) == 2


async def test_a_lost_worker_keeps_nothing(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The next worker takes the task over with its place; the limit is not exceeded."""
    await store.set_limit(queue_limit(1))
    lost, other = await later(store, clock), await later(store, clock)
    task = await ann.take(lease_seconds=10)
    assert await bob.claims() == []
    await clock.advance(20)
    again = await bob.take()
    assert (task.run_id, again.run_id, again.lease_no) == (lost, lost, 2)
    assert await bob.claims() == []
    await bob.finish(again)
    assert await bob.claims() == [other]


@pytest.mark.parametrize("change", ["terminate", "time out", "cancel"])
async def test_workers_are_told_of_a_place_that_an_end_from_outside_frees(
    store: Store, clock: Clock, ann: ManualWorker, change: str
) -> None:
    """No worker claims by itself then: the run that waits would begin at the next poll."""
    await store.set_limit(workflow_limit(1))
    first = await buy(store, timeout_seconds=30, queue="fast")
    await clock.advance(1)
    waiting = await buy(store, queue="slow")
    [task] = (await ann.claim(queues=("fast",), handlers=BUY)).tasks
    await ann.suspend(task)
    assert (await ann.claim(queues=("slow",), handlers=BUY)).tasks == []
    if change == "terminate":
        notices = (await store.terminate_runs([first])).notices
    elif change == "time out":
        await clock.advance(60)
        _, _, notices = await store.time_out_runs()
    else:
        await store.cancel_runs([waiting])
        last = await buy(store, queue="slow")
        notices = (await store.terminate_runs([first])).notices
        waiting = last
    assert Notice("work", "slow") in notices
    [task] = (await ann.claim(queues=("slow",), handlers=BUY)).tasks
    assert task.run_id == waiting


async def test_an_end_from_outside_wakes_nobody_if_nothing_waits_for_its_place(
    store: Store, ann: ManualWorker
) -> None:
    await store.set_limit(workflow_limit(1))
    first = await buy(store)
    await ann.take(handlers=BUY)
    notices = (await store.terminate_runs([first])).notices
    assert [notice for notice in notices if notice.topic == "work"] == []


async def test_a_rate_lets_tasks_begin_although_the_clock_has_gone_back(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What began in what is now the future would fill the rate for hours."""
    await store.set_limit(rate(1, 60))
    await start(store)
    assert len(await ann.claims()) == 1
    await clock.advance(-3600)
    await start(store)
    assert len(await ann.claims()) == 1
    await start(store)
    assert await ann.claims() == []


async def test_a_limit_of_runs_of_a_flow_is_refused(store: Store) -> None:
    """No worker claims a run of a flow, so the limit would let all begin: its steps are limited."""
    await store.ensure_flow(FlowShape(name="shop/trip", steps=(StepShape(slug="a"),)), "hash")

    def trips(holds: Literal["turn", "run"] | None) -> LimitRule:
        return queue_limit(1, scope="workflow", name="shop/trip", holds=holds)

    for holds in (None, "run"):
        with pytest.raises(InvalidInput, match="shop/trip is a flow"):
            await store.set_limit(trips(holds))
        with pytest.raises(InvalidInput, match="shop/trip is a flow"):
            await store.declare_limits("shop", [trips(holds)])
    assert await store.list_limits() == []
    await store.start_flows([NewRun(run_id=uuid4(), name="shop/trip") for _ in range(2)])
    await store.set_limit(trips("turn"))
    assert len((await ManualWorker(store, "ann").claim(handlers=("shop/trip@1",))).tasks) == 1


@pytest.mark.parametrize("holds", ["turn", "run"])
async def test_a_run_that_is_terminated_frees_its_place(
    store: Store, clock: Clock, ann: ManualWorker, holds: Any
) -> None:
    await store.set_limit(queue_limit(1, holds=holds))
    first, second, third = [await later(store, clock) for _ in range(3)]
    assert await ann.claims() == [first]
    await store.terminate_runs([first, second])
    assert await ann.claims() == [third]


async def test_a_task_that_is_given_back_waits_again(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    first, second = await later(store, clock), await later(store, clock)
    task = await ann.take()
    await clock.advance(1)
    await ann.release(task)
    task = await bob.take()
    assert (task.run_id, await ann.claims()) == (second, [])
    await bob.finish(task)
    assert await ann.claims() == [first]


async def test_a_paused_run_lets_others_pass(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await store.set_limit(queue_limit(1))
    first, second = await later(store, clock), await later(store, clock)
    await store.pause_runs([first])
    task = await ann.take()
    assert task.run_id == second
    await store.resume_runs([first])
    assert await ann.claims() == []
    await ann.finish(task)
    assert await ann.claims() == [first]


async def test_a_delayed_run_waits_for_its_time_first(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    run_id = await start(store, delay_seconds=5.0)
    answer = await ann.claim()
    assert (answer.tasks, answer.next_due_at) == ([], await store.now() + 5 * SECOND)
    await clock.advance(5)
    assert await ann.claims() == [run_id]


async def test_activities_have_limits_too(store: Store, clock: Clock, ann: ManualWorker) -> None:
    """Each attempt counts while a worker executes it; the key is one of the arguments."""

    def resize(picture: str, width: int = 1, height: int = 1) -> None: ...

    rule = Limit(1, key="input.picture").rule("activity", "shop/resize")
    signature = Signature(resize, "resize")
    await store.set_limit(of_signature(rule, signature))
    calls = [
        activity(key, activity_name="shop/resize", input=json.loads(signature.encode(args, named)))
        for key, args, named in (
            ("a1", ("a",), {}),
            ("a2", ("a",), {"height": 2}),
            ("a3", (), {"picture": "a"}),
            ("b1", ("b",), {"height": 2}),
        )
    ]
    await ordered(store, ann, *calls)
    taken = (await ann.claim(handlers=("shop/resize@0",))).tasks
    assert sorted(task.key[0] for task in taken) == ["a", "b"]
    [first] = [task for task in taken if task.key.startswith("a")]
    await ann.end(first, result="1")
    assert len((await ann.claim(handlers=("shop/resize@0",))).tasks) == 1


async def test_a_rate_lets_so_many_begin_in_any_period(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Not so many in each of two periods that touch: they would begin together."""
    await store.set_limit(rate(2, 10))
    run_ids = [await start(store) for _ in range(5)]
    began_at = await store.now()
    first = await ann.claim(1)
    await clock.advance(6)
    second = await ann.claim()
    assert (len(first.tasks), len(second.tasks)) == (1, 1)
    assert second.next_due_at is not None
    answer = await ann.claim()
    assert (answer.tasks, answer.next_due_at) == ([], began_at + 10 * SECOND)
    await clock.advance(4)
    third = await ann.claim()
    assert len(third.tasks) == 1
    await clock.advance(5.9)
    assert await ann.claims() == []
    await clock.advance(0.1)
    assert len(await ann.claims()) == 1
    assert len(run_ids) == 5


async def test_what_begins_in_a_hundredth_of_the_period_counts_as_one_moment(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The later one: what comes next may begin later than it could, never earlier."""
    await store.set_limit(rate(2, 10))
    await start(store)
    assert len(await ann.claims()) == 1
    await clock.advance(0.05)
    last_at = await store.now()
    await start(store)
    assert len(await ann.claims()) == 1
    await start(store)
    assert (await ann.claim()).next_due_at == last_at + 10 * SECOND


async def test_a_rate_counts_a_run_once(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await store.set_limit(rate(1, 10))
    await start(store)
    task = await ann.take()
    await ann.suspend(task, until=await store.now() + SECOND)
    await clock.advance(1)
    assert (await ann.take()).run_id == task.run_id


async def test_a_smooth_rate_begins_at_even_distances(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(rate(5, 10, smooth=True))
    for _ in range(4):
        await start(store)
    for _ in range(3):
        answer = await ann.claim()
        assert len(answer.tasks) == 1
        answer = await ann.claim()
        assert (answer.tasks, answer.next_due_at) == ([], await store.now() + 2 * SECOND)
        await clock.advance(2)


async def test_each_key_has_a_rate_of_its_own(store: Store, ann: ManualWorker) -> None:
    await store.set_limit(rate(1, 10, key="input.customer", scope="workflow", name="shop/buy"))
    for customer in "aab":
        await buy(store, customer)
    assert len(await buys(ann)) == 2


async def test_the_keys_of_a_fair_queue_take_turns(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """One with much work does not delay one with little."""
    fair = LimitRule(scope="queue", name="default", kind="fairness", key="input.customer")
    await store.set_limit(fair)
    for _ in range(6):
        await buy(store, "much")
        await clock.advance(1)
    little = await buy(store, "little")
    taken = await buys(ann, 2)
    assert little in [task.run_id for task in taken]
    for customer in ("x", "y"):
        await buy(store, customer)
    inputs = [json.loads((await buys(ann, 1))[0].input or "")["customer"] for _ in range(3)]
    assert sorted(inputs) == ["much", "x", "y"]


async def test_groups_that_were_free_while_others_were_in_turn_keep_their_place(
    store: Store, ann: ManualWorker
) -> None:
    """A claim of 4 looks at 20 groups of a workflow: many of the 40 are looked at, not taken."""
    handlers = ("shop/buy@1", "shop/sell@1")
    for name in ("shop/buy", "shop/sell"):
        await store.set_limit(queue_limit(1, scope="workflow", name=name, key="input.customer"))
    for _ in range(3):
        for number in range(40):
            given = f'{{"customer": {10 + number}}}'
            await start(store, name="shop/buy", input=given)
            await start(store, name="shop/sell", input=given)
    order: list[str] = []
    while tasks := (await ann.claim(4, handlers=handlers)).tasks:
        for task in tasks:
            order.append(task.name)
            await ann.finish(task)
    turns = [(name, len(list(tasks))) for name, tasks in groupby(order)]
    assert turns == [("shop/buy", 40), ("shop/sell", 40)] * 3


async def test_priorities_come_first_and_what_waits_long_gains_one(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(
        LimitRule(scope="queue", name="default", kind="ageing", period_seconds=60)
    )
    late = await start(store, priority=4)
    await clock.advance(30)
    soon = await start(store, priority=3)
    task = await ann.first()
    assert task.run_id == soon
    await ann.finish(task)
    await clock.advance(40)
    third = await start(store, priority=3)
    assert await ann.claims(limit=1) == [late]
    assert await ann.claims(limit=1) == [third]


async def test_limited_and_other_tasks_of_one_priority_take_turns(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Neither kind starves the other; a more urgent one comes first."""
    await store.set_limit(workflow_limit(100))
    others = [await later(store, clock) for _ in range(6)]
    limited = [await buy(store) for _ in range(6)]
    urgent = await start(store, priority=0)
    handlers = (*BUY, "order@1")
    first = (await ann.claim(5, handlers=handlers)).tasks
    assert first[0].run_id == urgent
    kinds = [task.name for task in first[1:]]
    assert (kinds.count("order"), kinds.count("shop/buy")) == (2, 2)
    rest = [task.run_id for task in (await ann.claim(handlers=handlers)).tasks]
    taken = {task.run_id for task in first} | set(rest)
    assert taken == {*others, *limited, urgent}


async def test_a_limit_changes_while_it_is_used(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    for _ in range(5):
        await later(store, clock)
    await store.set_limit(queue_limit(2))
    assert await store.set_limit(queue_limit(2)) is False
    taken = (await ann.claim()).tasks
    assert await store.set_limit(queue_limit(3)) is True
    assert len(await ann.claims()) == 1
    await store.set_limit(queue_limit(1))
    await ann.finish(taken[0])
    assert await ann.claims() == []
    assert await store.remove_limit("queue", "default", "concurrency") is True
    assert await store.remove_limit("queue", "default", "concurrency") is False
    assert len(await ann.claims()) == 2
    await store.sweep_limits()
    assert await store.list_limits() == []


async def test_what_runs_already_counts_for_a_new_limit(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    first = await ann_takes_one(store, ann)
    await start(store)
    await store.set_limit(queue_limit(1))
    assert await ann.claims() == []
    await ann.finish(first)
    assert len(await ann.claims()) == 1


async def ann_takes_one(store: Store, ann: ManualWorker) -> ClaimedTask:
    """Start a run and claim it."""
    await start(store)
    return await ann.take()


async def test_a_limit_that_comes_later_concerns_what_waits(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """What waits for one limit waits for the new one as well."""
    await store.set_limit(queue_limit(2))
    for customer in "aab":
        await buy(store, customer)
    await clock.advance(1)
    await store.set_limit(workflow_limit(1, key="input.customer"))
    taken = await buys(ann) or await buys(ann)
    assert sorted(json.loads(task.input or "")["customer"] for task in taken) == ["a", "b"]


async def test_code_declares_limits_and_people_change_them(store: Store) -> None:
    """What people set stays until the code declares something else; what it drops is removed."""
    rules = [queue_limit(5), workflow_limit(1, key="input.customer")]
    assert await store.declare_limits("shop", rules) == 2
    assert await store.declare_limits("shop", rules) == 0
    await store.set_limit(queue_limit(1))
    assert await store.declare_limits("shop", rules) == 0
    infos = await store.list_limits()
    assert [(info.rule.name, info.rule.most, info.is_declared) for info in infos] == [
        ("default", 1, True),
        ("shop/buy", 1, True),
    ]
    assert [info.rule.holds for info in infos] == ["turn", "run"]
    await store.remove_limit("queue", "default", "concurrency")
    assert await store.declare_limits("shop", rules) == 0
    assert len(await store.list_limits()) == 1
    assert await store.declare_limits("shop", [queue_limit(6)]) == 1
    [info] = await store.list_limits()
    assert (info.rule.most, info.is_declared) == (6, True)


async def test_a_run_says_which_limits_it_waits_for(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Each limit, what it allows for the run's key, and how many come first."""
    await store.set_limit(workflow_limit(1, key="input.customer"))
    await store.set_limit(queue_limit(9))
    for customer in "aaa":
        await buy(store, customer)
        await clock.advance(1)
    last = await buy(store, "b")
    await clock.advance(1)
    taken = await buys(ann)
    assert len(taken) == 2
    assert await store.explain_limits(taken[0].run_id) == []
    run_id = await buy(store, "a")
    by_queue, by_key = await store.explain_limits(run_id)
    assert (by_queue.rule.scope, by_queue.held, by_queue.free) == ("queue", 2, 7)
    assert (by_key.rule.scope, by_key.slot, by_key.held, by_key.free) == ("workflow", "a", 1, 0)
    assert (by_key.ahead, by_key.waits_since) == (2, await store.now())
    of_queue, of_key = await store.list_limits()
    assert (of_queue.held, of_queue.full_keys, of_queue.waiting) == (2, 0, 3)
    assert (of_key.held, of_key.full_keys, of_key.waiting) == (2, 2, 3)
    assert not of_queue.more_wait
    assert last in [task.run_id for task in taken]


async def test_a_run_that_sleeps_is_not_ahead(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(queue_limit(1))
    await buy(store, priority=1)
    [task] = await buys(ann)
    await ann.suspend(task, awaiting=("go",))
    await buy(store)
    assert len(await buys(ann)) == 1
    [wait] = await store.explain_limits(await buy(store))
    assert wait.ahead == 0


async def test_a_count_of_what_waits_says_if_it_was_ended(store: Store, ann: ManualWorker) -> None:
    """C21. 1,000 of each handler in each queue are counted, so that a list stays cheap."""
    await store.set_limit(workflow_limit(1))
    await store.set_limit(queue_limit(1))

    async def add(count: int, **fields: Any) -> None:
        given = json.dumps({"customer": "ann"})
        runs = [new_run(**{"name": "shop/buy", "input": given, **fields}) for _ in range(count)]
        await store.start_runs(runs)

    async def listed() -> list[tuple[int, bool]]:
        return [(each.waiting, each.more_wait) for each in await store.list_limits()]

    await add(1_000)
    await add(10, queue="slow")
    assert await listed() == [(1_000, False), (1_010, False)]
    await add(1)
    assert await listed() == [(1_000, True), (1_010, True)]
    assert [waiting_text(each) for each in await store.list_limits()] == ["1,000+", "1,010+"]
    assert (await check_limits(store)).message == "2 limits; none is full"
    await add(1)
    assert len(await buys(ann, 1)) == 1
    assert "wait there: 1,000+" in (await check_limits(store)).message


async def test_what_counts_no_longer_is_swept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """It frees nothing that counts."""
    await store.set_limit(workflow_limit(1, key="input.customer"))
    await store.set_limit(rate(5, 10))
    for customer in "aab":
        await buy(store, customer)
    first, second = await buys(ann)
    await ann.finish(first)
    await clock.advance(11)
    await store.sweep_limits()
    assert await store.sweep_limits() == 0
    customers = [json.loads(task.input or "")["customer"] for task in (first, second)]
    assert len(await buys(ann)) == (customers[0] == "a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scope": "tenant"}, "a scope is queue, workflow or activity"),
        ({"name": "no name"}, "no name"),
        ({"kind": "speed"}, "a kind is concurrency, rate, units, fairness or ageing"),
        ({"most": 0}, "pause the queue to stop it"),
        ({"most": None}, "lets at least 1 task run"),
        ({"period_seconds": 1}, "does not have a period"),
        ({"kind": "rate"}, "has a period"),
        ({"kind": "rate", "period_seconds": 0}, "has a period"),
        ({"kind": "fairness", "most": None}, "give its path"),
        ({"kind": "fairness", "key": "input.a"}, "does not count tasks"),
        ({"kind": "ageing", "most": None, "period_seconds": 1, "key": "input"}, "have a key"),
        ({"key": "customer"}, "is not a path into the input"),
        ({"key": "input..a"}, "is not a path into the input"),
        ({"key": "input.a b"}, "is not a path into the input"),
        ({"key": "input." + "n" * 256}, "is not a path into the input"),
        ({"kind": "rate", "period_seconds": 1, "holds": "run"}, "only a limit of the kind"),
        ({"scope": "activity", "name": "a/b", "holds": "run"}, "holds its attempts"),
        ({"smooth": True}, "can be smooth"),
        ({"scope": "activity", "name": "resize"}, "name the app as well"),
    ],
)
async def test_a_limit_that_cannot_be_is_refused(
    store: Store, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await store.set_limit(queue_limit(**{"most": 1, **fields}))
    assert await store.list_limits() == []


async def continue_as_new(
    worker: ManualWorker, task: ClaimedTask, customer: str = "ann", version: int = 1
) -> UUID:
    """Let a run of `shop/buy` continue as a new one; return its id."""
    new_id = uuid4()
    said = {"run_id": str(new_id), "input": {"customer": customer}, "version": version}
    answer = await worker.commit(
        task,
        command("WorkflowContinuedAsNew", "", **said, signals=[]),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        has_children=True,
    )
    assert answer.refused == {}
    return new_id


async def held(store: Store) -> list[int]:
    return [info.held for info in await store.list_limits()]


@pytest.mark.parametrize("key", ["", "input.customer"])
async def test_a_run_that_continues_as_new_keeps_its_place(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker, key: str
) -> None:
    """A9. The next run has it, before its first claim too: what waits does not begin."""
    await store.set_limit(workflow_limit(1, key=key))
    await buy(store)
    [task] = await buys(ann)
    await clock.advance(1)
    waiting = await buy(store)
    for version in (1, 2, 2):
        next_id = await continue_as_new(ann, task, version=version)
        assert await held(store) == [1]
        [task] = (await bob.claim(100, handlers=("shop/buy@1", "shop/buy@2"))).tasks
        assert task.run_id == next_id
        ann, bob = bob, ann
    await ann.finish(task)
    assert await held(store) == [0]
    assert [task.run_id for task in await buys(bob)] == [waiting]


async def test_a_run_that_continues_with_another_key_waits_for_its_place(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A9. The place of the former key is free; another run has that of the new one."""
    await store.set_limit(workflow_limit(1, key="input.customer"))
    await buy(store, "bob")
    [of_bob] = await buys(ann)
    await clock.advance(1)
    await buy(store, "ann")
    [of_ann] = await buys(ann)
    await clock.advance(1)
    waiting = await buy(store, "ann")
    next_id = await continue_as_new(ann, of_ann, "bob")
    assert [task.run_id for task in await buys(ann)] == [waiting]
    await ann.finish(of_bob)
    assert [task.run_id for task in await buys(ann)] == [next_id]


async def test_an_end_before_its_first_claim_frees_the_place_of_a_run_that_continues(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A9. Workers are told, since no worker ends it."""
    await store.set_limit(workflow_limit(1))
    await buy(store)
    [task] = await buys(ann)
    await clock.advance(1)
    waiting = await buy(store)
    assert await buys(ann) == []
    next_id = await continue_as_new(ann, task)
    delivered = await store.terminate_runs([next_id])
    assert Notice("work", "default") in delivered.notices
    assert [task.run_id for task in await buys(ann)] == [waiting]


async def test_a_limit_of_turns_and_a_rate_concern_a_run_that_continues_as_they_did(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A9. A suspended run gives its turn back; each run of a chain begins once."""
    await store.set_limit(workflow_limit(1, holds="turn"))
    await store.set_limit(workflow_limit(1, kind="rate", period_seconds=10))
    await buy(store)
    [task] = await buys(ann)
    next_id = await continue_as_new(ann, task)
    assert await buys(ann) == []
    await clock.advance(10)
    assert [task.run_id for task in await buys(ann)] == [next_id]
