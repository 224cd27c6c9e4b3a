"""The timeline of a run that calls entities: each call is one span, up to its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from holdfast import App, Context, Retry
from holdfast.errors import UpdateFailed
from holdfast.testing import Environment

app = App("tills")
broken = list[int]()


@app.entity
@dataclass
class Till:
    key: str
    cents: int = 0

    async def add(self, cents: int) -> int:
        if cents < 0:
            raise ValueError("negative")
        self.cents += cents
        return self.cents

    async def count(self) -> str:
        await asyncio.sleep(3600)
        return "counted"


@app.step(retry=Retry.NEVER)
async def look() -> str:
    if broken:
        raise OSError(broken.pop())
    return '{"update_id": "no answer"}'


@app.workflow
async def sell(ctx: Context, cents: int) -> str:
    try:
        await ctx.entity(Till, "a").add(cents)
    except UpdateFailed:
        await ctx.entity(Till, "a").add(0)
    await look()
    return await ctx.entity(Till, "a").count()


@app.workflow
async def leave(ctx: Context) -> None:
    try:
        await ctx.entity(Till, "a", timeout="1m").count()
    except TimeoutError:
        await ctx.wait_for_signal("go")


@app.workflow
async def sell_all(ctx: Context) -> None:
    till = ctx.entity(Till, "a")
    await asyncio.gather(till.add(1), till.add(2), till.count())


async def calls_of(env: Environment, run_id: UUID) -> list[tuple[str, str, str]]:
    spans = (await env.client.timeline(run_id)).spans
    assert "update-reply" not in [span.label for span in spans]
    return [(s.label, s.outcome, s.note) for s in spans if s.kind in ("entity", "step")]


async def test_a_call_lasts_until_its_answer() -> None:
    """Fault: it was done when it was sent, and its answer was a signal without a name."""
    async with Environment(app) as env:
        run = await env.client.start(sell, 7)
        await env.wait_until_idle()
        till = (await env.client.runs.get((Till, "a"))).run_id
        looked = ("look", "done", '"{\\"update_id\\": \\"no answer\\"}"')
        done = [("Till.add", "done", "7"), looked]
        assert await calls_of(env, run.run_id) == [*done, ("Till.count", "open", f"run {till}")]
        added = asyncio.create_task(env.client.entity(Till, "a").add(1))
        await env.wait_until_idle()
        [told] = (await env.client.why(till)).details
        assert told.endswith("it waits until one does (under way: 'count')")
        assert await env.result(run) == "counted"
        assert await added == 8
        assert await calls_of(env, run.run_id) == [*done, ("Till.count", "done", '"counted"')]


async def test_a_call_that_raises_has_failed() -> None:
    async with Environment(app) as env:
        run = await env.client.start(sell, -1)
        await env.wait_until_idle()
        first, second, *_ = await calls_of(env, run.run_id)
        assert first == ("Till.add", "failed", "ValueError: negative")
        assert second == ("Till.add#2", "done", "0")


async def test_a_call_is_not_wanted_when_its_time_is_over() -> None:
    async with Environment(app) as env:
        run = await env.client.start(leave)
        await env.advance("10m")
        expected = [("Till.count", "dropped", "no longer wanted")]
        assert await calls_of(env, run.run_id) == expected
        assert (await env.client.why(run.run_id)).because == "it waits for signal 'go'"
        await run.signal("go")
        await env.result(run)
        assert await calls_of(env, run.run_id) == expected


async def test_calls_at_once_have_names_of_their_own() -> None:
    """Fault: their labels were Till.add/Till.add and Till.add#2/Till.add."""
    async with Environment(app) as env:
        run = await env.client.start(sell_all)
        await env.wait_until_idle()
        labels = [label for label, *_ in await calls_of(env, run.run_id)]
        assert labels == ["Till.add", "Till.add#2", "Till.count"]
        [told] = (await env.client.why(run.run_id)).details
        assert told.startswith("call Till.count: run ")


async def test_a_retry_shows_the_answers_that_it_has_copied_or_looked_for() -> None:
    broken.append(1)
    async with Environment(app) as env:
        run = await env.client.start(sell, 7)
        await env.wait_until_idle()
        retry = await env.client.runs.retry(run.run_id)
        assert await env.result(retry) == "counted"
        labels = [each[:2] for each in await calls_of(env, retry.run_id)]
        assert labels == [("Till.add", "done"), ("look", "done"), ("Till.count", "done")]
