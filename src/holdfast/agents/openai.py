"""OpenAI Agents: in a workflow, `Runner.run` makes each request of a model and each tool a step.

```python
install()  # once, where the app is defined


@app.workflow
async def answer(ctx: Context, question: str) -> str:
    return (await Runner.run(triage, question)).final_output
```
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, cast

from holdfast.agents import missing

try:
    from agents.exceptions import ModelBehaviorError, UserError
    from agents.items import ToolApprovalItem, TResponseInputItem, TResponseStreamEvent
    from agents.mcp import MCPServer
    from agents.models.multi_provider import MultiProvider
    from agents.run import AgentRunner, set_default_agent_runner
    from mcp.types import CallToolResult
    from mcp.types import Tool as MCPTool
    from openai.types.responses import Response

    import agents as sdk
    from agents import Agent, FunctionTool, Handoff, Model, ModelResponse, RunConfig, RunResult
except ImportError as error:
    raise missing(__name__, "openai-agents 0.24", "openai-agents") from error

from holdfast.agents import recording
from holdfast.agents.naming import fingerprint, step_name
from holdfast.agents.recording import StepOptions, record, tally
from holdfast.definitions.steps import current_step
from holdfast.definitions.streams import StreamWriter
from holdfast.errors import ConfigurationError
from holdfast.runtime.code.approvals import Decision
from holdfast.runtime.code.context import Context, current_context
from holdfast.values.durations import Duration

# Tools that the provider executes, so that they are part of the model's answer.
_HOSTED: Final = (
    sdk.FileSearchTool,
    sdk.WebSearchTool,
    sdk.HostedMCPTool,
    sdk.ImageGenerationTool,
    sdk.CodeInterpreterTool,
)

# What a complete answer tells of its tokens, as `Usage` has it.
_USED: Final = (
    "input_tokens",
    "input_tokens_details",
    "output_tokens",
    "output_tokens_details",
    "total_tokens",
)


recording.repeat_pauses("agents.run_internal.model_retry")


class RunSession(sdk.SessionABC):
    """A session that lives with the run of the workflow that makes it: a replay fills it again."""

    def __init__(self, session_id: str = "run") -> None:
        """Begin with no items."""
        self.session_id = session_id
        self._items: list[TResponseInputItem] = []

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest `limit` items, all of them for None, the oldest first."""
        return self._items[0 if limit is None else max(0, len(self._items) - limit) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        self._items += items

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item, and return it; None if there is none."""
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self._items.clear()


@dataclass
class _Config(RunConfig):
    """The options of a run in a workflow. `chosen` is the model for all agents, if it is given."""

    chosen: str | Model | None = None

    @classmethod
    def of(
        cls, given: RunConfig | Mapping[str, Any] | None, provider: sdk.ModelProvider
    ) -> _Config:
        if isinstance(given, _Config):  # of the run that calls this one as a tool
            return given
        if not isinstance(given, RunConfig):
            named: dict[str, Any] = {"model_provider": provider, **(given or {})}
            given = RunConfig(**named)
        own: dict[str, Any] = {
            each.name: getattr(given, each.name) for each in fields(RunConfig) if each.init
        }
        # Its spans would be sent again at each replay, from a thread.
        own |= {"model": None, "tracing_disabled": True, "chosen": given.model}
        return cls(**own)


class _StepModel(Model):
    """The model of an agent: each request is a step, which finds the real model."""

    def __init__(
        self, agent: str, find: Callable[[], Model], options: StepOptions, stream: str | None
    ) -> None:
        self._agent, self._find, self._options, self._stream = agent, find, options, stream

    async def get_response(self, *given: Any, **request: Any) -> ModelResponse:
        async def call() -> ModelResponse:
            model = self._find()
            if self._stream is None:
                return await model.get_response(*given, **request)
            words = current_step().stream(self._stream, type=str)
            return await _write_words(words, model.stream_response(*given, **request))

        ctx = current_context()
        if ctx is None:
            return await self._find().get_response(*given, **request)
        asked = fingerprint(
            request["system_instructions"],
            request["prompt"],
            request["input"],
            sorted(map(_shape, request["tools"]), key=str),
            [
                (each.tool_name, each.tool_description, each.input_json_schema)
                for each in request["handoffs"]
            ],
            _shape_of_output(request["output_schema"]),
        )
        name = step_name(self._agent, "model")
        answer = await record(ctx, name, call, ModelResponse, asked, self._options)
        response = cast("ModelResponse", answer)
        tally().count(ctx, self._agent, response.usage.input_tokens, response.usage.output_tokens)
        return response

    def stream_response(self, *given: Any, **request: Any) -> Any:
        raise _no_stream()


def _shape(tool: sdk.Tool) -> object:
    if isinstance(tool, FunctionTool):
        return (tool.name, tool.description, tool.params_json_schema)
    return tool.name  # the settings of hosted ones may have secrets, which change


def _shape_of_output(schema: sdk.AgentOutputSchemaBase | None) -> object:
    return None if schema is None or schema.is_plain_text() else schema.json_schema()


async def _write_words(
    words: StreamWriter[str], events: AsyncIterator[TResponseStreamEvent]
) -> ModelResponse:
    """Return the answer that events tell, and write its words to a stream as they come."""
    items: list[Any] = []
    answer: Response | None = None
    async for event in events:
        if event.type == "response.output_text.delta":
            await recording.write_words(words, event.delta)
        elif event.type == "response.output_item.done":
            items.append(event.item)
        elif event.type == "response.completed" or event.type == "response.incomplete":
            answer = event.response  # what its limit cut short is paid, and an answer too
    if answer is None:
        raise ModelBehaviorError("the model's stream has ended before its answer was complete")
    used = sdk.Usage(requests=1)
    for name in _USED if answer.usage else ():
        setattr(used, name, getattr(answer.usage, name))
    return ModelResponse(answer.output or items, used, answer.id)


class _StepInvoker:
    """Calls a function tool as a step. All else that the runner asks of it, the tool answers."""

    def __init__(self, name: str, tool: FunctionTool, options: StepOptions) -> None:
        self._name, self._invoke, self._options = name, tool.on_invoke_tool, options

    async def __call__(self, context: Any, arguments: str) -> Any:
        ctx, call_id = current_context(), context.tool_call_id
        call = partial(self._invoke, context, arguments)
        if ctx is None:
            return await call()
        asked = fingerprint(arguments)
        return await record(ctx, self._name, call, Any, asked, self._options, call_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._invoke, name)


class _StepServer(MCPServer):
    """An MCP server whose lists and calls are steps. Who has connected it ends it."""

    def __init__(self, server: MCPServer, agent: str, options: StepOptions) -> None:
        vars(self).update(vars(server))
        self._server, self._agent, self._options = server, agent, options

    @property
    def name(self) -> str:
        return self._server.name

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        call = partial(self._server.list_tools, run_context, agent)
        return cast("list[MCPTool]", await self._record("list_tools", call, list[MCPTool], ""))

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        call, asked = partial(self._server.call_tool, tool_name, arguments, meta), arguments
        result = await self._record(tool_name, call, CallToolResult, fingerprint(asked))
        return cast("CallToolResult", result)

    async def _record(self, what: str, call: Any, kind: Any, asked: str) -> object:
        if (ctx := current_context()) is None:
            return await call()
        name = step_name(self._agent, "mcp", self.name, what)
        return await record(ctx, name, call, kind, asked, self._options)

    async def connect(self, *given: Any, **named: Any) -> Any:
        raise ConfigurationError(f"connect MCP server {self.name} in a lifespan of the app")

    cleanup = list_prompts = get_prompt = connect


class _Agents:
    """The agents of one run, as copies whose models, tools and handoffs make steps."""

    def __init__(
        self, config: _Config, model: StepOptions, tools: StepOptions, stream: str | None
    ) -> None:
        self._config, self._model, self._tools, self._stream = config, model, tools, stream
        self._copies: dict[int, Agent[Any]] = {}

    def copy(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent. Raises ConfigurationError for what cannot be durable."""
        if isinstance(agent.model, _StepModel):  # it is one
            return agent
        if (found := self._copies.get(id(agent))) is not None:
            return found
        tally().claim(agent.name, agent)
        copied = self._copies[id(agent)] = agent.clone(
            model=_StepModel(
                agent.name, lambda: self._find(agent.model), self._model, self._stream
            ),
            tools=[self._tool(agent.name, tool) for tool in agent.tools],
            mcp_servers=[_StepServer(each, agent.name, self._tools) for each in agent.mcp_servers],
        )
        copied.handoffs = [self._handoff(each) for each in agent.handoffs]  # they may lead back
        return copied

    def _find(self, own: str | Model | None) -> Model:
        model = self._config.chosen or own
        return model if isinstance(model, Model) else self._config.model_provider.get_model(model)

    def _tool(self, agent: str, tool: sdk.Tool) -> sdk.Tool:
        if isinstance(tool, FunctionTool):
            if getattr(tool, "_is_agent_tool", False):  # its agent makes steps of its own
                return tool
            copied = copy.copy(tool)
            name = step_name(agent, "tool", tool.qualified_name)
            copied.on_invoke_tool = _StepInvoker(name, tool, self._tools)
            return copied
        if not isinstance(tool, _HOSTED):
            raise ConfigurationError(
                f"tool {tool.name} of agent {agent} is a {type(tool).__name__}, which acts outside "
                "of any step: give the agent a function tool for it"
            )
        return tool

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.copy(target)
        handoff, invoke = copy.copy(target), target.on_invoke_handoff

        async def on_invoke_handoff(context: Any, arguments: str) -> Agent[Any]:
            return self.copy(await invoke(context, arguments))

        handoff.on_invoke_handoff = on_invoke_handoff
        return handoff


class _Runner(AgentRunner):
    """Runs agents, in a workflow by steps."""

    def __init__(
        self,
        model: StepOptions,
        tools: StepOptions,
        approvals: bool,
        timeout: Duration | None,
        stream: str | None,
    ) -> None:
        self._model, self._tools, self._stream = model, tools, stream
        self._approvals, self._timeout = approvals, timeout
        self._provider = MultiProvider()  # one for all runs: a workflow cannot close what it opens

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        ctx = current_context()
        if ctx is None:
            return await super().run(starting_agent, input, **options)
        session = options.get("session")
        if session is not None and not isinstance(session, RunSession):
            raise ConfigurationError(
                f"a {type(session).__name__} cannot be the session of a run in a workflow: use a "
                "RunSession, and keep its items in a step"
            )
        config = options["run_config"] = _Config.of(options.get("run_config"), self._provider)
        agents = _Agents(config, self._model, self._tools, self._stream)
        agent = agents.copy(starting_agent)
        with recording.agent_run(recording.own_scope()):
            result = await super().run(agent, input, **options)
            while self._approvals and result.interruptions:
                state, items = result.to_state(), result.interruptions
                decisions = await asyncio.gather(*(self._ask(ctx, item) for item in items))
                for item, decision in zip(items, decisions, strict=True):
                    if decision.approved:
                        state.approve(item)
                    else:
                        state.reject(item, rejection_message=decision.feedback)
                result = await super().run(agent, state, **options)
        return result

    async def _ask(self, ctx: Context, item: ToolApprovalItem) -> Decision[None]:
        tool, arguments = item.qualified_name or "tool", item.arguments or ""
        return await recording.ask(ctx, item.agent.name, tool, arguments, self._timeout)

    def run_streamed(self, *given: Any, **options: Any) -> Any:
        if current_context() is not None:
            raise _no_stream()
        return super().run_streamed(*given, **options)


def _no_stream() -> ConfigurationError:
    return ConfigurationError(
        "agents cannot stream in a workflow: use Runner.run, and install(stream=…) for the words"
    )


def install(
    *,
    model_options: StepOptions | None = None,
    tool_options: StepOptions | None = None,
    approvals: bool = True,
    approval_timeout: Duration | None = None,
    stream: str | None = None,
) -> None:
    """Make `Runner.run` durable in workflows. Elsewhere, also in steps, it works as before.

    Call it once in each process, where the app is defined. `model_options` and `tool_options` say
    how requests and tools are tried: as in `Context.step`, but without a `Retry` of their own
    requests heed Retry-After and give up at once what the provider refuses.

    With `approvals`, a tool with `needs_approval` asks people, as `Context.request_approval` does;
    a rejection, or no decision within `approval_timeout`, is told to the model. Without, the result
    has its interruptions, as elsewhere.

    With `stream`, models write the words of their answers to this stream of the run, as they come.

    Raises ConfigurationError for options that do not exist, InvalidName for a name that no stream
    may have.
    """
    model = recording.model_options(model_options, recording.retry_after, (UserError,))
    tools = recording.check_options(tool_options, "tool_options")
    words = recording.check_stream(stream)
    set_default_agent_runner(_Runner(model, tools, approvals, approval_timeout, words))
