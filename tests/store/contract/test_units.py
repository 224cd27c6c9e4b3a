"""Rates that count units: what begins uses some of them, and may say later what it has used."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import ActivityEnd, ClaimedTask, LimitRule

from .actors import SECOND, ManualWorker, start
from .commands import activity
from .test_limits import queue_limit

NAME = "shop/resize"


def units(most: int = 100, period: float = 10, **fields: Any) -> LimitRule:
    """Return a rate of units of the queue `default`, by the number in the input."""
    given = {"kind": "units", "period_seconds": period, "units": "input.tokens", **fields}
    return queue_limit(most, **given)


async def ask(store: Store, tokens: object, **fields: Any) -> UUID:
    """Start a run that uses some tokens."""
    return await start(store, input=json.dumps({"tokens": tokens}), **fields)


async def test_what_begins_in_any_period_uses_no_more_units_than_there_are(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The first in turn waits until there is room for it; nothing passes it meanwhile."""
    await store.set_limit(units(100, 10))
    runs = []
    for tokens in (60, 30, 30, 5):
        runs.append(await ask(store, tokens))
        await clock.advance(1)
    began = await store.now()
    answer = await ann.claim()
    assert [task.run_id for task in answer.tasks] == runs[:2]
    assert await ann.claims() == []  # although the fourth would fit
    answer = await ann.claim()
    assert answer.next_due_at == began + 10 * SECOND
    [info] = await store.list_limits()
    assert (info.rule.units, info.used, info.waiting) == ("input.tokens", 90, 2)
    [wait] = await store.explain_limits(runs[2])
    assert (wait.uses, wait.free, wait.next_at) == (30, 10, began + 10 * SECOND)
    [wait] = await store.explain_limits(runs[3])
    assert (wait.uses, wait.free) == (5, 10)
    await clock.advance(9.9)
    assert await ann.claims() == []
    await clock.advance(0.1)
    assert await ann.claims() == runs[2:]


async def test_a_task_waits_for_as_many_ends_as_it_needs(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The claim says when all its units will be free, and not each end before."""
    await store.set_limit(units(100, 10))
    for tokens in (40, 30, 30):
        await ask(store, tokens)
        assert len(await ann.claims()) == 1
        await clock.advance(1)
    last = await ask(store, 65)
    moment = await store.now()
    assert (await ann.claim()).next_due_at == moment + 7 * SECOND  # before that none is free
    await clock.advance(7)
    answer = await ann.claim()
    assert (answer.tasks, answer.next_due_at) == ([], moment + 8 * SECOND)  # 40 and 30 are then
    await clock.advance(1)
    assert await ann.claims() == [last]


async def test_a_task_of_more_units_than_there_are_uses_all(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """It would wait for ever otherwise."""
    await store.set_limit(units(100, 10))
    first = await ask(store, 1)
    assert await ann.claims() == [first]
    large = await ask(store, 10**6)
    await clock.advance(1)
    last = await ask(store, 1)
    assert await ann.claims() == []
    await clock.advance(9)
    assert await ann.claims() == [large]
    await clock.advance(9.9)
    assert await ann.claims() == []
    await clock.advance(0.1)
    assert await ann.claims() == [last]


@pytest.mark.parametrize(
    ("given", "uses"),
    [
        (7, 7),
        (7.2, 8),
        ("8", 8),
        (None, 1),
        (0, 1),
        (-5, 1),
        ("many", 1),
        ([3], 1),
        (True, 1),
        (2.5e1, 25),
        (10**40, 100),
    ],
)
async def test_units_are_the_number_in_the_input(
    store: Store, ann: ManualWorker, given: object, uses: int
) -> None:
    """Rounded up; what is not a number is 1."""
    await store.set_limit(units(100, 10))
    await ask(store, given)
    assert len(await ann.claims()) == 1
    [info] = await store.list_limits()
    assert info.used == uses


async def test_each_key_has_units_of_its_own_and_other_limits_hold_as_well(
    store: Store, ann: ManualWorker
) -> None:
    await store.set_limit(units(10, 10, key="input.customer"))
    await store.set_limit(queue_limit(3, kind="rate", period_seconds=10))

    async def of(customer: str, tokens: int) -> UUID:
        return await start(store, input=json.dumps({"customer": customer, "tokens": tokens}))

    first, second, third = await of("ann", 8), await of("ann", 8), await of("bob", 8)
    fourth, fifth = await of("eve", 1), await of("eve", 1)
    taken = set(await ann.claims()) | set(await ann.claims())
    assert len(taken) == 3
    assert not {first, second} <= taken
    del third, fourth, fifth
    rate, per_customer = sorted(await store.list_limits(), key=lambda info: info.rule.kind)
    assert rate.used == 3
    assert per_customer.used == 8 + 8 + 1


async def scheduled(
    store: Store, worker: ManualWorker, *calls: int | None, key: str = "a"
) -> list[str]:
    """Have a run call activities that say so many units; return their keys."""
    await start(store)
    task = (await worker.claim()).tasks[0]
    keys = [f"{key}#{number}" for number in range(len(calls))]
    events = [
        activity(name, activity_name=NAME, **({} if said is None else {"units": said}))
        for name, said in zip(keys, calls, strict=True)
    ]
    await worker.commit(task, *events)
    return keys


async def taken(worker: ManualWorker, **options: Any) -> dict[str, ClaimedTask]:
    """Claim activities, and return them by key."""
    found = (await worker.claim(handlers=(f"{NAME}@0",), **options)).tasks
    return {task.key: task for task in found}


async def end(
    store: Store, worker: ManualWorker, task: ClaimedTask, used: int | None, **fields: Any
) -> None:
    """Report the end of an attempt."""
    place = {"run_id": task.run_id, "key": task.key, "lease_no": task.lease_no}
    given = {**place, **(fields or {"result": "1"}), "units": used}
    ended = await store.end_activities(worker.worker_id, [ActivityEnd(**given)])
    assert ended.outcomes != ["lost"]


CALLS = {"scope": "activity", "name": NAME, "units": "call"}


async def test_calls_of_activities_say_their_units(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(units(100, 10, **CALLS))
    await scheduled(store, ann, 60, None, 40)
    assert sorted(await taken(ann)) == ["a#0", "a#1"]
    assert (await store.list_limits())[0].used == 61
    await clock.advance(10)
    assert sorted(await taken(ann)) == ["a#2"]


async def test_what_was_used_less_is_free_for_others(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(units(100, 10, **CALLS))
    await scheduled(store, ann, 90, 60, 30)
    first = (await taken(ann))["a#0"]
    await clock.advance(1)
    assert await taken(ann) == {}
    await end(store, ann, first, 35)
    assert sorted(await taken(ann)) == ["a#1"]
    assert (await store.list_limits())[0].used == 95
    await clock.advance(9)
    assert (await store.list_limits())[0].used == 60  # the credit ends with what it was given for
    assert sorted(await taken(ann)) == ["a#2"]


async def test_what_was_used_more_counts_from_then_on(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await store.set_limit(units(100, 10, **CALLS))
    await scheduled(store, ann, 10, 80)
    first = (await taken(ann, limit=1))["a#0"]
    await clock.advance(4)
    await end(store, ann, first, 70)
    assert await taken(ann) == {}
    assert (await store.list_limits())[0].used == 70
    await clock.advance(6)  # the 10 are over, the 60 that it used more are not
    assert await taken(ann) == {}
    assert (await store.list_limits())[0].used == 60
    await clock.advance(4)
    assert sorted(await taken(ann)) == ["a#1"]


async def test_each_attempt_uses_units_and_may_correct_its_own(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A credit never outlives what it was given for: a rate lets nothing begin too early."""
    await store.set_limit(units(100, 10, **CALLS))
    await scheduled(store, ann, 50)
    tasks = await taken(ann)
    await end(store, ann, tasks["a#0"], None, error='{"kind":"builtins.OSError","message":"no"}')
    await clock.advance(2)
    again = (await taken(ann))["a#0"]
    assert (await store.list_limits())[0].used == 100
    await end(store, ann, again, 0)
    assert (await store.list_limits())[0].used == 50
    await clock.advance(8)
    assert (await store.list_limits())[0].used == 50
    await clock.advance(2)
    assert (await store.list_limits())[0].used == 0


async def test_an_end_that_is_lost_corrects_nothing(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """The same end again, and that of a lease which another worker has."""
    await store.set_limit(units(100, 10, **CALLS))
    await scheduled(store, ann, 50)
    task = (await taken(ann))["a#0"]
    ended = ActivityEnd(
        run_id=task.run_id, key=task.key, lease_no=task.lease_no, result="1", units=20
    )
    for outcome in ("recorded", "lost"):
        answer = await store.end_activities("ann", [ended])
        assert answer.outcomes == [outcome]
        await taken(ann)
        assert (await store.list_limits())[0].used == 20


async def test_a_limit_that_is_younger_than_the_attempt_is_left_alone(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await scheduled(store, ann, 50, 10)
    tasks = await taken(ann, limit=1)
    await clock.advance(1)
    await store.set_limit(units(100, 10, **CALLS))
    others = await taken(ann)
    assert len(others) == 1
    await end(store, ann, tasks["a#0"], 1)
    await taken(ann)
    assert (await store.list_limits())[0].used == 10


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"units": None}, "says what it counts"),
        ({"units": "tokens"}, "not a path into the input"),
        ({"units": "call"}, "only calls of activities"),
        ({"period_seconds": None}, "has a period"),
        ({"most": 0}, "at least 1"),
        ({"smooth": True}, "can be smooth"),
        ({"holds": "turn"}, "only a limit of the kind"),
        ({"kind": "rate"}, "says what it counts"),
    ],
)
async def test_units_that_cannot_be_are_refused(
    store: Store, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        await store.set_limit(units(**fields))


async def test_a_rate_of_tasks_and_one_of_units_stand_side_by_side(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Requests a minute and tokens a minute."""
    await store.set_limit(queue_limit(2, kind="rate", period_seconds=10))
    await store.set_limit(units(100, 10))
    runs = [await ask(store, 10) for _ in range(3)]
    taken_now = await ann.claims()
    assert len(taken_now) == 2
    assert await ann.claims() == []
    assert await store.remove_limit("queue", "default", "rate")
    [left] = {*runs} - {*taken_now}
    assert await ann.claims() == [left]
    assert [info.rule.kind for info in await store.list_limits()] == ["units"]
