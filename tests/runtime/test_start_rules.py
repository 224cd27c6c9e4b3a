"""Rules for starts with a worker: in virtual time, and children that a rule refuses."""

from __future__ import annotations

from holdfast import App, ChildFailed, Context, Debounce, Singleton, Throttle
from holdfast.testing import Environment

app = App("shop")


@app.workflow(debounce=Debounce("5s", max_wait="1m"))
async def index(ctx: Context, number: int) -> int:
    return number


@app.workflow(singleton=Singleton(on_conflict="queue"))
async def rebuild(ctx: Context, number: int) -> int:
    await ctx.sleep("1h")
    return number


@app.workflow(throttle=Throttle(1, per="1h"))
async def remind(ctx: Context) -> str:
    return ctx.now().isoformat()


@app.workflow(singleton=Singleton())
async def only(ctx: Context) -> str:
    return await ctx.wait_for_signal("end", type=str)


@app.workflow
async def parent(ctx: Context) -> str:
    try:
        return await only()
    except ChildFailed as failed:
        return f"{failed.status}: {failed.error.kind}"


async def test_debounced_run_begins_with_the_last_input_in_virtual_time() -> None:
    async with Environment(app) as env:
        began = env.now
        handles = [await env.client.start(index, number) for number in range(3)]
        assert {handle.run_id for handle in handles} == {handles[0].run_id}
        assert await env.result(handles[0]) == 2
        assert (env.now - began).total_seconds() == 5


async def test_queued_singletons_run_one_after_another_in_virtual_time() -> None:
    async with Environment(app) as env:
        began = env.now
        handles = [await env.client.start(rebuild, number) for number in range(3)]
        assert [await env.result(handle) for handle in handles] == [0, 1, 2]
        assert (env.now - began).total_seconds() == 3 * 3600


async def test_throttled_runs_begin_a_period_apart_in_virtual_time() -> None:
    async with Environment(app) as env:
        began = env.now
        handles = [await env.client.start(remind) for _ in range(3)]
        assert len({await env.result(handle) for handle in handles}) == 3
        assert (env.now - began).total_seconds() == 2 * 3600


async def test_child_that_a_rule_refuses_fails_in_its_parents_code() -> None:
    async with Environment(app) as env:
        active = await env.client.start(only)
        assert await env.run(parent) == "refused: holdfast.errors.RunActive"
        await active.signal("end", "done")
        assert await env.result(active) == "done"
