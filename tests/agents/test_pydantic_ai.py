"""Agents of Pydantic AI in workflows: what is recorded is not paid twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import Instrumentation, RequestInput
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.toolsets._dynamic import DynamicToolset
from pydantic_ai.usage import UsageLimits

from holdfast import App, Context, Retry, current_step
from holdfast.agents.pydantic_ai import HoldfastDurability
from holdfast.errors import ConfigurationError, RunFailed
from holdfast.testing import Environment
from tests.agents.prefixes import Recorded, approve_all, check_prefixes, do, effects, nobody

CITIES = ("Rome", "Oslo", "Bern", "Kiel", "Graz")


def script(*turns: list[Any]) -> FunctionModel:
    """Return a model that answers with these parts, one list a request, then with what it knows."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        do("model")
        made = sum(isinstance(message, ModelResponse) for message in messages)
        parts = turns[made] if made < len(turns) else [TextPart(told(messages))]
        parts = [TextPart(part) if isinstance(part, str) else part for part in parts]
        return ModelResponse(parts=parts, timestamp=datetime(2026, 1, 1, tzinfo=UTC))

    return FunctionModel(answer)


def told(messages: list[ModelMessage]) -> str:
    """Return what the tools have told the model, in the order of the calls."""
    parts = [part for message in messages for part in message.parts]
    return ", ".join(str(part.content) for part in parts if isinstance(part, ToolReturnPart))


def call(tool: str, **arguments: object) -> ToolCallPart:
    return ToolCallPart(
        tool, arguments, tool_call_id="-".join(map(str, (tool, *arguments.values())))
    )


async def weather(city: str) -> str:
    do(city)
    await asyncio.sleep(random.random() / 200)
    return f"sun in {city}"


def refund(order: int) -> str:
    do("refund")
    return f"{order} refunded"


def agent_app(agent: Agent[Any, str], name: str = "shop") -> App:
    app = App(name)

    @app.step
    async def save(messages: str) -> int:
        do("save")
        return len(messages)

    @app.workflow
    async def answer(ctx: Context, question: str) -> str:
        result = await agent.run(question)
        again = await agent.run("and again?", message_history=result.all_messages())
        # Its argument is compared on replay: the messages have no time or id of their own then.
        await save(again.all_messages_json().decode())
        return f"{result.output} | {again.output}"

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    return app


def be_kind() -> str:
    """Return instructions: elsewhere it would be called in a thread."""
    return "be kind"


def support(**options: Any) -> Agent[Any, str]:
    return Agent(
        script([call("weather", city=city) for city in CITIES], [call("refund", order=17)]),
        name="support",
        instructions=be_kind,
        tools=[weather, Tool(refund, requires_approval=True)],
        capabilities=[HoldfastDurability(**options)],
    )


async def test_an_agent_killed_anywhere_repeats_nothing_that_is_recorded() -> None:
    recorded = await check_prefixes(agent_app(support()), "answer", "hello?", approve_all)
    assert "sun in Rome, sun in Oslo, sun in Bern, sun in Kiel, sun in Graz" in str(recorded.result)
    assert "17 refunded" in str(recorded.result)


async def run_once(agent: Agent[Any, str], people: Any = approve_all) -> object:
    """Run an agent in a workflow to its end."""
    effects.clear()
    async with Environment(agent_app(agent)) as env:
        handle = await env.client.start("once", "hello?")
        await people(env, handle)
        return await env.result(handle)


def lone(tools: list[Any], *turns: list[Any], **options: Any) -> Agent[Any, str]:
    durable = HoldfastDurability(**options)
    return Agent(script(*turns), name="support", tools=tools, capabilities=[durable])


async def failure(agent: Agent[Any, str]) -> str:
    """Return why a run fails."""
    with pytest.raises(RunFailed) as caught:
        await run_once(agent)
    return str(caught.value)


async def test_two_runs_of_an_agent_at_once_are_killed_anywhere() -> None:
    agent, app = lone([weather], [call("weather", city="Rome")]), App("shop")

    @app.workflow
    async def both(ctx: Context, question: str) -> list[str]:
        # As long as the question: whichever is answered first, the usage so far is the same.
        results = await asyncio.gather(agent.run(question), agent.run("again?"))
        return [result.output for result in results]

    recorded = await check_prefixes(app, "both", "hello?")
    assert recorded.result == ["sun in Rome", "sun in Rome"]
    keys = {event.key for event in recorded.events if event.type == "StepCompleted"}
    assert {"run/support.model", "run#2/support.model"} < keys


# What the code may change, and what not


async def check_change(before: Agent[Any, str], after: Agent[Any, str]) -> None:
    """Stop a run between two requests, and continue it with other code: it is stuck."""
    recorded = await Recorded(agent_app(before), "once", "hello?", nobody).record()
    ends = [place for place, event in enumerate(recorded.events) if event.type == "StepCompleted"]
    recorded.app = agent_app(after)
    with pytest.raises(AssertionError, match=r"is stuck: .*support.model with other arguments"):
        await recorded.finish_from(ends[1] + 1)
    assert sum(effects.values()) == 0


async def test_a_changed_prompt_makes_the_run_stuck_and_asks_nothing() -> None:
    turns = [call("weather", city="Rome")]
    after = Agent(
        script(turns),
        name="support",
        instructions="be rude",
        tools=[weather],
        capabilities=[HoldfastDurability()],
    )
    await check_change(lone([weather], turns), after)


async def test_a_changed_tool_makes_the_run_stuck_and_asks_nothing() -> None:
    async def other(city: str, unit: str = "C") -> str:
        raise NotImplementedError

    turns = [call("weather", city="Rome")]
    await check_change(lone([weather], turns), lone([Tool(other, name="weather")], turns))


async def test_a_recorded_result_that_cannot_be_read_makes_the_run_stuck() -> None:
    """As an error of validation it would reach the model, which would be asked again."""
    agent = lone([weather], [call("weather", city="Rome")])
    recorded = await Recorded(agent_app(agent), "once", "hello?", nobody).record()
    place = next(
        i
        for i, event in enumerate(recorded.events)
        if event.key == "support.tool.weather.weather-Rome"
    )
    event = recorded.events[place]
    text = (event.details or "").replace("tool_return", "of another release")
    recorded.events[place] = replace(event, details=text)
    with pytest.raises(AssertionError, match="cannot be read"):
        await recorded.finish_from(place + 1)
    assert sum(effects.values()) == 0


# How calls end


async def test_a_retry_that_a_tool_asks_for_is_recorded() -> None:
    async def guess(number: int) -> str:
        do("guess")
        if number == 1:
            raise ModelRetry("too low")
        return "right"

    agent = lone([guess], [call("guess", number=1)], [call("guess", number=2)])
    recorded = await check_prefixes(agent_app(agent), "once", "hello?")
    assert recorded.result == "too low, right"


async def test_a_refusal_and_a_late_answer_reach_the_model() -> None:
    async def refuse(env: Environment, handle: Any) -> None:
        await env.wait_until_idle()
        [asked] = await handle.approvals()
        assert (asked.title, asked.description) == ("support: refund", '{"order":17}')
        decide = env.client.approvals.decide
        await decide(handle.run_id, asked.key, False, feedback="not now", by="ann")

    tools = [Tool(refund, requires_approval=True)]
    assert await run_once(lone(tools, [call("refund", order=17)]), refuse) == "not now"
    late = lone(tools, [call("refund", order=17)], approval_timeout="1d")
    assert await run_once(late, nobody) == "Nobody decided in time."
    assert not any("tool.refund" in key for key in effects)


async def test_retry_after_is_heeded_and_a_refused_request_is_not_repeated() -> None:
    errors = [ModelHTTPError(429, "m", retry_after=40.0), ModelHTTPError(503, "m")]
    asked: list[float] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(env.now.timestamp())
        if errors:
            raise errors.pop(0)
        return ModelResponse(parts=[TextPart("done")])

    model = FunctionModel(answer)
    agent = Agent(model, name="support", capabilities=[HoldfastDurability()])
    async with Environment(agent_app(agent)) as env:
        assert await env.run("once", "hello?") == "done"
        assert asked[1] - asked[0] == pytest.approx(40, abs=0.01)
        assert 1 < asked[2] - asked[1] < 4
        asked.clear()
        errors += [ModelHTTPError(401, "m", body="no key")]
        with pytest.raises(RunFailed, match="no key"):
            await env.run("once", "hello?")
        assert len(asked) == 1


async def test_usage_is_a_value_of_the_run() -> None:
    app = agent_app(lone([weather], [call("weather", city="Rome")]))
    async with Environment(app) as env:
        handle = await env.client.start("once", "hello?")
        await env.result(handle)
        used = (await handle.values())["support.usage"]
    assert used["requests"] == 2
    assert used["input_tokens"] > used["output_tokens"] > 0


async def test_the_usage_counts_the_request_that_went_beyond_a_limit() -> None:
    """Fault: it was paid for, and missing in the value."""
    agent = lone([weather], [call("weather", city="Rome")])
    app = App("limited")

    @app.workflow
    async def limited(ctx: Context, limits: tuple[int | None, int | None]) -> str:
        tokens, requests = limits
        allowed = UsageLimits(total_tokens_limit=tokens, request_limit=requests)
        try:
            return (await agent.run("hello?", usage_limits=allowed)).output
        except UsageLimitExceeded as error:
            return str(error)

    async with Environment(app) as env:
        handle = await env.client.start(limited, (1, None))
        assert "total_tokens" in await env.result(handle)
        used = (await handle.values())["support.usage"]
        assert used["requests"] == 1
        assert used["input_tokens"] > 0
        handle = await env.client.start(limited, (None, 1))  # the second request is not made
        assert "request_limit" in await env.result(handle)
        assert (await handle.values())["support.usage"] == used


async def test_a_tool_in_the_workflows_code_may_wait_and_call_steps() -> None:
    app = App("shop")

    @app.step
    async def pay(cents: int) -> str:
        do("pay")
        return f"{cents} paid"

    async def charge(cents: int) -> str:
        await asyncio.sleep(3600)
        return await pay(cents)

    agent = lone([Tool(charge, metadata={"holdfast": False})], [call("charge", cents=5)])

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    recorded = await check_prefixes(app, "once", "hello?")
    assert recorded.result == "5 paid"


async def test_what_comes_from_outside_is_a_signal_of_the_run() -> None:
    tokens: list[str] = []

    async def ask(ctx: RunContext[Any], requests: Any, token: str) -> None:
        do("ask")
        tokens.append(token)

    agent = Agent(
        script([call("refund", order=17)]),
        name="support",
        tools=[Tool(refund, requires_approval=True)],
        capabilities=[HoldfastDurability(approvals=False), RequestInput(ask, name="refunds")],
    )

    async with Environment(agent_app(agent)) as env:
        handle = await env.client.start("once", "hello?")
        await env.wait_until_idle()
        run, _, signal = tokens[-1].partition("/")
        await env.client.handle(run).signal(signal, {"approvals": {"refund-17": True}})
        assert await env.result(handle) == "17 refunded"
        fork = await env.client.runs.fork(handle.run_id, step="support.tool.refund.refund-17")
        assert await env.result(fork) == "17 refunded", "it has the answer, and asks nobody"
        keys = {each.event.key for each in await handle.log()}
        assert "support.ask.refunds" in keys, "no name of a task of the framework"
    assert len(tokens) == 1


async def test_an_agent_outside_of_a_workflow_works_as_ever() -> None:
    effects.clear()
    agent = lone([weather], [call("weather", city="Rome")])
    assert (await agent.run("hello?")).output == "sun in Rome"
    assert effects == {"model": 2, "Rome": 1}


async def test_an_agent_in_a_step_is_part_of_the_step() -> None:
    agent, app = lone([weather], [call("weather", city="Rome")]), App("shop")

    @app.step
    async def ask(question: str) -> str:
        return (await agent.run(question)).output

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return await ask(question)

    async with Environment(app) as env:
        handle = await env.client.start(once, "hello?")
        assert await env.result(handle) == "sun in Rome"


async def test_tools_that_a_function_chooses_are_steps() -> None:
    def choose(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        return FunctionToolset([weather])

    agent = Agent(
        script([call("weather", city="Rome")]),
        name="support",
        toolsets=[DynamicToolset(choose, id="chosen")],
        capabilities=[HoldfastDurability()],
    )
    assert await run_once(agent) == "sun in Rome"
    assert effects["support.tool.chosen.weather.weather-Rome"] == 1


async def test_spans_of_a_replay_are_not_sent_again() -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    settings = InstrumentationSettings(tracer_provider=provider)
    agent = Agent(
        script([call("weather", city="Rome")]),
        name="support",
        tools=[weather],
        capabilities=[HoldfastDurability(), Instrumentation(settings)],
    )
    recorded = await Recorded(agent_app(agent), "once", "hello?", nobody).record()
    whole = Counter(span.name for span in spans.get_finished_spans())
    assert whole["chat function:answer:"] == 2
    spans.clear()
    ends = [place for place, event in enumerate(recorded.events) if event.type == "StepCompleted"]
    await recorded.finish_from(ends[1] + 1)
    again = Counter(span.name for span in spans.get_finished_spans())
    assert again["chat function:answer:"] == 1


# Bad input


def test_an_agent_without_a_name_is_refused_when_it_is_made() -> None:
    with pytest.raises(UserError, match=r"unique `name` in order to be used with holdfast"):
        Agent(script(), capabilities=[HoldfastDurability()])


def test_an_option_that_does_not_exist_is_refused_when_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match="tool_options has no option 'attempts'"):
        HoldfastDurability(tool_options={"attempts": 3})  # type: ignore[typeddict-unknown-key]


async def test_a_tools_option_that_does_not_exist_is_named() -> None:
    tool = Tool(weather, metadata={"holdfast": {"attempts": 3}})
    message = await failure(lone([tool], [call("weather", city="Rome")]))
    assert "metadata[\"holdfast\"] of a tool has no option 'attempts'" in message


async def test_a_tool_whose_value_is_not_json_is_named() -> None:
    calls: list[int] = []

    async def lock() -> object:
        calls.append(1)
        return asyncio.Lock()

    message = await failure(lone([lock], [call("lock")]))
    assert "support.tool.lock" in message
    assert "is not JSON, so it cannot be recorded" in message
    assert len(calls) == 1, "the same code gives the same value"


async def test_two_agents_of_one_name_in_one_run_are_refused() -> None:
    one, two = lone([], ["one"]), lone([], ["two"])
    app = App("shop")

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        await one.run(question)
        return (await two.run(question)).output

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="two agents of one run have the name 'support'"):
            await env.run(once, "hello?")


async def test_a_model_that_is_not_registered_is_named() -> None:
    agent, app = lone([weather]), App("shop")
    models = {"cheap": script(["cheap answer"])}
    other = Agent(script(), name="other", capabilities=[HoldfastDurability(models=models)])

    @app.workflow
    async def once(ctx: Context, model: str) -> str:
        if model == "instance":
            return (await agent.run("hello?", model=script())).output
        return (await other.run("hello?", model=model)).output

    async with Environment(app) as env:
        assert await env.run(once, "cheap") == "cheap answer"
        with pytest.raises(RunFailed, match="Unknown model: nothing"):
            await env.run(once, "nothing")
        with pytest.raises(RunFailed, match="was not registered with `HoldfastDurability`"):
            await env.run(once, "instance")


async def test_the_step_options_of_requests_and_tools_hold() -> None:
    fails = [OSError("first"), OSError("second")]

    async def fetch() -> str:
        if fails:
            raise fails.pop(0)
        return "fetched"

    options = {"tool_options": {"retry": Retry(attempts=3, base="1s")}}
    assert await run_once(lone([fetch], [call("fetch")], **options)) == "fetched"
    tool = Tool(fetch, metadata={"holdfast": {"retry": Retry.NEVER}})
    fails.append(OSError("only"))
    assert "only" in await failure(lone([tool], [call("fetch")], **options))


async def test_a_handler_of_events_writes_the_words_of_the_model_to_a_stream() -> None:
    async def words(ctx: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
        out = current_step().stream("words", type=str)
        async for event in events:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                await out.write(event.delta.content_delta)
            if isinstance(event, FunctionToolCallEvent | FunctionToolResultEvent):
                do("event")  # it has a step of its own
            if isinstance(event, FunctionToolCallEvent):
                await out.write(event.part.tool_name)

    async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        do("model")
        if len(messages) == 1:
            for number, city in enumerate(CITIES):
                made = call("weather", city=city)
                yield {
                    number: DeltaToolCall(
                        made.tool_name, made.args_as_json_str(), tool_call_id=city
                    )
                }
        else:
            for word in ("it ", "is ", "sunny"):
                yield word

    agent: Agent[Any, str] = Agent(
        FunctionModel(stream_function=speak),
        name="support",
        tools=[weather],
        capabilities=[HoldfastDurability(event_stream_handler=words)],
    )
    app = agent_app(agent)
    await check_prefixes(app, "once", "hello?", nobody)
    async with Environment(app) as env:
        handle = await env.client.start("once", "hello?")
        assert await env.result(handle) == "it is sunny"
        page = await handle.read_stream("words", type=str)
        assert [item.value for item in page.items] == [*["weather"] * 5, "is ", "sunny"]


async def test_another_model_continues_an_open_run() -> None:
    """The framework writes the id of the agent's model into answers that another one gave."""
    turns = [call("weather", city="Rome")], [call("weather", city="Oslo")]
    earlier = lone([weather], *turns)
    function = script(*turns).function
    assert function is not None
    later: Agent[Any, str] = Agent(
        FunctionModel(function, model_name="a-later-one"),
        name="support",
        tools=[weather],
        capabilities=[HoldfastDurability()],
    )
    recorded = await Recorded(agent_app(earlier), "once", "hello?", nobody).record()
    recorded.app = agent_app(later)
    await recorded.check()
