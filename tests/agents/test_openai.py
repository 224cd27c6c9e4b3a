"""Agents of OpenAI Agents in workflows: handoffs, tools, approvals, sessions, killed anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import agents.run
import pytest
from agents.exceptions import UserError
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agents import (
    Agent,
    LocalShellTool,
    Model,
    ModelProvider,
    ModelResponse,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
)
from holdfast import App, Context, Retry
from holdfast.agents.openai import RunSession, install
from holdfast.errors import ConfigurationError, RunFailed, StepFailed
from holdfast.testing import Environment
from tests.agents.frameworks import WORDS, Plan, make_app
from tests.agents.prefixes import Recorded, approve_all, check_prefixes, do, effects, nobody


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Make the runner durable for a test."""
    before = agents.run.get_default_agent_runner()
    install()
    yield
    agents.run.set_default_agent_runner(before)


class Script(Model):
    """A model that answers from a script, by how many answers the input has already."""

    def __init__(self, *turns: list[ResponseFunctionToolCall | str]) -> None:
        self.turns = turns

    async def get_response(self, **options: Any) -> ModelResponse:
        do("model")
        items = options["input"] if isinstance(options["input"], list) else []
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        asked = [item for item in items if item.get("role") == "user"]
        texts = [item for item in items if item.get("role") == "assistant"]
        made = len({item["call_id"].split(":")[0] for item in outputs})
        told = ", ".join(str(item["output"]) for item in outputs)
        answers: list[Any] = [f"{told} ({len(asked)}, {len(texts)})"]
        if made < len(self.turns):
            answers = self.turns[made]
        return ModelResponse(
            [message(each) if isinstance(each, str) else each for each in answers],
            Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15),
            None,
        )

    def stream_response(self, *given: Any, **options: Any) -> Any:
        raise NotImplementedError


def message(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m", content=[content], role="assistant", status="completed", type="message"
    )


def call(turn: int, tool: str, **arguments: object) -> ResponseFunctionToolCall:
    text = json.dumps(arguments)
    return ResponseFunctionToolCall(
        arguments=text, call_id=f"{turn}:{tool}:{text}", name=tool, type="function_call"
    )


@function_tool
async def weather(city: str) -> str:
    do(city)
    return f"sun in {city}"


@function_tool(needs_approval=True)
def refund(order: int) -> str:
    do("refund")
    return f"{order} refunded"


def support() -> Agent[Any]:
    poet = Agent("my poet", model=Script([call(0, "weather", city="Bern")]), tools=[weather])
    billing = Agent(
        "billing",
        model=Script(
            [],  # the first two turns are those of triage
            [],
            [call(2, "refund", order=1), call(2, "refund", order=2)],
            [call(3, "ask_poet", input="x")],
        ),
        tools=[refund, poet.as_tool("ask_poet", "asks a poet")],
    )
    return Agent(
        "triage",
        model=Script(
            [call(0, "weather", city="Rome"), call(0, "weather", city="Oslo")],
            [call(1, "transfer_to_billing")],
        ),
        tools=[weather],
        handoffs=[billing],
    )


def agent_app(agent: Agent[Any], **options: Any) -> App:
    app = App("shop")

    @app.step
    async def save(items: str) -> int:
        do("save")
        return len(items)

    @app.workflow
    async def answer(ctx: Context, question: str) -> str:
        session = RunSession()
        first = await Runner.run(agent, question, session=session, **options)
        second = await Runner.run(agent, "and again?", session=session, **options)
        await save(json.dumps(await session.get_items()))
        return f"{first.final_output} | {second.final_output}"

    return app


async def test_an_agent_killed_anywhere_repeats_nothing_that_is_recorded() -> None:
    recorded = await check_prefixes(agent_app(support()), "answer", "hello?", approve_all)
    tools = "sun in Rome, sun in Oslo, {...}, 1 refunded, 2 refunded, sun in Bern (1, 0)"
    assert str(recorded.result).replace('"assistant": "billing"', "...").startswith(tools)


async def run_once(agent: Agent[Any], people: Any = approve_all, **options: Any) -> object:
    """Run an agent in a workflow to its end."""
    effects.clear()
    async with Environment(once_app(agent, **options)) as env:
        handle = await env.client.start("once", "hello?")
        await people(env, handle)
        return await env.result(handle)


def once_app(agent: Agent[Any], **options: Any) -> App:
    app = App("shop")

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return str((await Runner.run(agent, question, **options)).final_output)

    return app


async def failure(agent: Agent[Any], **options: Any) -> str:
    """Return why a run fails."""
    with pytest.raises(RunFailed) as caught:
        await run_once(agent, **options)
    return str(caught.value)


def lone(tools: list[Any], *turns: Any, **options: Any) -> Agent[Any]:
    return Agent("support", model=Script(*turns), tools=tools, **options)


async def test_two_runs_of_an_agent_at_once_are_killed_anywhere() -> None:
    agent, app = lone([weather], [call(0, "weather", city="Rome")]), App("shop")

    @app.workflow
    async def both(ctx: Context, question: str) -> list[str]:
        runs = [Runner.run(agent, text) for text in (question, "and again?")]
        return [str(result.final_output) for result in await asyncio.gather(*runs)]

    recorded = await check_prefixes(app, "both", "hello?")
    assert recorded.result == ["sun in Rome (1, 0)", "sun in Rome (1, 0)"]
    keys = {event.key for event in recorded.events if event.type == "StepCompleted"}
    assert {"run/support.model", "run#2/support.model"} < keys


async def test_a_changed_prompt_or_tool_makes_the_run_stuck_and_asks_nothing() -> None:
    @function_tool(name_override="weather")
    async def other(city: str, unit: str) -> str:
        raise NotImplementedError

    turns = [call(0, "weather", city="Rome")]
    before = once_app(lone([weather], turns))
    for after in (lone([weather], turns, instructions="be rude"), lone([other], turns)):
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

    agent = lone([refund], [call(0, "refund", order=17)])
    assert await run_once(agent, refuse) == "not now (1, 0)"
    install(approval_timeout="1d")
    assert await run_once(agent, nobody) == "Nobody decided in time. (1, 0)"
    assert not any("refund" in key for key in effects)


async def test_without_approvals_the_result_has_its_interruptions() -> None:
    install(approvals=False)
    app, agent = App("shop"), lone([refund], [call(0, "refund", order=17)])

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        result = await Runner.run(agent, question)
        state = result.to_state()
        state.approve(result.interruptions[0])
        return str((await Runner.run(agent, state)).final_output)

    async with Environment(app) as env:
        assert await env.run(once, "hello?") == "17 refunded (1, 0)"


async def test_an_mcp_servers_tools_are_steps() -> None:
    class Shop(MCPServer):
        @property
        def name(self) -> str:
            return "the shop"

        async def connect(self) -> None: ...
        async def cleanup(self) -> None: ...

        async def list_tools(self, *given: Any) -> list[MCPTool]:
            do("list")
            schema = {"type": "object", "properties": {"what": {"type": "string"}}}
            return [MCPTool(name="buy", input_schema=schema)]

        async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
            do("buy")
            return CallToolResult(content=[TextContent(type="text", text=f"{arguments} bought")])

        async def list_prompts(self) -> Any: ...
        async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

    agent = lone([], [call(0, "buy", what="lamp")], mcp_servers=[Shop()])
    recorded = await check_prefixes(once_app(agent), "once", "hello?")
    assert "lamp" in str(recorded.result)
    keys = [event.key or "" for event in recorded.events]
    assert any(key.startswith("support.mcp.the_shop.buy..") for key in keys)


async def test_an_agent_outside_of_a_workflow_works_as_ever() -> None:
    effects.clear()
    agent = lone([weather], [call(0, "weather", city="Rome")])
    config = RunConfig(tracing_disabled=True)
    assert (
        await Runner.run(agent, "hello?", run_config=config)
    ).final_output == "sun in Rome (1, 0)"
    assert effects == {"model": 2, "Rome": 1}


async def test_the_model_and_the_provider_of_the_run_are_used() -> None:
    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            if model_name != "cheap":
                raise UserError(f"no model {model_name}")
            return Script(["cheap answer"])

    agent = Agent("support")
    config = RunConfig(model="cheap", model_provider=Provider())
    assert await run_once(agent, run_config=config) == "cheap answer"
    assert "no model dear" in await failure(agent, run_config={**vars(config), "model": "dear"})


async def test_a_hook_stops_an_agent_at_its_budget() -> None:
    class Budget(RunHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            if context.usage.total_tokens > 20:
                raise OverflowError("its tokens are spent")

    agent = lone([weather], *[[call(n, "weather", city=str(n))] for n in range(9)])
    assert "its tokens are spent" in await failure(agent, hooks=Budget())
    assert effects["support.model"] + effects["support.model#2"] == sum(effects.values()) - 1 == 2


async def test_an_answer_that_its_limit_cut_short_is_recorded_and_paid_once() -> None:
    app = make_app("openai", Plan(stream="words", cut_short=True))
    recorded = await check_prefixes(app, "once", "hello?")
    assert recorded.result == "".join(WORDS)
    assert effects["support.model#2"] == 1


# Bad input


async def test_an_agent_without_a_name_is_refused() -> None:
    assert "an agent needs a name" in await failure(Agent("", model=Script()))


async def test_two_agents_of_one_name_in_one_run_are_refused() -> None:
    two = lone([weather])
    message = await failure(lone([weather], handoffs=[two]))
    assert "two agents of one run have the name 'support'" in message


@pytest.mark.parametrize("limit", [None, 0, 2, 3, 5, 9])
async def test_a_session_returns_its_newest_items(limit: int | None) -> None:
    session, texts = RunSession(), ["a", "b", "c"]
    await session.add_items([{"role": "user", "content": each} for each in texts])
    found = [dict(item)["content"] for item in await session.get_items(limit)]
    assert found == (texts if limit is None else texts[::-1][:limit][::-1])


async def test_a_session_that_is_not_the_runs_is_refused() -> None:
    with closing(SQLiteSession("one")) as stored:
        message = await failure(lone([weather]), session=stored)
    assert "SQLiteSession cannot be the session of a run in a workflow: use a RunSession" in message


async def test_a_tool_that_acts_by_itself_is_refused_by_name() -> None:
    def shell(request: Any) -> str:
        raise NotImplementedError

    message = await failure(lone([LocalShellTool(executor=shell)]))
    assert "tool local_shell of agent support is a LocalShellTool" in message


async def test_a_tool_whose_value_is_not_json_is_named() -> None:
    @function_tool
    async def lock() -> Any:
        return object()

    message = await failure(lone([lock], [call(0, "lock")]))
    assert "support.tool.lock" in message
    assert "is not JSON, so it cannot be recorded" in message


async def test_a_streamed_run_in_a_workflow_is_refused() -> None:
    app, agent = App("shop"), lone([weather])

    @app.workflow
    async def once(ctx: Context, question: str) -> None:
        Runner.run_streamed(agent, question)

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match=r"cannot stream in a workflow: use Runner\.run, and"):
            await env.run(once, "hello?")


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="model_options has no option 'attempts'"):
        install(model_options={"attempts": 3})  # type: ignore[typeddict-unknown-key]


async def test_retries_of_requests_wait_as_long_in_each_replay() -> None:
    """Fault: they waited for a random time, and the run was stuck after a kill."""
    app = App("shop")
    install(model_options={"retry": Retry.NEVER})

    class Busy(Script):
        async def get_response(self, **options: Any) -> ModelResponse:
            raise ConnectionError("busy")

    retry = ModelRetrySettings(max_retries=2, policy=lambda _: True)
    agent = Agent("support", model=Busy(), model_settings=ModelSettings(retry=retry))

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        try:
            return str((await Runner.run(agent, question)).final_output)
        except StepFailed as error:
            return str(error)

    recorded = await check_prefixes(app, "once", "hello?")
    assert [each.type for each in recorded.events].count("TimerScheduled") == 2
    assert recorded.result == "step support.model#3 failed: ConnectionError: busy"
