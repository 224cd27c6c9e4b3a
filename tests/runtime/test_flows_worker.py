"""Flows on their workers: steps that run, fail, are retried and handed over, to the run's end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Context, current_flow_step
from holdfast.client import Client
from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.definitions.steps import StepContext
from holdfast.errors import ConfigurationError, DatabaseUnavailable, RunCancelled, RunFailed
from holdfast.insight.check import Check, CheckReport
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.types import Release
from holdfast.worker.late_flows import LateFlows
from tests.runtime.desk import eventually, working


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(store=store) as client:
        yield client


@dataclass
class Site:
    url: str


@dataclass
class Page:
    content: str
    links: list[str]


async def test_steps_run_in_the_order_of_the_graph_and_the_leaves_are_the_output(
    store: Store, client: Client
) -> None:
    """P1 to P4, P8: the example of pgflow's own documentation."""
    app = App("web")
    analyze = app.flow("analyze_website", input=Site)

    @analyze.step
    async def website(run: Site) -> Page:
        return Page(f"content of {run.url}", ["a", "b"])

    @analyze.step
    def sentiment(website: Page) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return 0.5

    @analyze.step
    async def summary(page: Page = website.output) -> str:
        return page.content.upper()

    @analyze.step
    async def save(sentiment: float, summary: str, run: Site) -> dict[str, Any]:
        return {"url": run.url, "sentiment": sentiment, "summary": summary}

    async with working(app, store):
        output = await client.run(analyze, Site("x.org"), wait="60s")
    assert output == {"save": {"url": "x.org", "sentiment": 0.5, "summary": "CONTENT OF X.ORG"}}


async def test_a_map_runs_each_element_and_keeps_their_order(store: Store, client: Client) -> None:
    app = App("maps")
    flow = app.flow("squares", input=list[int])

    @flow.map(flow.run)
    async def squared(number: int) -> int:
        await asyncio.sleep(0.01 * (number % 3))
        return number * number

    @flow.map(squared)
    def text(number: int) -> str:
        return str(number)

    @flow.step
    async def joined(text: list[str]) -> str:
        return " ".join(text)

    async with working(app, store):
        assert await client.run(flow, list(range(50)), wait="60s") == {
            "joined": " ".join(str(number * number) for number in range(50))
        }
        assert await client.run(flow, [], wait="60s") == {"joined": ""}


async def test_a_failed_attempt_is_repeated_and_knows_the_error_before(
    store: Store, client: Client
) -> None:
    app = App("again")
    flow = app.flow("flaky", attempts=3, base_delay="0s")
    seen: list[tuple[int, str | None, str]] = []

    @flow.step
    async def shaky(run: int) -> int:
        step = current_flow_step()
        last = step.last_error
        seen.append((step.attempt, None if last is None else last.message, step.idempotency_key))
        if step.attempt < 3:
            raise ValueError(f"no luck {step.attempt}")
        return run

    async with working(app, store):
        handle = await client.start(flow, 7)
        assert await handle.result("60s") == {"shaky": 7}
    key = f"{handle.run_id}/shaky"
    assert seen == [(1, None, key), (2, "no luck 1", key), (3, "no luck 2", key)]


async def test_should_retry_decides_by_the_error(store: Store, client: Client) -> None:
    """One that says no, or that fails itself, makes the failure the last; of a map as well."""
    app = App("refusing")
    flow = app.flow("refused", attempts=3, base_delay="0s", input=list[int])
    calls = Counter[str]()

    def broken(error: BaseException) -> bool:
        raise RuntimeError("no answer")

    def fails(name: str, error: Exception) -> None:
        calls[name] += 1
        raise error

    @flow.step(should_retry=lambda error: not isinstance(error, KeyError), on_exhausted="skip")
    async def final(run: list[int]) -> None:
        fails("final", KeyError("gone"))

    @flow.step(should_retry=lambda error: not isinstance(error, KeyError), on_exhausted="skip")
    def again(run: list[int]) -> None:
        fails("again", ValueError("busy"))

    @flow.step(should_retry=broken, on_exhausted="skip")
    async def odd(run: list[int]) -> None:
        fails("odd", ValueError("busy"))

    @flow.map(flow.run, should_retry=lambda error: False, on_exhausted="skip")
    async def each(element: int) -> None:
        fails("each", ValueError("busy"))

    async with working(app, store):
        await client.run(flow, [1], wait="60s")
    assert calls == {"final": 1, "again": 3, "odd": 1, "each": 1}
    with pytest.raises(ConfigurationError, match="step other of flow refused: should_retry must"):
        flow.step(should_retry=7, name="other")(lambda: None)  # type: ignore[typeddict-item]


async def test_the_last_failure_fails_the_run_with_the_error_of_the_step(
    store: Store, client: Client
) -> None:
    app = App("failing")
    flow = app.flow("failing", attempts=1)

    @flow.step
    async def bad() -> int:
        raise ValueError("never")

    async with working(app, store):
        with pytest.raises(RunFailed, match="never") as failure:
            await client.run(flow, wait="60s")
    cause = failure.value.error.cause
    assert cause is not None
    assert cause.kind == "builtins.ValueError"
    assert "never" in cause.traceback


async def test_an_error_that_the_policy_skips_gives_none_to_those_after_it(
    store: Store, client: Client
) -> None:
    app = App("skipping")
    flow = app.flow("skipping", attempts=1)

    @flow.step(on_exhausted="skip")
    async def bad() -> int:
        raise ValueError("never")

    @flow.step
    async def after(bad: int | None) -> bool:
        return current_flow_step().skipped("bad") and bad is None

    async with working(app, store):
        assert await client.run(flow, wait="60s") == {"after": True}


async def test_a_step_that_takes_too_long_fails_with_a_timeout(
    store: Store, client: Client
) -> None:
    app = App("slow")
    flow = app.flow("slow", attempts=1)

    @flow.step(timeout="1s")
    async def endless() -> int:
        await asyncio.sleep(60)
        return 1

    async with working(app, store):
        with pytest.raises(RunFailed, match="longer than 1 s"):
            await client.run(flow, wait="60s")


async def test_cancelling_a_run_stops_its_running_steps(store: Store, client: Client) -> None:
    app = App("stopped")
    flow = app.flow("stopped")
    stopped = asyncio.Event()
    begun = asyncio.Event()

    @flow.step
    async def endless() -> int:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return 1

    async with working(app, store) as worker:
        handle = await client.start(flow)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result("60s")
        await asyncio.wait_for(stopped.wait(), 60)
        await eventually(lambda: worker.active == 0)


async def test_middleware_of_steps_surrounds_steps_of_flows(store: Store, client: Client) -> None:
    app = App("layered")
    flow = app.flow("layered")
    seen: list[str] = []

    class Spy(Middleware):
        async def step(self, context: StepContext, call_next: CallNext) -> object:
            seen.append(context.step)
            return await call_next()

    app.add_middleware(Spy())

    @flow.step
    async def first() -> int:
        return 1

    @flow.step
    def second(first: int) -> int:
        return first + 1

    async with working(app, store):
        assert await client.run(flow, wait="60s") == {"second": 2}
    assert seen == ["first", "second"]


async def test_a_chain_needs_one_claim_because_the_next_step_is_handed_over(store: Store) -> None:
    app = App("chain")
    flow = app.flow("chain")

    @flow.step
    async def first() -> int:
        return 1

    @flow.step
    async def second(first: int) -> int:
        return first + 1

    @flow.step
    async def third(second: int) -> int:
        return second + 1

    calls = Counter[str]()
    end_step_tasks = store.end_step_tasks

    async def counted(*given: Any, **options: Any) -> Any:
        ended = await end_step_tasks(*given, **options)
        calls["ends"] += 1
        calls["handed"] += len(ended.tasks)
        return ended

    store.end_step_tasks = counted  # type: ignore[method-assign]
    async with working(app, store), Client(store=store) as client:
        await asyncio.sleep(0.1)  # it has claimed all that there was
        assert await client.run(flow, wait="60s") == {"third": 3}
    assert calls == {"ends": 3, "handed": 2}


async def test_a_worker_with_another_shape_of_the_same_version_refuses_to_start(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """P9. One that replaces it says what differs."""

    def make(*, timeout: str) -> App:
        app = App("shapes")
        flow = app.flow("shaped")

        @flow.step(timeout=timeout)
        async def only() -> int:
            return 1

        return app

    async with working(make(timeout="10s"), store):
        pass
    async with working(make(timeout="10s"), store):
        pass
    with pytest.raises(ConfigurationError, match=r"step only: timeout .*version=2"):
        async with working(make(timeout="20s"), store):
            pass
    async with working(make(timeout="20s"), store, replace_flows=True):
        pass
    said = "step only: timeout 20 s in the code, 10 s in the database"
    assert [said in line for line in caplog.messages if "was replaced" in line] == [True]


async def test_a_run_that_was_started_by_name_before_the_flow_was_known_is_run_as_a_flow(
    store: Store, client: Client
) -> None:
    app = App("late")
    flow = app.flow("late", input=list[int])

    @flow.map(flow.run)
    async def doubled(number: int) -> int:
        return 2 * number

    handle = await client.start("late/late", [1, 2], key="k")
    bad = await client.start("late/late", "no list")
    assert (await handle.get()).kind == "workflow"
    async with working(app, store):
        assert await handle.result("60s") == {"doubled": [2, 4]}
        assert ((await handle.get()).kind, (await handle.get()).key) == ("flow", "k")
        await eventually(lambda: is_stuck(client, bad.run_id))
        why = await client.why(bad.run_id)
        assert "must be an array" in why.because
        await client.runs.terminate(bad.run_id)


async def test_a_late_flow_whose_lease_was_lost_is_left_to_who_has_it(
    store: Store, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not called a workflow that has become a flow."""
    handle = await client.start("kinds/stolen", 1)
    flow = App("kinds").flow("stolen", input=int)

    @flow.step
    async def only(run: int) -> int:
        return run

    await store.ensure_flow(flow.shape, "hash")
    served = ["kinds/stolen@1"]
    claims = await store.claim_tasks("ann", ["default"], served, 1, lease_seconds=60)
    released = list[Release]()
    late = LateFlows(store, "bob", {flow.handler}, lambda _: None, released.append, lambda: 0)
    assert [late.take(each) for each in claims.tasks] == [True]
    await eventually(lambda: not late.busy)
    assert released == []
    [told] = [each for each in caplog.messages if str(handle.run_id) in each]
    assert "its lease was lost: another worker has taken it over, or it has ended" in told
    await handle.terminate()  # others look at all open runs of the app


def kinds(kind: str) -> App:
    """An app in which a name is that of a workflow, or of a flow."""
    app = App("kinds")
    if kind == "workflow":

        @app.step
        async def note(number: int) -> int:
            return number

        @app.workflow(name="order")
        async def order(ctx: Context, number: int) -> int:
            await note(number)
            return await ctx.wait_for_signal("more", type=int)

        return app
    flow = app.flow("order", input=int)

    @flow.step
    async def first(run: int) -> int:
        return run

    @flow.step(start_delay="2s")
    async def second(first: int) -> int:
        return first

    return app


async def test_a_workflow_that_has_become_a_flow_leaves_its_runs_stuck(
    store: Store, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A flow cannot continue what the code of a workflow has begun; a roll-back does."""
    async with working(kinds("workflow"), store):
        handle = await client.start("kinds/order", 1)
        await eventually(lambda: waits_for_more(client, handle.run_id))
    new = await client.start("kinds/order", 2)
    report = await checked(kinds("flow"), store)
    assert [(each.kind, each.run_id) for each in report.findings] == [("stuck", handle.run_id)]
    await handle.signal("more", 7)
    async with working(kinds("flow"), store):
        await eventually(lambda: is_stuck(client, handle.run_id))
        assert await new.result("60s") == {"second": 2}
    because = (await client.why(handle.run_id)).because
    assert "it began as a run of workflow kinds/order@1, which is a flow in this code" in because
    assert because.endswith(report.findings[0].reason)
    assert any("which is a flow in this code" in each for each in caplog.messages)
    await client.runs.resume(handle.run_id)
    async with working(kinds("workflow"), store):
        assert await handle.result("60s") == 7


async def test_a_flow_that_has_become_a_workflow_leaves_its_steps_alone(
    store: Store, client: Client
) -> None:
    async with working(kinds("flow"), store):
        handle = await client.start("kinds/order", 1)
        await eventually(lambda: has_ended_first(client, handle.run_id))
    report = await checked(kinds("workflow"), store)
    assert [(each.kind, each.run_id) for each in report.findings] == [("unserved", handle.run_id)]
    assert not (await checked(kinds("flow"), store)).findings
    async with working(kinds("workflow"), store):

        async def is_told() -> bool:
            return report.findings[0].reason in (await client.why(handle.run_id)).because

        await eventually(is_told)
    async with working(kinds("flow"), store):
        assert await handle.result("60s") == {"second": 1}


async def checked(app: App, store: Store) -> CheckReport:
    check = Check(app)
    await check.add_open_runs(store)
    return check.report()


async def waits_for_more(client: Client, run_id: UUID) -> bool:
    wait = (await client.runs.get(run_id)).record.wait
    return wait is not None and wait.awaiting == ("more",)


async def has_ended_first(client: Client, run_id: UUID) -> bool:
    return any(each.event.type == "FlowStepCompleted" for each in await client.runs.log(run_id))


async def is_stuck(client: Client, run_id: UUID) -> bool:
    return (await client.runs.get(run_id)).state == "stuck"


async def test_a_drained_worker_gives_its_steps_to_another(store: Store, client: Client) -> None:
    app = App("handed")
    flow = app.flow("handed")
    attempts: list[int] = []

    @flow.step
    async def once() -> int:
        attempts.append(current_flow_step().attempt)
        if len(attempts) == 1:
            await asyncio.sleep(60)
        return len(attempts)

    async with working(app, store):
        handle = await client.start(flow)
        await eventually(lambda: bool(attempts))
    async with working(app, store):
        assert await handle.result("60s") == {"once": 2}
    assert attempts == [1, 1], "an attempt that was given back does not count"


async def test_runs_of_a_replaced_shape_are_left_to_workers_that_have_it(
    store: Store, client: Client
) -> None:
    """As while a deploy that replaces a shape has not reached every worker."""

    def make(name: str) -> App:
        app = App("renamed")
        flow = app.flow("renamed")

        @flow.step
        async def first(run: int) -> int:
            return run

        @flow.step(name=name)
        async def second(first: int) -> str:
            return f"{name} {first}"

        return app

    async with working(make("old"), store), working(make("new"), store, replace_flows=True):
        handles = [await client.start("renamed/renamed", number) for number in range(20)]
        outputs = [await handle.result("60s") for handle in handles]
    assert outputs == [{"new": f"new {number}"} for number in range(20)]


def first_and(second: Callable[[Any, Any], object]) -> App:
    """Return an app with a flow whose step `second` is what `second` makes of it and `first`."""
    app = App("shapes")
    flow = app.flow("shapes", input=Any)

    @flow.step
    async def first(run: Any) -> list[Any]:
        return [{"first": run}]

    second(flow, first)
    return app


def takes_first(flow: Any, _: Any) -> None:
    @flow.step
    async def second(first: Any) -> str:
        return f"of {first}"


def takes_run(flow: Any, _: Any) -> None:
    @flow.step
    async def second(run: Any) -> str:
        return f"of {run}"


def takes_both(flow: Any, _: Any) -> None:
    @flow.step
    async def second(run: Any, first: Any) -> str:
        return f"of {run} and {first}"


def takes_what_may_be_skipped(flow: Any, _: Any) -> None:
    @flow.step(when={"never": True})
    async def may(run: Any) -> str:
        return "may"

    @flow.step
    async def second(run: Any, may: str | None) -> str:
        return f"of {run} and {may}"


def takes_errors(flow: Any, _: Any) -> None:
    @flow.step(trigger_rule="all_done")
    async def second(first: Any) -> str:
        return f"of all {first}"


def maps_first(flow: Any, first: Any) -> None:
    @flow.map(first)
    async def second(each: Any) -> str:
        return f"of {each}"


def maps_run(flow: Any, _: Any) -> None:
    @flow.map(flow.run)
    async def second(each: Any) -> str:
        return f"of {each}"


@pytest.mark.parametrize(
    ("old", "new", "output"),
    [
        (takes_first, takes_run, "of [1]"),
        (takes_run, takes_both, "of [1] and [{'first': [1]}]"),
        (takes_what_may_be_skipped, takes_run, "of [1]"),
        (takes_first, takes_errors, "of all [{'first': [1]}]"),
        (takes_first, maps_first, ["of {'first': [1]}"]),
        (maps_first, takes_first, "of [{'first': [1]}]"),
        (maps_first, maps_run, ["of 1"]),
    ],
)
async def test_a_worker_with_the_code_of_before_leaves_runs_of_the_shape_that_replaced_its_own(
    store: Store, client: Client, old: Any, new: Any, output: Any
) -> None:
    """It would be given what its code does not take, or take it for something else."""
    async with working(first_and(old), store, replace_flows=True):
        await client.flows.compile(first_and(new), replace=True)
        handle = await client.start("shapes/shapes", [1])

        async def is_left() -> bool:
            why = str(await client.why(handle.run_id))
            return "1 worker could take it; one has left it: the shape of flow" in why

        await eventually(is_left)
    async with working(first_and(new), store):
        found: Any = await handle.result("60s")
    assert found["second"] == output


async def test_a_report_that_is_not_answered_in_time_is_repeated_with_more_time() -> None:
    """The end of a step may begin a map of very many elements."""
    app, store = App("slow"), MemoryStore(wall_clock)
    flow = app.flow("slow")

    @flow.step
    async def only() -> int:
        return 1

    end_step_tasks, waited = store.end_step_tasks, list[int]()

    async def late(*given: Any, patience: int) -> Any:
        waited.append(patience)
        if len(waited) < 3:
            raise DatabaseUnavailable("no answer")
        return await end_step_tasks(*given, patience=patience)

    store.end_step_tasks = late  # type: ignore[method-assign, assignment]
    async with working(app, store), Client(store=store) as client:
        assert await client.run(flow, wait="60s") == {"only": 1}
    assert waited == [1, 3, 9]
