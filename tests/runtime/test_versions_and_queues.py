"""A version that no workflow can have, and an empty queue, are named where they are given."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast import App, Context, RunFailed
from holdfast.errors import ConfigurationError, InvalidName
from holdfast.testing import Environment

app = App("shop")


@app.workflow
async def pack(ctx: Context) -> str:
    return "packed"


@app.workflow
async def again(ctx: Context, version: Any) -> None:
    ctx.continue_as_new("more", version=version)


@app.workflow
async def parent(ctx: Context, options: dict[str, Any]) -> str:
    return await ctx.child(pack, **cast(Any, options))


@pytest.mark.parametrize("version", [0, -1, 2**31, 1.5, "2", True])
async def test_a_version_that_no_workflow_can_have_is_refused(version: Any) -> None:
    """The commit of the run failed, or nothing ever ran what it continued as."""
    async with Environment(app) as env:
        for workflow, given in ((again, version), (parent, {"version": version})):
            handle = await env.client.start(cast(Any, workflow), given)
            with pytest.raises(
                RunFailed, match=r"ConfigurationError: .*version: a whole number from 1 to"
            ):
                await env.result(handle)
        with pytest.raises(ConfigurationError, match="version: a whole number from 1 to"):
            await env.client.start("shop/pack", version=version)


async def test_an_empty_queue_is_not_the_default_one() -> None:
    async with Environment(app) as env:
        for start in (
            env.client.start(pack, queue=""),
            env.client.schedules.create("daily", pack, "@daily", queue=""),
        ):
            with pytest.raises(InvalidName, match="not a name for a queue"):
                await start
        handle = await env.client.start(parent, {"queue": ""})
        with pytest.raises(RunFailed, match="not a name for a queue"):
            await env.result(handle)
    with pytest.raises(InvalidName, match="not a name for a queue"):
        app.job(name="thumb", queue="")(lambda: None)
