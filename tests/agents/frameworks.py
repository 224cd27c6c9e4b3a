"""Agents of the three frameworks behind one face, so that one test is about all of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import agents.run
import pydantic_ai
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import agents as sdk
from holdfast import App, Context
from holdfast.agents.langchain import HoldfastMiddleware
from holdfast.agents.openai import install
from holdfast.agents.pydantic_ai import HoldfastDurability
from holdfast.agents.recording import StepOptions
from tests.agents.prefixes import do

Framework = Literal["pydantic_ai", "openai", "langchain"]
FRAMEWORKS: Final[Sequence[Framework]] = ("pydantic_ai", "openai", "langchain")
WORDS: Final = ("it ", "is ", "sunny")
INPUT_TOKENS, OUTPUT_TOKENS = 10, 5

Ask = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class ToolPlan:
    """A tool of an agent. `asks` is True if people are asked first."""

    function: Callable[..., Any]
    name: str
    about: str = "Return something."
    asks: bool = False


async def weather(city: str) -> str:
    do()
    return f"sun in {city}"


async def tides(port: str) -> str:
    do()
    return f"low in {port}"


WEATHER, TIDES = ToolPlan(weather, "weather"), ToolPlan(tides, "tides")


@dataclass(frozen=True)
class Plan:
    """What an agent is, and what its model says.

    `calls` are the tools that the model calls first, at once; then it says `WORDS`, or what the
    `output` has. It first fails as `failures` say, with as many words as their places in it.
    """

    name: str = "support"
    instructions: str | Callable[[], str] = "be kind"
    tools: tuple[ToolPlan, ...] = (WEATHER, TIDES)
    model: str = "a-model"
    temperature: float = 0.5
    output: Any = None
    options: StepOptions = field(default_factory=StepOptions)
    stream: str | None = None
    calls: tuple[tuple[str, dict[str, Any]], ...] = (("weather", {"city": "Rome"}),)
    failures: list[BaseException | None] = field(default_factory=list)
    cut_short: bool = False  # by the limit of its tokens

    def but(self, **changes: Any) -> Plan:
        """Return a plan that differs by these fields."""
        return dataclasses.replace(self, **changes)

    def think(self, answers: int) -> Any:
        """Have a request that is paid; return the calls, or what the model says as pieces."""
        do()
        if answers == 0 and self.calls:
            return [(name, given, f"call-{n}") for n, (name, given) in enumerate(self.calls)]
        return []

    def fail(self) -> None:
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error


def make(framework: Framework, plan: Plan) -> Ask:
    """Return what asks an agent of a framework."""
    makers = {"pydantic_ai": _pydantic_ai, "openai": _openai, "langchain": _langchain}
    return makers[framework](plan)


def make_app(framework: Framework, plan: Plan) -> App:
    """Return an app whose workflow `once` asks an agent."""
    app, ask = App("shop"), make(framework, plan)

    @app.workflow
    async def once(ctx: Context, question: str) -> str:
        return await ask(question)

    return app


class Answer:
    """The answer over HTTP of a provider that refuses, as errors of its clients have it."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


class Refused(Exception):
    """What clients of providers raise."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = Answer({name.replace("_", "-"): text for name, text in headers.items()})


def refused(framework: Framework, status: int, seconds: float | None = None) -> Exception:
    """Return what a request raises that the provider refuses, with its Retry-After."""
    if framework == "pydantic_ai":
        return pydantic_ai.exceptions.ModelHTTPError(status, "m", retry_after=seconds)
    return Refused(status, **({} if seconds is None else {"retry_after": str(seconds)}))


# Pydantic AI


def _pydantic_ai(plan: Plan) -> Ask:
    def made(messages: list[ModelMessage]) -> int:
        return sum(isinstance(message, ModelResponse) for message in messages)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = plan.think(made(messages))
        plan.fail()
        parts: list[Any] = [ToolCallPart(tool, given, id) for tool, given, id in calls]
        if not calls and plan.output is not None:
            parts = [ToolCallPart(info.output_tools[0].name, {"city": "Rome"}, "end")]
        return ModelResponse(
            parts=parts or [TextPart("".join(WORDS))], timestamp=datetime(2026, 1, 1, tzinfo=UTC)
        )

    async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        calls = plan.think(made(messages))
        for place, (tool, given, id) in enumerate(calls):
            yield {place: DeltaToolCall(tool, json.dumps(given), tool_call_id=id)}
        for word in () if calls else WORDS:
            plan.fail()
            yield word

    options: dict[str, Any] = {} if plan.output is None else {"output_type": plan.output}
    durable = HoldfastDurability[None](
        stream=plan.stream, model_options=plan.options, tool_options=plan.options
    )
    agent: pydantic_ai.Agent[None, Any] = pydantic_ai.Agent(
        FunctionModel(answer, stream_function=speak, model_name=plan.model),
        name=plan.name,
        instructions=plan.instructions,
        tools=[
            pydantic_ai.Tool(
                each.function, name=each.name, description=each.about, requires_approval=each.asks
            )
            for each in plan.tools
        ],
        model_settings={"temperature": plan.temperature},
        capabilities=[durable],
        **options,
    )

    async def ask(question: str) -> str:
        return str((await agent.run(question)).output)

    return ask


# OpenAI Agents


class _Model(sdk.Model):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def _think(self, request: dict[str, Any]) -> list[Any]:
        given = request["input"] if isinstance(request["input"], list) else []
        answered = any(item.get("type") == "function_call_output" for item in given)
        return [
            ResponseFunctionToolCall(
                name=name, arguments=json.dumps(args), call_id=id, type="function_call"
            )
            for name, args, id in self._plan.think(int(answered))
        ]

    def _say(self) -> list[Any]:
        said = "".join(WORDS) if self._plan.output is None else '{"city": "Rome"}'
        content = ResponseOutputText(text=said, type="output_text", annotations=[])
        return [
            ResponseOutputMessage(
                id="m", content=[content], role="assistant", status="completed", type="message"
            )
        ]

    async def get_response(self, *given: Any, **request: Any) -> sdk.ModelResponse:
        calls = self._think(request)
        self._plan.fail()
        used = sdk.Usage(1, INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
        return sdk.ModelResponse(calls or self._say(), used, None)

    async def stream_response(self, *given: Any, **request: Any) -> AsyncIterator[Any]:
        calls = self._think(request)
        for word in () if calls else WORDS:
            self._plan.fail()
            yield ResponseTextDeltaEvent.model_construct(
                type="response.output_text.delta", delta=word
            )
        usage = ResponseUsage(
            input_tokens=INPUT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
            total_tokens=INPUT_TOKENS + OUTPUT_TOKENS,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )
        answer = Response.model_construct(id="r", output=calls or self._say(), usage=usage)
        if self._plan.cut_short and not calls:
            yield ResponseIncompleteEvent.model_construct(
                type="response.incomplete", response=answer
            )
        else:
            yield ResponseCompletedEvent.model_construct(type="response.completed", response=answer)


def _openai(plan: Plan) -> Ask:
    runner = agents.run.get_default_agent_runner()
    install(stream=plan.stream, model_options=plan.options, tool_options=plan.options)
    own = agents.run.get_default_agent_runner()  # of this plan alone
    agents.run.set_default_agent_runner(runner)
    given = plan.instructions
    agent = sdk.Agent[None](
        plan.name,
        instructions=given if isinstance(given, str) else lambda context, agent: given(),
        tools=[
            sdk.function_tool(
                each.function,
                name_override=each.name,
                description_override=each.about,
                needs_approval=each.asks,
            )
            for each in plan.tools
        ],
        model=_Model(plan),
        model_settings=sdk.ModelSettings(temperature=plan.temperature),
        output_type=plan.output,
    )

    async def ask(question: str) -> str:
        return str((await own.run(agent, question)).final_output)

    return ask


# LangChain


class _Chat(BaseChatModel):
    plan: Any
    name_of_model: str

    @property
    def _llm_type(self) -> str:
        return "plan"

    def bind_tools(self, tools: Any, **options: Any) -> _Chat:
        return self

    def _think(self, messages: list[BaseMessage]) -> list[Any]:
        answers = sum(isinstance(message, AIMessage) for message in messages)
        calls = self.plan.think(answers)
        if not calls and self.plan.output is not None:
            calls = [(self.plan.output.__name__, {"city": "Rome"}, "end")]
        return [{"name": name, "args": args, "id": id} for name, args, id in calls]

    def _generate(self, *given: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:
        calls = self._think(messages)
        self.plan.fail()
        text = "" if calls else "".join(WORDS)
        message = AIMessage(text, tool_calls=calls, usage_metadata=_used())
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        calls = self._think(messages)
        if calls:
            chunks = [
                {**each, "args": json.dumps(each["args"]), "index": place}
                for place, each in enumerate(calls)
            ]
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=chunks))
        for word in () if calls else WORDS:
            self.plan.fail()
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=_used()))


def _used() -> Any:
    total = INPUT_TOKENS + OUTPUT_TOKENS
    return {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, "total_tokens": total}


class _Instructing(AgentMiddleware[Any, Any, Any]):
    """Calls what makes the instructions, where frameworks call it."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    async def abefore_model(self, state: AgentState[Any], runtime: Any) -> None:
        self._make()


def _langchain(plan: Plan) -> Ask:
    durable = HoldfastMiddleware(
        plan.name,
        model_options=plan.options,
        tool_options=plan.options,
        approvals=[each.name for each in plan.tools if each.asks],
        stream=plan.stream,
    )
    instructions, middleware = plan.instructions, [durable]
    if not isinstance(instructions, str):
        middleware, instructions = [_Instructing(instructions), durable], "be kind"
    agent: Any = create_agent(
        _Chat(plan=plan, name_of_model=plan.model),
        [
            StructuredTool.from_function(
                coroutine=each.function, name=each.name, description=each.about
            )
            for each in plan.tools
        ],
        system_prompt=instructions,
        response_format=None if plan.output is None else ToolStrategy(plan.output),
        middleware=middleware,
    )

    async def ask(question: str) -> str:
        result = await agent.ainvoke({"messages": [("user", question)]})
        return str(result.get("structured_response") or result["messages"][-1].text)

    return ask
