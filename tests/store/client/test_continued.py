"""Runs that continued as new: what is asked of the first reaches the newest."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from holdfast.client import Client
from holdfast.client.messaging import Signal
from holdfast.errors import ResultTimeout, RunEnded
from holdfast.store.port import Store
from holdfast.types import JSON

from .workflows import Finisher, tick


async def chain(client: Client, finisher: Finisher, length: int = 3) -> list[UUID]:
    """Start a run that continues as new until there are so many; the last waits to be run."""
    run_ids = [(await client.start(tick, key="k")).run_id]
    while len(run_ids) < length:
        [task] = await finisher.claim()
        run_ids.append(await finisher.continue_as_new(task))
    return run_ids


async def signals(client: Client, run_id: UUID) -> list[str | None]:
    log = await client.runs.log(run_id)
    return [entry.event.key for entry in log if entry.event.type == "SignalReceived"]


async def test_the_result_is_that_of_the_newest(client: Client, finisher: Finisher) -> None:
    first, *_, last = await chain(client, finisher)
    waiting = asyncio.create_task(client.handle(first).result())
    await finisher.complete(7)
    assert await waiting == 7
    ended = await client.runs.wait(("shop/tick", "k"))
    assert (ended.run_id, ended.status) == (last, "completed")


async def test_a_caller_that_waits_through_a_continuation_gets_the_end(
    client: Client, finisher: Finisher
) -> None:
    running = asyncio.create_task(client.run(tick, key="k"))
    while not (tasks := await finisher.claim()):
        await asyncio.sleep(0)
    await finisher.continue_as_new(tasks[0])
    await finisher.complete(9)
    assert await running == 9


async def test_the_time_to_wait_counts_for_the_whole_chain(
    client: Client, finisher: Finisher
) -> None:
    first, *_ = await chain(client, finisher)
    with pytest.raises(ResultTimeout) as caught:
        await client.handle(first).result(timeout=0.02)
    assert (caught.value.run_id, caught.value.seconds) == (first, 0.02)


async def test_signals_go_to_the_newest(client: Client, finisher: Finisher) -> None:
    first, second, last = await chain(client, finisher)
    assert await client.signal(first, "packed", signal_id="a")
    sent = [Signal(first, "packed", signal_id=each) for each in ("b", "c")]
    assert await client.signal_many(sent) == ["delivered", "delivered"]
    assert await signals(client, second) == []
    assert await signals(client, last) == ["a", "b", "c"]


async def test_a_signal_id_is_delivered_once_in_the_whole_chain(
    client: Client, finisher: Finisher
) -> None:
    """T5. Also one that a run in the middle has consumed."""
    first = (await client.start(tick)).run_id
    [task] = await finisher.claim()
    second = await finisher.continue_as_new(task)
    assert await client.signal(first, "packed", signal_id="a")
    [task] = await finisher.claim()
    last = await finisher.continue_as_new(task)
    assert not await client.signal(first, "packed", signal_id="a")
    assert await signals(client, second) == ["a"]
    assert await signals(client, last) == []


async def test_an_update_of_a_chain_that_ended_says_so(client: Client, finisher: Finisher) -> None:
    first, *_, last = await chain(client, finisher)
    await finisher.complete()
    with pytest.raises(RunEnded) as caught:
        await client.update(first, "add")
    assert caught.value.run_id == last


async def test_an_update_follows_a_run_that_continues_before_it_answers(
    client: Client, finisher: Finisher, store: Store
) -> None:
    first = (await client.start(tick)).run_id
    [task] = await finisher.claim()
    asking = asyncio.create_task(client.update(first, "add", update_id="u"))
    while not await signals(client, first):
        await asyncio.sleep(0)
    event = await finisher.event("SignalReceived", "u", None)
    await finisher.continue_as_new(task)
    [task] = await finisher.claim()
    assert event.key == "u"
    answer = await finisher.event("UpdateCompleted", "u", {"update_name": "add", "result": 5})
    await finisher.write(task, answer)
    assert await asking == 5


async def test_an_update_that_was_begun_does_not_go_along(
    client: Client, finisher: Finisher, store: Store
) -> None:
    """The caller is told that no answer will come."""
    first = (await client.start(tick)).run_id
    [task] = await finisher.claim()
    asking = asyncio.create_task(client.update(first, "add", update_id="u", timeout="30s"))
    while not await signals(client, first):
        await asyncio.sleep(0)
    accepted = await finisher.event("UpdateAccepted", "u", {"update_name": "add"})
    await finisher.write(task, accepted, at=2)
    await finisher.continue_as_new(task)
    with pytest.raises(RunEnded) as caught:
        await asking
    assert (caught.value.run_id, caught.value.status) == (first, "continued")


async def test_control_reaches_the_newest(client: Client, finisher: Finisher) -> None:
    """S10. B6."""
    first, second, last = await chain(client, finisher)
    assert await client.runs.pause(first)
    assert (await client.runs.get(last)).state == "paused"
    assert await client.runs.resume(first)
    assert await client.runs.cancel(first, "enough")
    assert (await client.runs.get(last)).status == "cancelled"
    assert not await client.runs.terminate(first)
    assert (await client.runs.get(second)).continued_as == last


async def test_approvals_are_those_of_the_newest(client: Client, finisher: Finisher) -> None:
    """A decision by the id of the first reaches them, too."""
    first, second, last = await chain(client, finisher)
    [task] = await finisher.claim()
    request: JSON = {"title": "Go on?", "description": "", "fields": [], "timeout_at": None}
    await finisher.ask(task, "go", request)
    for run_id in (first, second, last):
        [found] = await client.handle(run_id).approvals()
        assert (found.run_id, found.key) == (last, "go")
    assert await client.approvals.decide(first, "go", True)
    assert await client.handle(first).approvals() == []
