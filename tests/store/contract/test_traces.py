"""Trace contexts among the headers of runs, and in signals."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import Finish, Fork, NewSignal, tick_headers
from holdfast.values.trace_ids import (
    TRACE_LINK,
    parent_of,
    read_parent,
    run_span_id,
    successor_headers,
)

from .actors import ManualWorker, details, get, log, start
from .commands import command
from .flow_actors import Flows, StepWorker, single
from .schedule_actors import NAME, TARGET, ManualScheduler, run_of
from .test_continue import go_on

TRACE, SPAN = "ab" * 16, "cd" * 8
TRACED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "tenant": "ann"}


def linked(origin: UUID, sampled: str = "01") -> dict[str, str]:
    link = f"00-{TRACE}-{run_span_id(origin):016x}-{sampled}"
    return {"tenant": "ann", "holdfast-trace-link": link}


async def test_a_run_made_of_another_has_a_trace_of_its_own_with_a_link(
    store: Store, ann: ManualWorker
) -> None:
    """B10. A fork, and what a run continues as."""
    run_id, fork_id, next_id = await start(store, headers=TRACED), uuid4(), uuid4()
    await store.fork_run(Fork(run_id=run_id, new_run_id=fork_id))
    assert (await get(store, fork_id)).headers == linked(run_id)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    assert tasks[run_id].headers == TRACED
    await go_on(ann, tasks[run_id], next_id)
    assert (await get(store, next_id)).headers == linked(run_id)


async def test_the_retry_of_a_flow_has_a_trace_of_its_own(flows: Flows, worker: StepWorker) -> None:
    """B10."""
    await flows.define(single("a", max_attempts=1))
    run_id = await flows.start(headers=TRACED)
    await worker.fail(await worker.one())
    retry_id = uuid4()
    assert (await flows.store.retry_flow(run_id, retry_id))[0] == "started"
    assert (await get(flows.store, retry_id)).headers == linked(run_id)


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{TRACE}-{SPAN}-00"},
        {"traceparent": f"cc-{TRACE}-{SPAN}-0b-more"},
        {"traceparent": "t", "tracestate": "u"},
        {"tracestate": "u"},
        {},
    ],
)
async def test_python_and_the_database_agree_about_headers(
    store: Store, headers: Mapping[str, str]
) -> None:
    """B10. A header that is not a trace context is left as it is."""
    run_id, fork_id = await start(store, headers=headers), uuid4()
    await store.fork_run(Fork(run_id=run_id, new_run_id=fork_id))
    assert (await get(store, fork_id)).headers == successor_headers(headers, run_id)


@pytest.mark.parametrize("traceparent", [TRACED["traceparent"], f"cc-{TRACE}-{SPAN}-0b-more", "t"])
async def test_each_run_of_a_schedule_has_a_trace_of_its_own(
    store: Store, clock: Clock, traceparent: str
) -> None:
    """B10. It has a link to the span in which the schedule was created."""
    headers = {**TRACED, "traceparent": traceparent, "team": "ops"}
    scheduler = ManualScheduler(store)
    tick = await scheduler.create(target=msgspec.structs.replace(TARGET, headers=headers))
    await clock.advance(60)
    run = await get(store, run_of(await scheduler.fire(tick)))
    own = successor_headers(headers, None)
    assert run.headers == tick_headers(own, NAME, tick)
    link = read_parent(traceparent)
    assert (run.headers or {}).get(TRACE_LINK) == (None if link is None else str(link))
    assert parent_of(run.headers) is None


async def test_a_signal_names_the_span_of_its_sender(store: Store, ann: ManualWorker) -> None:
    """B10. The span of its run will be linked to it."""
    run_id, trace = await start(store), TRACED["traceparent"]
    sent = [
        NewSignal(run_id, "packed", trace=trace),
        NewSignal(run_id, "sent", signal_id="1", update=True, reply_to="me", trace=trace),
        NewSignal(run_id, "paid"),
    ]
    assert (await store.signal_runs(sent)).outcomes == ["delivered"] * 3
    told = [details(event) for event in (await log(store, run_id))[1:]]
    assert [each.pop("trace", None) for each in told] == [trace, trace, None]
    assert told[0] == {"signal_name": "packed", "input": None}
    assert told[1]["reply_to"] == "me"
    task = await ann.take()
    end = command("WorkflowCompleted", "")
    assert (await ann.commit(task, end, then=Finish("completed"))).refused == {}


async def test_ends_that_no_commit_has_made_are_taken_once_if_a_worker_asks(
    flows: Flows, worker: StepWorker, clock: Clock
) -> None:
    """B10. Of flows, and of runs that were ended from outside."""
    store = flows.store
    unheard = await start(store)
    await store.terminate_runs([unheard])
    assert await store.take_ends() == []
    ended = [await start(store), await start(store, timeout_seconds=1.0)]
    await store.terminate_runs(ended[:1])
    await clock.advance(2)
    await store.time_out_runs()
    ended.append(await flows.run_of(single("a", max_attempts=1), single("b", "a")))
    await worker.complete(await worker.one(), 1)
    await worker.complete(await worker.one(), 2)
    ended.append(await flows.start())
    await worker.fail(await worker.one())
    first = await store.take_ends(limit=1)
    assert sorted(first + await store.take_ends()) == sorted(ended)
    assert await store.take_ends() == []
    await clock.advance(61)
    late = await start(store)
    await store.terminate_runs([late])
    assert await store.take_ends() == []
