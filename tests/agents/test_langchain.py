"""Agents of LangChain in workflows, killed anywhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import App, Context, Retry
from holdfast.agents.langchain import HoldfastMiddleware
from holdfast.errors import ConfigurationError, RunFailed, StepFailed
from holdfast.testing import Environment
from tests.agents.prefixes import Recorded, approve_all, check_prefixes, do, effects, nobody


class Script(BaseChatModel):
    """A model that answers from a script."""

    turns: list[list[dict[str, Any]]]

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> Script:
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **options: Any) -> ChatResult:
        do("model")
        made = sum(isinstance(message, AIMessage) for message in messages)
        told = ", ".join(str(m.content) for m in messages if isinstance(m, ToolMessage))
        calls = self.turns[made] if made < len(self.turns) else []
        message = AIMessage(
            "" if calls else f"{told} ({len(messages)})",
            tool_calls=calls,
            usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"name": name, "args": arguments, "id": "-".join(map(str, (name, *arguments.values())))}


@tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    do(city)
    return f"sun in {city}"


@tool
def refund(order: int) -> str:
    """Refund an order."""
    do("refund")
    return f"{order} refunded"


def support() -> Any:
    script = Script(
        turns=[
            [call("weather", city="Rome"), call("weather", city="Oslo")],
            [call("refund", order=17)],
        ]
    )
    middleware = [HoldfastMiddleware("support", approvals={"refund"})]
    return create_agent(script, [weather, refund], system_prompt="be kind", middleware=middleware)


def agent_app(agent: Any) -> App:
    app = App("shop")

    @app.workflow
    async def answer(ctx: Context, question: str) -> str:
        result = await agent.ainvoke({"messages": [("user", question)]})
        messages = [*result["messages"], ("user", "and again?")]
        again = await agent.ainvoke({"messages": messages})
        return f"{result['messages'][-1].text} | {again['messages'][-1].text}"

    return app


async def test_an_agent_killed_anywhere_repeats_nothing_that_is_recorded() -> None:
    recorded = await check_prefixes(agent_app(support()), "answer", "hello?", approve_all)
    told = "sun in Rome, sun in Oslo, 17 refunded"
    assert recorded.result == f"{told} (7) | {told} (9)"


async def test_the_messages_of_an_agent_come_whole_and_in_order_from_its_stream() -> None:
    """LangGraph calls the loop as from a thread, since it does not know who calls."""
    app, agent = App("shop"), support()

    @app.workflow
    async def answer(ctx: Context, question: str) -> list[str]:
        asked = {"messages": [("user", question)]}
        stream = agent.astream(asked, stream_mode="messages")
        return [str(message.text) or message.type async for message, _ in stream]

    recorded = await check_prefixes(app, "answer", "hello?", approve_all)
    assert recorded.result == [
        "ai",
        "sun in Rome",
        "sun in Oslo",
        "ai",
        "17 refunded",
        "sun in Rome, sun in Oslo, 17 refunded (7)",
    ]


def lone(tools: list[Any], *turns: list[dict[str, Any]], **options: Any) -> Any:
    prompt = options.pop("system_prompt", "be kind")
    shape = options.pop("response_format", None)
    middleware = [HoldfastMiddleware("support", **options)]
    script = Script(turns=list(turns))
    return create_agent(
        script, tools, system_prompt=prompt, response_format=shape, middleware=middleware
    )


def once_app(agent: Any) -> App:
    app = App("shop")

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        result = await agent.ainvoke({"messages": [("user", question)]})
        return str(result.get("structured_response") or result["messages"][-1].text)

    return app


async def run_once(agent: Any, people: Any = approve_all) -> object:
    """Run an agent in a workflow to its end."""
    effects.clear()
    async with Environment(once_app(agent)) as env:
        handle = await env.client.start("once", "hello?")
        await people(env, handle)
        return await env.result(handle)


async def failure(agent: Any) -> str:
    """Return why a run fails."""
    with pytest.raises(RunFailed) as caught:
        await run_once(agent)
    return str(caught.value)


async def test_a_changed_prompt_or_tool_makes_the_run_stuck_and_asks_nothing() -> None:
    @tool("weather")
    async def other(city: str, unit: str) -> str:
        """Return the weather of a city."""
        raise NotImplementedError

    turns = [call("weather", city="Rome")]
    before = once_app(lone([weather], turns))
    for after in (lone([weather], turns, system_prompt="be rude"), lone([other], turns)):
        recorded = await Recorded(before, "once", "hello?", nobody).record()
        types = [event.type for event in recorded.events]
        recorded.app = once_app(after)
        with pytest.raises(AssertionError, match=r"is stuck: .*support.model with other arg"):
            await recorded.finish_from(types.index("StepCompleted", 3) + 1)
        assert sum(effects.values()) == 0


async def test_a_rejection_and_nobody_in_time_reach_the_model() -> None:
    async def refuse(env: Environment, handle: Any) -> None:
        await env.wait_until_idle()
        [asked] = await handle.approvals()
        assert (asked.title, asked.description) == ("support: refund", '{"order": 17}')
        decide = env.client.approvals.decide
        await decide(handle.run_id, asked.key, False, feedback="not now", by="ann")

    turns = [call("refund", order=17)]
    agent = lone([refund], turns, approvals={"refund"}, approval_timeout="1d")
    assert await run_once(agent, refuse) == "not now (4)"
    assert await run_once(agent, nobody) == "Nobody decided in time. (4)"
    assert not any("tool" in key for key in effects)


async def test_two_runs_of_an_agent_at_once_are_killed_anywhere() -> None:
    agent, app = lone([weather], [call("weather", city="Rome")]), App("shop")

    @app.workflow
    async def both(ctx: Context, question: str) -> list[str]:
        asked = [{"messages": [("user", text)]} for text in (question, "and again?")]
        results = await asyncio.gather(*map(agent.ainvoke, asked))
        return [str(result["messages"][-1].text) for result in results]

    recorded = await check_prefixes(app, "both", "hello?")
    assert recorded.result == ["sun in Rome (4)", "sun in Rome (4)"]


async def test_a_structured_response_comes_back_as_its_type() -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    shape = ToolStrategy(Weather)
    agent = lone([weather], [call("Weather", city="Rome", degrees=30)], response_format=shape)
    recorded = await check_prefixes(once_app(agent), "once", "hello?")
    assert recorded.result == "city='Rome' degrees=30"


async def test_a_command_of_a_tool_is_recorded() -> None:
    @tool
    def rename(user: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Rename the user."""
        do("rename")
        told = ToolMessage(f"renamed to {user}", tool_call_id=tool_call_id)
        return Command(update={"messages": [told]})

    agent = lone([rename], [call("rename", user="ann")])
    recorded = await check_prefixes(once_app(agent), "once", "hello?")
    assert recorded.result == "renamed to ann (4)"


async def test_a_graph_of_ones_own_calls_steps_in_its_nodes() -> None:
    app = App("shop")

    @app.step
    async def fetch(page: int) -> str:
        do("fetch")
        return f"page {page}"

    async def read(state: dict[str, Any]) -> dict[str, Any]:
        return {"text": await fetch(state["page"]), "page": state["page"] + 1}

    async def follow(state: dict[str, Any]) -> str:
        return END if state["page"] > 2 else "read"

    graph = StateGraph(Pages)
    graph.add_node("read", read)
    graph.add_edge(START, "read")
    graph.add_conditional_edges("read", follow)
    compiled = graph.compile(checkpointer=InMemorySaver())

    @app.workflow
    async def once(ctx: Context, page: int) -> str:
        config = {"configurable": {"thread_id": str(ctx.run_id)}}
        return str((await compiled.ainvoke({"page": page, "text": ""}, config))["text"])

    recorded = await check_prefixes(app, "once", 0)
    assert recorded.result == "page 2"


class Pages(TypedDict):
    """The state of a graph."""

    page: int
    text: str


async def test_retries_of_nodes_and_tools_wait_as_long_in_each_replay() -> None:
    """Fault: they waited for a random time, and the run was stuck after a kill."""
    app = App("shop")

    @app.step(retry=Retry.NEVER)
    async def fail() -> None:
        raise ConnectionError("busy")

    async def read(state: dict[str, Any]) -> None:
        await fail()

    graph = StateGraph(Pages)
    policy = RetryPolicy(max_attempts=2, retry_on=Exception)
    graph.add_node("read", read, retry_policy=policy)
    graph.add_edge(START, "read")
    compiled = graph.compile()

    @tool
    async def ask(city: str) -> str:
        """Ask a city."""
        raise ConnectionError(f"{city} is busy")

    durable = HoldfastMiddleware("support", tool_options={"retry": Retry.NEVER})
    middleware = [ToolRetryMiddleware(max_retries=1), durable]
    agent = create_agent(Script(turns=[[call("ask", city="Rome")]]), [ask], middleware=middleware)

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        with suppress(StepFailed):
            await compiled.ainvoke({"page": 1, "text": ""})
        return str((await agent.ainvoke({"messages": [("user", question)]}))["messages"][-1].text)

    recorded = await check_prefixes(app, "once", "hello?")
    assert [each.type for each in recorded.events].count("TimerScheduled") == 2
    assert "failed after 2 attempts" in str(recorded.result)


async def test_an_agent_outside_of_a_workflow_works_as_ever() -> None:
    effects.clear()
    agent = lone([weather, refund], [call("refund", order=17)], approvals={"refund"})
    question = {"messages": [("user", "hello?")]}
    assert (await agent.ainvoke(question))["messages"][-1].text == "17 refunded (4)"
    assert agent.invoke(question)["messages"][-1].text == "17 refunded (4)"
    assert effects == {"model": 4, "refund": 2}


# Bad input


async def test_an_agent_without_a_name_is_refused() -> None:
    agent = create_agent(Script(turns=[]), [], middleware=[HoldfastMiddleware("")])
    assert "an agent needs a name" in await failure(agent)


async def test_two_agents_of_one_name_in_one_run_are_refused() -> None:
    app, one, two = App("shop"), lone([weather]), lone([weather])

    @app.workflow
    async def once(ctx: Context, question: str) -> None:
        for agent in (one, two):
            await agent.ainvoke({"messages": [("user", question)]})

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="two agents of one run have the name 'support'"):
            await env.run(once, "hello?")


async def test_a_tool_whose_value_is_not_json_is_named() -> None:
    @tool(response_format="content_and_artifact")
    async def lock() -> tuple[str, object]:
        """Take a lock."""
        return "taken", object()

    message = await failure(lone([lock], [call("lock")]))
    assert "support.tool.lock" in message
    assert "is not JSON, so it cannot be recorded" in message


async def test_a_tool_that_interrupts_is_named() -> None:
    @tool
    async def wait() -> str:
        """Wait for a person."""
        return str(interrupt("continue?"))

    message = await failure(lone([wait], [call("wait")]))
    assert "tool wait calls interrupt(), which a step cannot" in message


async def test_a_synchronous_call_in_a_workflow_is_refused() -> None:
    app, agent = App("shop"), lone([weather])

    @app.workflow
    async def once(ctx: Context, question: str) -> None:
        agent.invoke({"messages": [("user", question)]})

    async with Environment(app) as env:
        with pytest.raises(
            RunFailed, match=r"agent support is in a workflow: await its ainvoke\(\)"
        ):
            await env.run(once, "hello?")


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"write \['refund'\]"):
        HoldfastMiddleware("support", approvals="refund")
    with pytest.raises(ConfigurationError, match="tool_options has no option 'attempts'"):
        HoldfastMiddleware("support", tool_options={"attempts": 3})  # type: ignore[typeddict-unknown-key]
