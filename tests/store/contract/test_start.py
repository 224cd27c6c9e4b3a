"""Starting runs."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import StartedRun
from holdfast.values.ids import keyed_run_id

from .actors import SECOND, ManualWorker, details, get, log, new_run, start, start_notice, told


async def test_start_writes_the_run_its_first_event_and_its_first_task(
    store: Store, ann: ManualWorker
) -> None:
    """S1, S4, B8. What was asked for is what a caller reads, retention and version included."""
    asked = new_run(
        key="o-1",
        version=3,
        queue="slow",
        priority=1,
        input='{"b":1e300,"a":"ü"}',
        timeout_seconds=60.0,
        retention_seconds=86_400.0,
        tags=("eu", "vip"),
        headers={"traceparent": "00-1"},
    )
    [started], _ = await store.start_runs([asked])
    assert started == StartedRun(asked.run_id, created=True, status="running")

    now = await store.now()
    run = await get(store, asked.run_id)
    assert (run.name, run.version, run.key, run.queue) == ("order", 3, "o-1", "slow")
    assert (run.status, run.state, run.priority) == ("running", "queued", 1)
    assert (run.input, run.output, run.error) == (asked.input, None, None)
    assert (run.tags, run.headers) == (asked.tags, asked.headers)
    assert run.retention_seconds == 86_400.0
    assert (run.created_at, run.started_at, run.completed_at) == (now, None, None)
    assert run.deadline_at == now + 60 * SECOND

    [event] = await log(store, asked.run_id)
    assert (event.type, event.key, event.at) == ("WorkflowStarted", None, now)
    assert event.details == asked.input  # neither reordered nor rewritten
    task = await ann.take(queues=["slow"], handlers=["order@3"])
    assert (task.run_id, task.input) == (asked.run_id, asked.input)


async def test_start_of_an_existing_id_changes_nothing_and_says_its_status(
    store: Store, ann: ManualWorker
) -> None:
    """B5. The same key returns the existing run with its current status."""
    first = new_run(key="o-1", input="1")
    await store.start_runs([first])
    again = new_run(run_id=first.run_id, key="o-1", input="2")
    answers, notices = await store.start_runs([again])
    assert answers == [StartedRun(first.run_id, created=False, status="running")]
    assert notices == []
    assert (await get(store, first.run_id)).input == "1"

    await ann.finish(await ann.take())
    [ended], _ = await store.start_runs([again])
    assert ended == StartedRun(first.run_id, created=False, status="completed")
    assert await ann.claims() == []


async def test_answers_of_a_start_keep_the_order_given(store: Store) -> None:
    runs = [new_run() for _ in range(20)]
    await store.start_runs(runs[5:6])
    answers, _ = await store.start_runs(runs)
    assert [answer.run_id for answer in answers] == [run.run_id for run in runs]
    assert [answer.created for answer in answers] == [i != 5 for i in range(20)]


async def test_an_id_twice_in_one_start_is_one_run_created_once(
    store: Store, ann: ManualWorker
) -> None:
    run = new_run(input="1")
    twin = new_run(run_id=run.run_id, input="2")
    answers, _ = await store.start_runs([run, twin])
    assert [answer.created for answer in answers] == [True, False]
    assert (await ann.take()).input == "1"
    assert len(await log(store, run.run_id)) == 1


@pytest.mark.parametrize(
    "fields", [{"input": '{"a":'}, {"key": "a\0b"}, {"priority": 5}], ids=["json", "nul", "range"]
)
async def test_a_start_with_a_value_that_the_database_refuses_starts_nothing(
    store: Store, fields: dict[str, Any]
) -> None:
    """Trap 20."""
    good, bad = new_run(), new_run(**fields)
    with pytest.raises(PayloadError):
        await store.start_runs([good, bad])
    assert await store.get_runs([good.run_id, bad.run_id]) == {}


async def test_fifty_starts_with_one_id_are_one_run_with_one_input(
    store: Store, ann: ManualWorker
) -> None:
    """Trap 14. Concurrent starts with different inputs: one run, and its creator's input."""
    run_id = uuid4()
    runs = [new_run(run_id=run_id, key="o-1", input=str(n)) for n in range(50)]
    answers = await asyncio.gather(*(store.start_runs([run]) for run in runs))
    [creator] = [i for i, ([answer], _) in enumerate(answers) if answer.created]
    assert (await get(store, run_id)).input == str(creator)
    assert [details(event) for event in await log(store, run_id)] == [creator]
    assert await ann.claims() == [run_id]


async def test_a_delayed_run_is_not_due_before_its_moment(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """Trap 21. The delay counts on the store's clock, not on the caller's."""
    delayed = await start(store, delay_seconds=5.0)
    at_moment = await start(store, start_at=await store.now() + 6 * SECOND)
    assert (await get(store, delayed)).state == "waiting"
    assert await ann.claims() == []
    await clock.advance(5)
    assert (await get(store, delayed)).state == "queued"
    assert await ann.claims() == [delayed]
    await clock.advance(1)
    assert await ann.claims() == [at_moment]


async def test_the_time_a_run_has_counts_from_when_it_may_start(store: Store) -> None:
    run_id = await start(store, delay_seconds=5.0, timeout_seconds=60.0)
    assert (await get(store, run_id)).deadline_at == await store.now() + 65 * SECOND


async def test_a_start_wakes_its_queues_once_each(store: Store) -> None:
    runs = [new_run(queue=queue) for queue in ("a", "b", "a")]
    _, notices = await store.start_runs(runs)
    assert sorted(notices, key=str) == [start_notice(store, "a"), start_notice(store, "b")]


async def test_the_waiter_of_a_start_is_told_of_the_end(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store, waiter="client/1")
    answer = await ann.finish(await ann.take())
    assert answer.notices == [told("client/1", run_id)]


async def test_a_keyed_run_is_found_by_its_key(store: Store) -> None:
    """B5. The key is in the run's id: nothing else needs to be unique."""
    run_id = await start(store, run_id=keyed_run_id("order", "o-1"), key="o-1")
    await start(store, run_id=keyed_run_id("order", "o-2"), key="o-2")
    assert await store.find_run("order", "o-1") == run_id
    assert await store.find_run("order", "o-3") is None
    assert await store.find_run("refund", "o-1") is None


async def test_many_starts_keep_each_value_whatever_is_in_it(store: Store) -> None:
    """Long arrays are sent as one text each: no value may be cut or taken for null."""
    inputs = ["1", '""', '{"b":"\\"\\\\","a":[1,null]}', "null", '"ü\\u001f{},"', "[]", "0", '"x"']
    runs = [new_run(input=text, key=f"{n}") for n, text in enumerate(inputs)]
    runs.append(new_run(name="pay", input="9"))
    started, _ = await store.start_runs(runs)
    assert [one.run_id for one in started] == [run.run_id for run in runs]
    found = [await get(store, run.run_id) for run in runs]
    assert [(run.name, run.input) for run in found] == [(run.name, run.input) for run in runs]


async def test_a_run_keeps_when_it_could_begin(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """So the time in a queue is known: from then until the first claim."""
    now = await store.now()
    run_id, at_once = await start(store, delay_seconds=5.0), await start(store)
    assert (await get(store, run_id)).due_at == now + 5 * SECOND
    await clock.advance(8)
    turns = (await ann.claim()).tasks
    for turn in turns:
        await ann.finish(turn)
    delayed, prompt = await get(store, run_id), await get(store, at_once)
    assert (delayed.due_at, delayed.could_begin_at) == (now + 5 * SECOND, now + 5 * SECOND)
    assert (delayed.started_at, delayed.begun_at) == (now + 8 * SECOND, now + 8 * SECOND)
    assert (prompt.due_at, prompt.could_begin_at, prompt.begun_at) == (None, now, now + 8 * SECOND)


async def test_a_start_at_a_moment_of_the_past_is_not_delayed(store: Store) -> None:
    run_id = await start(store, start_at=await store.now() - SECOND)
    assert (await get(store, run_id)).due_at is None


async def test_a_run_starts_after_another_only_while_that_is_there(store: Store) -> None:
    """It would take the key of a run that is deleted, and free."""
    first = await start(store)
    rules = [f'{{"after":"{after}"}}' for after in (uuid4(), first)]
    [gone, started], _ = await store.start_runs([new_run(rules=each) for each in rules])
    assert (gone.refused, gone.created, gone.status) == ("gone", False, None)
    assert (started.refused, started.created, started.status) == (None, True, "running")
    again, _ = await store.start_runs([new_run(run_id=started.run_id, rules=rules[1])])
    assert (again[0].created, again[0].status) == (False, "running")
