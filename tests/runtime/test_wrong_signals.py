"""A signal of a wrong shape that nobody catches, and what leads out of it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, Context, RunFailed
from holdfast.insight.timeline import read_run_spans
from holdfast.testing import Environment

app = App("parcels")


@app.step
async def pay(cents: int) -> int:
    return cents


@app.activity
async def label(boxes: int) -> str:
    return f"{boxes} boxes"


@app.workflow
async def parcel(ctx: Context) -> int:
    await pay(5)
    return await ctx.wait_for_signal("packed", type=int)


@app.workflow
async def by_function(ctx: Context) -> object:
    name: Any = label
    return await ctx.activity(name, 2)


async def test_a_fork_from_before_the_signal_leads_out_of_a_misfit() -> None:
    async with Environment(app) as env:
        first = await env.client.start(parcel)
        await env.wait_until_idle()
        await first.signal("packed", "two")
        with pytest.raises(RunFailed, match="signal packed"):
            await env.result(first)
        failed = first
        for _ in range(2):  # the run, and its retry, which takes the same signal
            why = await env.client.why(failed.run_id)
            fork, retry = why.actions
            assert (fork.do, retry.do) == ("fork", "retry")
            assert "a retry takes the signal again" in why.details[0]
            assert fork.index is not None
            forked = await env.client.runs.fork(failed.run_id, index=fork.index)
            await forked.signal("packed", 2)
            assert await env.result(forked) == 2
            failed = await env.client.runs.retry(failed.run_id)
            with pytest.raises(RunFailed, match="signal packed"):
                await env.result(failed)
        run = (await first.get()).record
        log = (await env.store.read_events([(first.run_id, 0)]))[first.run_id]
        notes = [span.note for span in read_run_spans(run, log, []) if span.kind == "patch"]
        assert notes == ["the value does not fit the type that the code declares"]


async def test_a_signal_that_came_before_other_calls_leads_to_no_fork() -> None:
    async with Environment(app) as env:
        handle = await env.client.start(parcel)
        await handle.signal("packed", "two")
        with pytest.raises(RunFailed, match="signal packed"):
            await env.result(handle)
        why = await env.client.why(handle.run_id)
        assert [each.do for each in why.actions] == ["retry"]  # a fork would pay again
        assert why.details[0].endswith("only after the code was corrected")


async def test_a_function_in_place_of_a_name_is_to_be_called() -> None:
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match=r"which is a text: call what this program has"):
            await env.run(by_function)
