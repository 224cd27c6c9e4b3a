"""What agents of all frameworks have: words as they come, usage, pauses, any order of tools."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from holdfast import current_context
from holdfast.agents.recording import retry_after
from holdfast.errors import InvalidName, RunFailed
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.turn.checking import replay_to_end
from holdfast.testing import Environment
from holdfast.types import Restarted
from tests.agents import frameworks
from tests.agents.frameworks import (
    FRAMEWORKS,
    WORDS,
    Framework,
    Plan,
    Refused,
    ToolPlan,
    make,
    make_app,
    refused,
)
from tests.agents.prefixes import Recorded, check_prefixes, do, effects, nobody

CITIES = ("Rome", "Oslo", "Bern", "Kiel", "Graz")
START = 1_700_000_000_000_000  # microseconds since 1970

of_each = pytest.mark.parametrize("framework", FRAMEWORKS)


# Words as they come


@of_each
async def test_the_words_of_a_model_are_a_stream_of_the_run(framework: Framework) -> None:
    recorded = await check_prefixes(make_app(framework, Plan(stream="words")), "once", "hello?")
    assert recorded.result == "".join(WORDS)
    async with Environment(recorded.app) as env:
        handle = await env.client.start("once", "hello?")
        await env.result(handle)
        page = await handle.read_stream("words", type=str)
        assert tuple(item.value for item in page.items) == WORDS
        [key] = {item.key for item in page.items}
        assert ".stream" in key if framework == "pydantic_ai" else ".model" in key
        used = (await handle.values())["support.usage"]
        assert used["requests"] == 2
        assert used["input_tokens"] > 0


@of_each
async def test_a_model_may_say_all_at_once(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a value of a stream may have: it was paid for, and must not fail the step."""
    monkeypatch.setattr(frameworks, "WORDS", ("", "x" * 200_000, "y"))
    async with Environment(make_app(framework, Plan(stream="words"))) as env:
        handle = await env.client.start("once", "hello?")
        result = await env.result(handle)
        words = [word async for word in handle.stream("words", type=str)]
        assert "".join(words) == result
        assert all(words)


@of_each
async def test_who_reads_is_told_when_an_answer_begins_again(framework: Framework) -> None:
    failures: list[BaseException | None] = [None, None, OSError("cut off")]
    app = make_app(framework, Plan(stream="words", failures=failures))
    async with Environment(app) as env:
        handle = await env.client.start("once", "hello?")
        seen: list[str] = []

        async def read() -> None:
            async for each in handle.stream_items("words", type=str, restarts=True):
                seen.append("restarted" if isinstance(each, Restarted) else each.value)

        reading = asyncio.create_task(read())
        assert await env.result(handle) == "".join(WORDS)
        await reading
        assert seen[-3:] == list(WORDS)
        assert seen in ([*WORDS[:2], "restarted", *WORDS], list(WORDS)), seen
        late = [word async for word in handle.stream("words", type=str)]
        assert late == list(WORDS), "nothing of the attempt that failed"


@of_each
async def test_an_agent_that_streams_works_outside_of_a_workflow(framework: Framework) -> None:
    ask = make(framework, Plan(stream="words"))
    assert await ask("hello?") == "".join(WORDS)


@of_each
def test_a_name_that_no_stream_may_have_is_refused(framework: Framework) -> None:
    with pytest.raises(InvalidName, match="a stream"):
        make(framework, Plan(stream="the words"))


# Pauses


@of_each
async def test_retry_after_is_heeded_and_a_refused_request_is_not_repeated(
    framework: Framework,
) -> None:
    failures: list[BaseException | None] = [refused(framework, 429, 40.0), refused(framework, 503)]
    async with Environment(make_app(framework, Plan(failures=failures))) as env:
        began = env.now
        effects.clear()
        assert await env.run("once", "hello?") == "".join(WORDS)
        assert 41 < (env.now - began).total_seconds() < 45
        assert max(effects.values()) == 3
        failures.append(refused(framework, 401))
        effects.clear()
        with pytest.raises(RunFailed, match="401"):
            await env.run("once", "hello?")
        assert list(effects.values()) == [1]


def test_the_forms_of_retry_after() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    assert retry_after(Refused(429, retry_after="40")) == 40
    assert retry_after(Refused(429, retry_after="1.5")) == 1.5
    assert retry_after(Refused(429, retry_after="2", retry_after_ms="1500")) == 1.5
    assert 90 < (retry_after(Refused(429, retry_after=soon)) or 0) <= 100
    assert retry_after(Refused(429, retry_after=past)) == 0
    for text in ("", "soon", "-1", "nan", "1e9"):
        assert retry_after(Refused(429, retry_after=text)) is None
    assert retry_after(OSError()) is None


# Usage, context


@of_each
async def test_usage_is_a_value_of_the_run(framework: Framework) -> None:
    async with Environment(make_app(framework, Plan())) as env:
        handle = await env.client.start("once", "hello?")
        await env.result(handle)
        used = (await handle.values())["support.usage"]
        assert used["requests"] == 2
        assert used["input_tokens"] >= 20
        assert used["output_tokens"] > 0


@of_each
async def test_the_code_around_an_agent_has_the_context_and_a_tool_has_none(
    framework: Framework,
) -> None:
    seen: list[Any] = []

    def instructions() -> str:
        ctx = current_context()
        seen.append(ctx and ctx.run_id)
        return "be kind"

    async def weather(city: str) -> str:
        seen.append(current_context())
        return "sun"

    plan = Plan(instructions=instructions, tools=(ToolPlan(weather, "weather"),))
    async with Environment(make_app(framework, plan)) as env:
        handle = await env.client.start("once", "hello?")
        await env.result(handle)
        assert set(seen) == {handle.run_id, None}
        assert seen.count(None) == 1, "of the tool, which is a step"


# Tools at once


@of_each
async def test_five_parallel_tools_replay_to_the_same_end_whatever_their_order(
    framework: Framework,
) -> None:
    """200 seeds, a third for each framework."""
    seeds = range(FRAMEWORKS.index(framework), 200, len(FRAMEWORKS))

    async def weather(city: str) -> str:
        do()
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        ended.append(city)
        return f"sun in {city}"

    calls = tuple(("weather", {"city": city}) for city in CITIES)
    plan = Plan(tools=(ToolPlan(weather, "weather"),), calls=calls)
    app, orders = make_app(framework, plan), set[tuple[str, ...]]()
    [workflow] = app.workflows.values()
    async with Environment(app, replay=False) as env:
        for seed in seeds:
            chance, ended = random.Random(seed), list[str]()
            effects.clear()
            handle = await env.client.start("once", "hello?", key=str(seed))
            assert await env.result(handle) == "".join(WORDS)
            run_id = handle.run_id
            log = (await env.store.read_events([(run_id, 0)]))[run_id]
            info = RunInfo(run_id, "shop/once", 1, 1, START)
            replay_to_end(workflow, info, log, unused=())
            assert sorted(effects.values()) == [1] * 7, seed
            orders.add(tuple(ended))
    assert len(orders) > len(seeds) / 4, "chance had its part"


@of_each
async def test_five_parallel_tools_killed_anywhere(framework: Framework) -> None:
    calls = tuple(("weather", {"city": city}) for city in CITIES)
    app = make_app(framework, Plan(calls=calls))
    recorded = await Recorded(app, "once", "hello?", nobody).record()
    assert await recorded.check() > 7
