"""A workflow that starts flows: awaited, let go, cancelled, on both stores and on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest

from holdfast import App, ChildFailed, Context, RunCancelled
from holdfast.client import Client
from holdfast.definitions.workflows import Workflow
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.store.port import Store
from holdfast.testing import Environment
from tests.runtime.bench import Bench
from tests.runtime.desk import eventually, working

app = App("nested")
attempts: list[int] = []


@dataclass
class Site:
    url: str


@dataclass
class Page:
    text: str


analyze = app.flow("analyze", input=Site, attempts=1)


@analyze.step
async def website(run: Site) -> Page:
    if run.url == "bad":
        raise ValueError("no such site")
    return Page(f"page of {run.url}")


@analyze.step
def words(page: Page = website.output) -> list[str]:
    return page.text.split()


@analyze.step
async def shout(page: Page = website.output) -> Page:
    return Page(page.text.upper())


never = app.flow("never", attempts=1)


@never.step(start_delay="100d")
async def late() -> int:
    return 1


retried = app.flow("retried", attempts=2, base_delay="1h")


@retried.step
async def shaky() -> int:
    attempts.append(1)
    if len(attempts) == 1:
        raise OSError("not yet")
    return len(attempts)


each = app.flow("each", input=list[int])


@each.map(each.run)
async def doubled(number: int) -> int:
    return 2 * number


@app.workflow
async def awaits(ctx: Context, url: str) -> str:
    found = await analyze(Site(url))
    assert found["words"] == ["page", "of", url]
    assert found["shout"] == Page(f"PAGE OF {url}".upper())
    return ",".join(sorted(found))


@app.workflow
async def catches(ctx: Context, url: str) -> list[str]:
    try:
        await analyze(Site(url))
    except ChildFailed as failure:
        cause = failure.error.cause
        assert cause is not None
        return [failure.status, cause.message]
    return []


@app.workflow
async def by_name(ctx: Context) -> object:
    first = await ctx.child("analyze", Site("a"), key="site-a", timeout="1h")
    second = await ctx.child(analyze, Site("a"), key="site-a")
    return first == second


@app.workflow
async def lets_go(ctx: Context) -> str:
    handle = await ctx.start_child(analyze, Site("b"), tags=["side"])
    ctx.set_value("child", str(handle.run_id))
    return ",".join(sorted(await handle.result()))


@app.workflow
async def limited(ctx: Context) -> str:
    try:
        await ctx.child(never, timeout="1d")
    except ChildFailed as failure:
        return failure.status
    return "no limit"


@app.workflow
async def gives_up(ctx: Context) -> str:
    try:
        async with asyncio.timeout(60):
            await never()
    except TimeoutError:
        return "late"
    return "in time"


@app.workflow
async def waits(ctx: Context) -> None:
    await never()


@app.workflow
async def foreign(ctx: Context) -> list[str]:
    found: list[str] = []
    for version, given in ((7, None), (1, {"no": "array"})):
        try:
            await ctx.child("each", given, version=version)
        except ChildFailed as failure:
            found.append(f"{failure.status} {failure.error.kind}")
        except InvalidInput:
            found.append("refused by its type")
    return found


@app.workflow
async def many(ctx: Context) -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each([n])) for n in range(10)]
    return sum(sum(value) for task in tasks for value in task.result().values())  # type: ignore[call-overload]


@app.workflow
async def patient(ctx: Context) -> object:
    return await retried()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    async with Client(app=app, store=store) as client, working(app, store):
        yield client


async def test_a_workflow_awaits_a_flow_and_its_output_has_the_declared_types(
    client: Client,
) -> None:
    assert await client.run(awaits, "x", wait="60s") == "shout,words"


async def test_a_flow_that_fails_raises_child_failed_with_the_error_of_its_step(
    client: Client,
) -> None:
    assert await client.run(catches, "bad", wait="60s") == ["failed", "no such site"]


async def test_a_key_finds_the_same_run_by_name_and_by_definition(client: Client) -> None:
    assert await client.run(by_name, wait="60s") is True


async def test_a_flow_is_started_without_waiting(client: Client) -> None:
    handle = await client.start(lets_go)
    assert await handle.result("60s") == "shout,words"
    [child] = (await client.runs.list(parent=handle.run_id)).runs
    assert str(child.run_id) == (await handle.values())["child"]
    assert (child.kind, child.tags, child.name) == ("flow", ("side",), "analyze")


async def test_ten_flows_of_one_workflow_run_side_by_side(client: Client) -> None:
    assert await client.run(many, wait="60s") == 90


async def test_cancelling_the_workflow_cancels_the_flow_that_it_awaits(client: Client) -> None:
    handle = await client.start(waits)

    async def started() -> bool:
        return bool((await client.runs.list(parent=handle.run_id)).runs)

    await eventually(started)
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result("60s")
    [child] = (await client.runs.list(parent=handle.run_id)).runs
    assert child.status == "cancelled"


async def test_a_timeout_in_the_workflow_cancels_the_flow() -> None:
    async with Environment(app) as env:
        handle = await env.client.start(gives_up)
        assert await env.result(handle) == "late"
        [child] = (await env.client.runs.list(parent=handle.run_id)).runs
        assert child.status == "cancelled"


async def test_the_deadline_of_a_child_ends_it() -> None:
    async with Environment(app) as env:
        assert await env.run(limited) == "timed_out"


async def test_retries_of_a_child_wait_in_virtual_time() -> None:
    attempts.clear()
    async with Environment(app) as env:
        began = env.now
        assert await env.run(patient) == {"shaky": 2}
        assert (env.now - began).total_seconds() >= 7200


async def test_a_start_that_the_database_refuses_fails_the_call_only() -> None:
    async with Environment(app) as env:
        assert await env.run(foreign) == [
            "refused holdfast.errors.UnknownFlow",
            "refused by its type",
        ]


async def test_a_flow_called_outside_of_a_workflow_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="flow analyze is called outside of a workflow"):
        analyze(Site("x"))


def test_the_log_says_what_was_started_and_a_replay_finds_it() -> None:
    async def code(ctx: Context) -> object:
        return await analyze(Site("a"))

    bench = Bench(code)
    bench.commit()
    [started] = bench.details_of("ChildStarted")
    wanted = {
        "kind": "flow",
        "workflow_name": "nested/analyze",
        "version": 1,
        "input": {"url": "a"},
        "parent_close": "cancel",
        "timeout": None,
        "retention": 30 * 86_400.0,
    }
    assert {name: started[name] for name in wanted} == wanted
    bench.crash()
    bench.settle()
    bench.resume(bench.child_completed("analyze", {"words": ["w"], "shout": {"text": "A"}}))
    bench.commit()
    assert bench.output == {"words": ["w"], "shout": {"text": "A"}}
    assert len(bench.of_type("ChildStarted")) == 1


def test_a_log_of_a_release_without_kinds_replays() -> None:
    ship = Workflow(_ship, name="ship")

    async def code(ctx: Context) -> int:
        return await ship(7)

    bench = Bench(code)
    bench.commit()
    [event] = bench.of_type("ChildStarted")
    old = json.loads(event.details or "")
    assert old.pop("kind") == "workflow"
    bench.log[bench.log.index(event)] = msgspec.structs.replace(event, details=json.dumps(old))
    bench.crash()
    bench.settle()
    bench.resume(bench.child_completed("ship", 70))
    bench.commit()
    assert bench.output == 70
    assert len(bench.of_type("ChildStarted")) == 1


async def _ship(ctx: Context, order: int) -> int:
    raise AssertionError("another turn runs it")
