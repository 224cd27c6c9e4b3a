"""LangChain: an agent in a workflow makes each request of its model and each tool call a step.

```python
agent = create_agent("openai:gpt-5.2", [refund], middleware=[HoldfastMiddleware("support")])


@app.workflow
async def answer(ctx: Context, question: str) -> str:
    result = await agent.ainvoke({"messages": [("user", question)]})
    return str(result["messages"][-1].text)
```
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, cast

from holdfast.agents import missing

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
    from langchain_core.callbacks import AsyncCallbackHandler
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        ToolMessage,
        message_to_dict,
        messages_from_dict,
    )
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tools import BaseTool
    from langgraph.errors import GraphBubbleUp
    from langgraph.types import Command, Send
    from langsmith import set_runtime_overrides
except ImportError as error:
    raise missing(__name__, "langchain 1.5", "langchain") from error

from holdfast.agents import recording
from holdfast.agents.naming import fingerprint, step_name
from holdfast.agents.recording import StepOptions, record, tally
from holdfast.definitions.steps import current_step
from holdfast.definitions.streams import StreamWriter
from holdfast.errors import ConfigurationError
from holdfast.runtime.code.context import current_context
from holdfast.values.durations import Duration

_MESSAGE, _COMMAND = "langchain-message", "langgraph-command"  # the keys of what is recorded


async def _without_thread(default: Any, variables: Any, fn: Any, /, *args: Any, **kw: Any) -> Any:
    """Call what prepares spans of LangSmith: in a workflow, which has no threads, at once."""
    if current_context() is None:
        return await default(variables, fn, *args, **kw)
    return variables.run(fn, *args, **kw)


set_runtime_overrides(aio_to_thread=_without_thread)
recording.repeat_pauses("langgraph.pregel._retry")
recording.repeat_pauses("langchain.agents.middleware._retry")


class HoldfastMiddleware(AgentMiddleware[Any, Any, Any]):
    """The middleware of an agent whose runs in workflows are durable. Put it last.

    Outside of a workflow, also in a step, the agent works as without it.
    """

    def __init__(
        self,
        agent: str,
        *,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        approvals: Collection[str] = (),
        approval_timeout: Duration | None = None,
        stream: str | None = None,
    ) -> None:
        """Make the middleware of one agent; `agent` begins the names of its steps.

        `model_options` and `tool_options` say how requests and tools are tried: as in
        `Context.step`, but without a `Retry` of their own requests heed Retry-After and give up at
        once what the provider refuses. A call of a tool in `approvals` asks people first, as
        `Context.request_approval` does; a rejection, or no decision within `approval_timeout`, is
        told to the model.

        With `stream`, the model writes the words of its answers to this stream of the run, as they
        come; one that cannot stream writes each answer when it is complete.

        Raises ConfigurationError for options that do not exist, InvalidName for a name that no
        stream may have.
        """
        if isinstance(approvals, str):
            raise ConfigurationError(f"approvals are several names of tools: write [{approvals!r}]")
        self.agent, self.approvals = agent, frozenset(approvals)
        self._model = recording.model_options(model_options, recording.retry_after, ())
        self._tools = recording.check_options(tool_options, "tool_options")
        self._timeout, self._stream = approval_timeout, recording.check_stream(stream)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        ctx = current_context()
        if ctx is None:
            return await handler(request)
        tally().claim(self.agent, self)
        schema: Any = getattr(request.response_format, "schema", None)
        kind: Any = None if isinstance(schema, dict) else schema
        structure = recording.adapter(Any if kind is None else kind | None)

        async def call() -> Any:
            response = await self._ask(request, handler)
            for message in response.result:
                message.id = message.id or f"{self.agent}-{current_step().key}"
            return {
                "messages": _write(response.result),
                "structured": structure.dump_python(response.structured_response, mode="json"),
            }

        shapes = sorted(map(_shape, request.tools), key=str)
        answer = cast("object", schema) if kind is None else structure.json_schema()
        asked = fingerprint(
            request.system_message, request.messages, shapes, request.tool_choice, answer
        )
        recorded = await record(
            ctx, step_name(self.agent, "model"), call, dict[str, Any], asked, self._model
        )
        messages = cast("list[BaseMessage]", _read(recorded["messages"]))
        for message in messages:
            if isinstance(message, AIMessage):
                used: Any = message.usage_metadata or {}
                tally().count(
                    ctx, self.agent, used.get("input_tokens", 0), used.get("output_tokens", 0)
                )
        return ModelResponse(messages, structure.validate_python(recorded["structured"]))

    async def _ask(self, request: ModelRequest[Any], handler: Any) -> ModelResponse[Any]:
        if self._stream is None:
            return cast("ModelResponse[Any]", await handler(request))
        words = _Words(current_step().stream(self._stream, type=str))
        var_child_runnable_config.set({"callbacks": [words]})  # of this attempt alone
        response: ModelResponse[Any] = await handler(request)
        if not words.written:
            for message in response.result:
                await words.write(message.text if isinstance(message, AIMessage) else "")
        return response

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        ctx = current_context()
        if ctx is None:
            return await handler(request)
        called = request.tool_call
        tool, arguments, call_id = called["name"], called["args"], called["id"] or ""
        if tool in self.approvals:
            text = json.dumps(arguments, ensure_ascii=False, default=str)
            decision = await recording.ask(ctx, self.agent, tool, text, self._timeout)
            if not decision.approved:
                return ToolMessage(
                    decision.feedback or "This call was rejected.",
                    name=tool,
                    tool_call_id=call_id,
                    status="error",
                )

        async def call() -> Any:
            try:
                return _write(await handler(request))
            except GraphBubbleUp:
                raise ConfigurationError(
                    f"tool {tool} calls interrupt(), which a step cannot: name it in approvals=, "
                    "or wait in the workflow"
                ) from None

        name = step_name(self.agent, "tool", tool)
        asked = fingerprint(tool, arguments)
        recorded = await record(ctx, name, call, Any, asked, self._tools, call_id)
        return cast("ToolMessage | Command[Any]", _read(recorded))

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return self._call_sync(request, handler)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return self._call_sync(request, handler)

    def _call_sync(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        if current_context() is not None:
            raise ConfigurationError(f"agent {self.agent} is in a workflow: await its ainvoke()")
        return handler(request)


class _Words(AsyncCallbackHandler):
    """Writes the words of a model to a stream. A model streams for a handler that may tap."""

    raise_error = True

    def __init__(self, out: StreamWriter[str]) -> None:
        self._out, self.written = out, False

    async def on_llm_new_token(self, token: Any, *, chunk: Any = None, **about: Any) -> None:
        await self.write(token if chunk is None else chunk.text)

    async def write(self, text: str) -> None:
        self.written = self.written or bool(text)
        await recording.write_words(self._out, text)

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        return output

    tap_output_iter = tap_output_aiter


def _shape(tool: Any) -> object:
    if isinstance(tool, BaseTool):
        return (tool.name, tool.description, tool.args)
    return tool


def _write(value: object) -> object:
    """Return what a model or a tool has returned as data, messages and commands included."""
    if isinstance(value, BaseMessage):
        return {_MESSAGE: message_to_dict(value)}
    if isinstance(value, Command):
        command = cast("Command[str]", value)
        goto: Any = command.goto
        if isinstance(goto, Send) or any(isinstance(each, Send) for each in goto):
            raise recording.not_json(TypeError("a Command that sends"))
        fields = {"graph": command.graph, "update": command.update, "goto": goto}
        return {_COMMAND: _write(fields)}
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {str(key): _write(each) for key, each in entries.items()}
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [_write(each) for each in items]
    return value


def _read(value: object) -> Any:
    """Return what `_write` was given."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_read(each) for each in items]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    if _MESSAGE in entries:
        return messages_from_dict([entries[_MESSAGE]])[0]
    if _COMMAND in entries:
        return Command(**{key: _read(each) for key, each in entries[_COMMAND].items()})
    return {key: _read(each) for key, each in entries.items()}
