"""Attributes and tags: what runs are found by, at the start, from their code, and from outside."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import (
    Event,
    Finish,
    Fork,
    NewEvent,
    NewSubscription,
    RunFilter,
    RunTarget,
    TurnCommit,
)

from .actors import ManualWorker, get, new_run, start
from .commands import FAILURE, child, command, failed
from .flow_actors import Flows, mapped, single
from .schedule_actors import new_schedule
from .test_debounces import declare, order
from .test_flow_retries import retry
from .test_queries import listed
from .test_singletons import start_one

ACME = {"customer": "acme", "seats": 7, "share": 0.5, "paid": True}


def attributes_set(key: str = "attributes", **values: Any) -> Event:
    """Return an AttributesSet, as the code of a run records it."""
    return command("AttributesSet", key, attributes=values)


async def attributes(store: Store, run_id: UUID) -> dict[str, Any]:
    """Return the attributes of a run."""
    return dict((await get(store, run_id)).attributes)


async def test_runs_are_found_by_the_attributes_of_their_start(store: Store, clock: Clock) -> None:
    first = await start(store, attributes=ACME)
    await clock.advance(1)
    second = await start(store, attributes={"customer": "acme", "seats": "7"})
    await clock.advance(1)
    none = await start(store)
    assert await attributes(store, first) == ACME
    assert await attributes(store, none) == {}
    assert await listed(store, attributes={"customer": "acme"}) == [second, first]
    assert await listed(store, attributes={"customer": "acme"}, limit=1) == [second]
    assert await listed(store, attributes={"customer": "acme", "paid": True}) == [first]
    assert await listed(store, attributes={"customer": "acm"}) == []
    assert await listed(store, attributes={"other": "acme"}) == []
    found = (await store.list_runs(RunFilter(attributes={"paid": "true"}))).runs
    assert [run.attributes for run in found] == [ACME]


async def test_texts_of_values_are_compared(store: Store) -> None:
    """Who types a filter need not know if 7 is a number or a text."""
    number, text = (
        await start(store, attributes={"n": 7}),
        await start(store, attributes={"n": "7"}),
    )
    assert {number, text} == set(await listed(store, attributes={"n": 7}))
    assert {number, text} == set(await listed(store, attributes={"n": "7"}))
    odd = 'a"b\\ é\u2028'
    strange = await start(store, attributes={"n": odd, "big": 1e300, "small": -2.5})
    assert await listed(store, attributes={"n": odd}) == [strange]
    assert await listed(store, attributes={"big": 1e300, "small": -2.5}) == [strange]
    assert await attributes(store, strange) == {"n": odd, "big": 1e300, "small": -2.5}


async def test_a_filter_by_attributes_goes_with_the_others(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    runs = [
        new_run(name=f"shop/{name}", queue=queue, tags=(queue,), attributes={"customer": customer})
        for name in ("a", "b")
        for queue in ("default", "mail")
        for customer in ("acme", "bob")
    ]
    await store.start_runs(runs)
    await store.terminate_runs([runs[0].run_id])
    acme = [run.run_id for run in runs if run.attributes["customer"] == "acme"]

    async def found(**where: Any) -> set[UUID]:
        return set(await listed(store, attributes={"customer": "acme"}, **where))

    assert await found() == set(acme)
    assert await found(names=("shop/a",)) == set(acme[:2])
    assert await found(queues=("mail",)) == {acme[1], acme[3]}
    assert await found(tags=("mail",), names=("shop/b",)) == {acme[3]}
    assert await found(states=("terminated",)) == {acme[0]}
    assert await found(states=("queued",)) == set(acme[1:])
    assert await found(since=await store.now() + 1) == set()


async def test_pages_by_an_attribute_have_each_run_once(store: Store, clock: Clock) -> None:
    started: list[UUID] = []
    for number in range(7):
        started.append(await start(store, attributes={"customer": "acme", "odd": number % 2}))
        await clock.advance(number % 3)
    seen: list[UUID] = []
    cursor = None
    while True:
        where = RunFilter(attributes={"customer": "acme"}, limit=2, cursor=cursor)
        page = await store.list_runs(where)
        seen += [run.run_id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 7
    assert set(seen) == set(started)
    assert len(await listed(store, attributes={"customer": "acme", "odd": 1})) == 3


async def test_runs_are_counted_by_an_attribute(store: Store) -> None:
    for value in ("acme", "acme", 7, "7", True):
        await start(store, name="shop/a", attributes={"customer": value})
    await start(store, name="shop/a")
    await start(store, name="shop/b", attributes={"customer": "acme"})
    counted = await store.count_runs_by("customer", RunFilter())
    assert list(counted.counts.items()) == [("acme", 3), ("7", 2), ("true", 1)]
    counted = await store.count_runs_by("customer", RunFilter(names=("shop/b",)))
    assert counted.counts == {"acme": 1}
    counted = await store.count_runs_by("workflow", RunFilter(attributes={"customer": "acme"}))
    assert counted.counts == {"shop/a": 2, "shop/b": 1}
    assert (await store.count_runs_by("nobody-has-it", RunFilter())).counts == {}


async def test_attributes_are_set_and_removed_from_outside(store: Store, ann: ManualWorker) -> None:
    """Of open runs and of ended ones; an unknown run says so."""
    run_id = await start(store, attributes={"customer": "acme", "trial": True})
    changed = await store.set_attributes(run_id, {"customer": "bob", "trial": None, "seats": 2})
    assert changed == await attributes(store, run_id) == {"customer": "bob", "seats": 2}
    assert await listed(store, attributes={"customer": "acme"}) == []
    await ann.finish(await ann.take())
    assert await store.set_attributes(run_id, {"seats": None, "none": None}) == {"customer": "bob"}
    assert await listed(store, attributes={"customer": "bob"}) == [run_id]
    assert await store.set_attributes(run_id, {"customer": None}) == {}
    assert await store.set_attributes(uuid4(), {"customer": "acme"}) is None


async def test_tags_are_replaced_added_and_removed(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, tags=("a", "b"))
    assert await store.set_tags(run_id, None, add=["c", "a"], remove=["b", "x"]) == ["a", "c"]
    assert await listed(store, tags=("c",)) == [run_id]
    assert await store.set_tags(run_id, ["z", "y", "z"]) == ["z", "y"]
    assert await store.set_tags(run_id, ["z", "y"], add=["x"], remove=["z", "x"]) == ["y"]
    await ann.finish(await ann.take())
    assert await store.set_tags(run_id, []) == []
    assert (await get(store, run_id)).tags == ()
    assert await store.set_tags(uuid4(), ["a"]) is None


@pytest.mark.parametrize(
    "values",
    [
        {"a b": 1},
        {"": 1},
        {"state": "x"},
        {"a": ["x"]},
        {"a": {"b": 1}},
        {"a": "x" * 501},
        {"a": "nul \0"},
        {f"a{n}": "x" * 450 for n in range(10)},
    ],
)
async def test_bad_attributes_are_refused(store: Store, values: dict[str, Any]) -> None:
    """By starts and by changes; nothing is written."""
    for attempt in (start(store, attributes=values), start(store, name="a b", attributes=values)):
        with pytest.raises(InvalidInput):
            await attempt
    run_id = await start(store, attributes={"customer": "acme"})
    with pytest.raises(InvalidInput):
        await store.set_attributes(run_id, values)
    assert await attributes(store, run_id) == {"customer": "acme"}
    with pytest.raises(InvalidInput):
        await start(store, attributes={"customer": None})


async def test_all_attributes_of_a_run_are_bounded(store: Store) -> None:
    run_id = await start(store, attributes={f"a{n}": "x" * 400 for n in range(9)})
    with pytest.raises(InvalidInput, match="4,096"):
        await store.set_attributes(run_id, {"b": "x" * 450})
    assert "b" not in await attributes(store, run_id)
    await store.set_attributes(run_id, {"a1": None, "b": "x" * 400})


async def test_the_code_of_a_run_sets_attributes_with_its_commit(
    store: Store, ann: ManualWorker
) -> None:
    """Of several values of a name the last counts; what is refused sets nothing."""
    run_id = await start(store, attributes={"stage": "new", "trial": True})
    other = await start(store)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    events = [
        attributes_set(stage="packed", box=1),
        attributes_set("attributes#2", stage="sent", trial=None),
    ]
    answer = await store.commit(
        ann.worker_id,
        uuid4(),
        [
            TurnCommit(run_id, tasks[run_id].lease_no, 1, events, has_commands=True),
            TurnCommit(other, 99, 1, [attributes_set(stage="lost")], has_commands=True),
        ],
    )
    assert list(answer.refused) == [other]
    assert await attributes(store, run_id) == {"stage": "sent", "box": 1}
    assert await attributes(store, other) == {}
    assert await listed(store, attributes={"stage": "sent"}) == [run_id]


async def test_a_commit_that_is_repeated_sets_nothing_twice(
    store: Store, ann: ManualWorker
) -> None:
    """The answer was lost, and another program has changed the attribute since."""
    run_id = await start(store)
    task, token = await ann.take(), uuid4()
    part = TurnCommit(run_id, task.lease_no, 1, [attributes_set(stage="packed")], has_commands=True)
    await store.commit(ann.worker_id, token, [part])
    await store.set_attributes(run_id, {"stage": "lost"})
    assert (await store.commit(ann.worker_id, token, [part])).refused == {}
    assert await attributes(store, run_id) == {"stage": "lost"}


async def test_the_last_commit_of_a_run_sets_attributes(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    answer = await ann.commit(
        await ann.take(),
        attributes_set(stage="done"),
        Event("WorkflowCompleted", None, None, 0),
        then=Finish("completed", output="1"),
    )
    assert answer.refused == {}
    assert await attributes(store, run_id) == {"stage": "done"}


async def test_continued_runs_keep_attributes(store: Store, ann: ManualWorker) -> None:
    """Those that the run has then, its last commit included; the first keeps them, too."""
    run_id, new_id, newest = await start(store, attributes={"customer": "acme"}), uuid4(), uuid4()
    await store.set_attributes(run_id, {"seats": 2})
    task = await ann.take()
    await ann.commit(task, attributes_set(stage="first"))
    await _continue(ann, task, new_id)
    expected = {"customer": "acme", "seats": 2, "stage": "first"}
    assert await attributes(store, run_id) == await attributes(store, new_id) == expected
    # By the id of the first run, the newest is changed.
    await store.set_attributes(run_id, {"seats": 3})
    await store.set_tags(run_id, ["t"])
    assert await attributes(store, run_id) == expected
    assert await attributes(store, new_id) == {**expected, "seats": 3}
    assert (await get(store, new_id)).tags == ("t",)
    await _continue(ann, await ann.take(), newest, expected=1)
    assert await attributes(store, newest) == {**expected, "seats": 3}
    assert set(await listed(store, attributes={"customer": "acme"})) == {run_id, new_id, newest}


async def _continue(ann: ManualWorker, task: Any, new_id: UUID, expected: int = 2) -> None:
    said = {"run_id": str(new_id), "input": 1, "version": 1, "signals": []}
    answer = await ann.commit(
        task,
        command("WorkflowContinuedAsNew", "", **said),
        then=Finish("continued", output=json.dumps({"run_id": str(new_id)})),
        expected=expected,
    )
    assert answer.refused == {}


async def test_forks_and_retries_keep_attributes(store: Store, ann: ManualWorker) -> None:
    """Those that their origin has at that moment."""
    run_id = await start(store, attributes={"customer": "acme"})
    task = await ann.take()
    await ann.commit(
        task, attributes_set(stage="packed"), failed(), then=Finish("failed", error=FAILURE)
    )
    await store.set_attributes(run_id, {"seen": True})
    expected = {"customer": "acme", "stage": "packed", "seen": True}
    for fields in ({"retry": True}, {"until": 1}):
        made = Fork(run_id=run_id, new_run_id=uuid4(), **fields)
        assert (await store.fork_run(made))[0] == "forked"
        assert await attributes(store, made.new_run_id) == expected
    assert len(await listed(store, attributes={"seen": True})) == 3


async def test_children_have_the_attributes_of_their_call(store: Store, ann: ManualWorker) -> None:
    """And not those of their parent."""
    await start(store, attributes={"customer": "acme"})
    first, second = uuid4(), uuid4()
    answer = await ann.commit(
        await ann.take(),
        child(first, "a", tags=["t"], attributes={"customer": "bob", "n": 1}),
        child(second, "b"),
    )
    assert answer.refused == {}
    assert await attributes(store, first) == {"customer": "bob", "n": 1}
    assert (await get(store, first)).tags == ("t",)
    assert await attributes(store, second) == {}


async def test_runs_of_flows_have_attributes(flows: Flows) -> None:
    """Their retries and forks keep them."""
    await flows.define(single("a"), mapped("b", "a"))
    run_id = await flows.start([1], attributes={"customer": "acme"}, tags=("t",))
    assert await attributes(flows.store, run_id) == {"customer": "acme"}
    assert (await get(flows.store, run_id)).tags == ("t",)
    await flows.store.set_attributes(run_id, {"n": 1})
    await flows.store.terminate_runs([run_id])
    new_run_id = await retry(flows, run_id)
    assert await attributes(flows.store, new_run_id) == {"customer": "acme", "n": 1}
    found = await listed(flows.store, attributes={"customer": "acme"})
    assert set(found) == {run_id, new_run_id}


async def test_a_debounced_run_has_the_attributes_of_the_last_start(
    store: Store, clock: Clock
) -> None:
    await declare(store)
    first = order(1, attributes={"a": 1, "b": 1})
    await start_one(store, first)
    assert await attributes(store, first.run_id) == {"a": 1, "b": 1}
    await start_one(store, order(2, attributes={"b": 2, "c": 2}, tags=("t",)))
    assert await attributes(store, first.run_id) == {"b": 2, "c": 2}
    assert (await get(store, first.run_id)).tags == ("t",)
    await start_one(store, order(3))
    assert await attributes(store, first.run_id) == {}


async def test_many_starts_have_each_their_own(store: Store) -> None:
    """The second start of an id changes nothing."""
    runs = [new_run(attributes={"n": n} if n % 2 else {}) for n in range(6)]
    again = new_run(run_id=runs[1].run_id, attributes={"n": 99, "other": 1})
    started, _ = await store.start_runs([*runs, again])
    assert [each.created for each in started] == [True] * 6 + [False]
    for n, run in enumerate(runs):
        assert await attributes(store, run.run_id) == ({"n": n} if n % 2 else {})
    await store.start_runs([again])
    assert await attributes(store, again.run_id) == {"n": 1}


async def test_the_attributes_of_deleted_runs_are_deleted(store: Store, clock: Clock) -> None:
    run_id = await start(store, attributes=ACME, retention_seconds=60.0)
    await store.terminate_runs([run_id])
    lines = [(await store.export_runs({run_id: None})).lines[run_id]]
    await clock.advance(61)
    assert (await store.sweep_runs()).deleted == 1
    assert await listed(store, attributes={"customer": "acme"}) == []
    assert (await store.count_runs_by("customer", RunFilter())).counts == {}
    assert await store.set_attributes(run_id, {"a": 1}) is None
    assert await store.restore_run(lines, retention_seconds=60.0) == "restored"
    assert await attributes(store, run_id) == ACME
    assert await listed(store, attributes={"seats": 7}) == [run_id]


async def test_a_schedule_gives_its_runs_attributes(store: Store) -> None:
    target = RunTarget(name="shop/order", tags=("t",), attributes={"customer": "acme", "n": 1})
    schedule = new_schedule(target=target)
    assert await store.create_schedule(schedule)
    found = await store.get_schedule(schedule.name)
    assert found is not None
    assert found.target == target
    fired = await store.trigger_schedule(schedule.name)
    [run_id] = await listed(store)
    assert fired is not None
    assert await attributes(store, run_id) == {"customer": "acme", "n": 1}
    assert (await get(store, run_id)).tags == ("t",)


async def test_an_event_starts_runs_with_attributes(store: Store) -> None:
    target = RunTarget(name="order", tags=("t",), attributes={"customer": "acme"})
    await store.subscribe(NewSubscription(pattern="a.b", match=None, target=target))
    [known] = await store.list_subscriptions()
    assert known.target == target
    await store.publish(NewEvent(topic="a.b", payload="1"))
    [run_id] = await listed(store, attributes={"customer": "acme"})
    assert (await get(store, run_id)).tags == ("t",)
