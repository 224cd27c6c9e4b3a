"""Pydantic AI: an agent in a workflow makes each request of its model and each tool call a step.

```python
agent = Agent("openai:gpt-5.2", name="support", tools=[refund], capabilities=[HoldfastDurability()])


@app.workflow
async def answer(ctx: Context, question: str) -> str:
    return (await agent.run(question)).output
```
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from holdfast.agents import missing

try:
    from pydantic_ai import durable_exec as engine
    from pydantic_ai._utils import disable_threads  # pyright: ignore[reportPrivateUsage]
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.durable_exec._operation_names import DurableInvocationName
    from pydantic_ai.exceptions import UsageLimitExceeded, UserError
    from pydantic_ai.messages import (
        AgentStreamEvent,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        ToolCallPart,
    )
    from pydantic_ai.models import Model, ModelRequestContext
    from pydantic_ai.tools import (
        AgentDepsT,
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDenied,
    )
except ImportError as error:
    raise missing(__name__, "pydantic-ai-slim 2.68", "pydantic-ai") from error

from holdfast.agents import recording
from holdfast.agents.naming import fingerprint, step_name
from holdfast.agents.recording import StepOptions, tally
from holdfast.definitions.steps import current_step
from holdfast.errors import ConfigurationError
from holdfast.runtime.code.context import Context, current_context
from holdfast.values.durations import Duration

_OWN_TOOLS: Final = "<agent>"  # the id of the toolset that an agent makes of its own tools


class _Codec:
    """Results as JSON. One that a later release cannot read makes the run stuck."""

    def dump(self, tp: Any, value: Any) -> Any:
        payload = engine.JSON_CODEC.dump(tp, value)
        engine.JSON_CODEC.load(tp, payload)  # the step fails, before it is recorded
        return payload

    def load(self, tp: Any, payload: Any) -> Any:
        return recording.load(lambda: engine.JSON_CODEC.load(tp, payload), "a model or a tool")


class _Namer:
    """Names of steps: `AGENT.model`, `AGENT.tool.TOOL`, and so on."""

    def __init__(self, agent: str, model: str | None) -> None:
        self._agent, self._model = agent, model

    def operation_name(self, operation_id: engine.DurableOperationId) -> str:
        return self.invocation_name(operation_id, label=None).operation_name

    def invocation_name(
        self, operation_id: engine.DurableOperationId, *, label: str | None
    ) -> DurableInvocationName:
        parts = [part for part in (*_parts(operation_id), label) if part not in (None, self._model)]
        return DurableInvocationName(step_name(self._agent, *parts))


def _parts(operation_id: engine.DurableOperationId) -> Sequence[str | None]:
    if isinstance(operation_id, engine.ModelRequestId):
        return ("stream" if operation_id.streaming else "model", operation_id.model_id)
    toolset = getattr(operation_id, "toolset_id", None)
    if isinstance(operation_id, engine.ToolsetCallToolId):
        return ("tool", None if toolset == _OWN_TOOLS else toolset)
    kind = type(operation_id).__name__.removesuffix("Id")
    capability = getattr(operation_id, "capability_id", None)
    return (kind, capability, getattr(operation_id, "operation", None), toolset)


class _Backend(engine.CallableOperationBackend[StepOptions]):
    """Carries the operations of an agent out as steps of the run whose code calls."""

    async def execute(
        self,
        *,
        operation_id: engine.DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        ctx = current_context()
        if ctx is None:  # outside of a workflow
            return await body()

        async def call(asked: str) -> Any:
            return await body()

        asked, call_id = _asked(operation_id, cache_key)
        return await recording.call_step(ctx, name, call, asked, config, call_id)


def _asked(operation_id: engine.DurableOperationId, key: tuple[Any, ...]) -> tuple[str, str]:
    """Return what a call is compared by on replay, and the id of a tool's call."""
    if isinstance(operation_id, engine.ModelRequestId):
        _, messages, _, asked, _ = key
        tools = [*asked.function_tools, *asked.output_tools]
        shapes = [(each.name, each.description, each.parameters_json_schema) for each in tools]
        output = (asked.output_mode, asked.output_object)
        shapes.sort(key=str)
        return fingerprint(messages, shapes, asked.native_tools, *output), ""
    if isinstance(operation_id, engine.ToolsetCallToolId | engine.ToolsetValidateToolArgumentsId):
        name, arguments, ctx, _ = key
        return fingerprint(name, arguments), ctx.tool_call_id or ""
    return "", ""


class _Waiter(engine.ExternalEventWaiter):
    """Waits for what comes from outside: a signal of the run. The token is `RUN/SIGNAL`."""

    def __init__(self, ctx: Context, agent: str) -> None:
        self._ctx, self._agent = ctx, agent

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None
    ) -> Any:
        async def call(signal: str) -> Any:
            return await ask(f"{ctx.run_id}/{signal}")  # a fork has another id, and keeps the rest

        ctx = self._ctx
        signal = f"event.{ctx.uuid(id=step_name(self._agent, 'event', name))}"
        asking = step_name(self._agent, "ask", name)
        answer = await recording.call_step(ctx, asking, call, signal, StepOptions())
        if answer is None:
            try:
                answer = await ctx.wait_for_signal(signal, timeout=timeout)
            except TimeoutError:
                raise engine.ExternalEventError(f"no answer came within {timeout}") from None
        return answer


@dataclass(init=False)
class HoldfastDurability(engine.BaseDurabilityCapability[AgentDepsT]):
    """The capability of an agent whose runs in workflows are durable.

    Outside of a workflow, also in a step, the agent works as without it.
    """

    engine_spec: ClassVar[engine.DurabilityEngineSpec] = engine.DurabilityEngineSpec(
        engine_name="holdfast",
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=_Codec(),
        serialization_failure=recording.not_json,
        toolset_lifecycles={
            "function": "enter-outside-durable",
            "mcp": "enter-outside-durable",
            "dynamic": "enter-never",  # each step makes its own
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="holdfast",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        model_options: StepOptions | None = None,
        tool_options: StepOptions | None = None,
        approvals: bool = True,
        approval_timeout: Duration | None = None,
        stream: str | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
    ) -> None:
        """Make the capability; the agent finds its name, model and tools by itself.

        `models` are those that a run may choose by name besides the agent's own. `name` begins the
        names of the steps; without it, that of the agent. `model_options` and `tool_options` say
        how requests and tools are tried: as in `Context.step`, but without a `Retry` of their own
        requests heed Retry-After and give up at once what the provider refuses. A tool has its own
        options in `metadata={"holdfast": {"timeout": "30s"}}`; with `{"holdfast": False}` it runs
        in the workflow's code, and may call steps itself.

        With `approvals`, a tool that needs one asks people, as `Context.request_approval` does; a
        rejection, or no decision within `approval_timeout`, is told to the model.

        With `stream`, the model writes the words of its answers to this stream of the run, as they
        come. `event_stream_handler` is for more than words: it gets what the model says while it
        says it, inside of the step, and may write to a stream of `current_step()`. It is called
        again for each of the agent's other events (a tool is called, a tool has answered), each
        time in a step of its own.

        Raises ConfigurationError for options that do not exist, InvalidName for a name that no
        stream may have.
        """
        super().__init__(models=models, name=name, event_stream_handler=event_stream_handler)
        self._model_options = recording.model_options(
            model_options, lambda error: getattr(error, "retry_after", None), (UserError,)
        )
        self._tool_options = recording.check_options(tool_options, "tool_options")
        self._approvals, self._approval_timeout = approvals, approval_timeout
        self._stream = recording.check_stream(stream)
        if stream is not None and event_stream_handler is not None:
            raise ConfigurationError("give stream= or event_stream_handler=, which may write to it")

    # What the agent asks of a durable engine

    @property
    def in_durable_context(self) -> bool:
        return current_context() is not None

    def get_durable_operation_backend(self) -> _Backend:
        of_tool = self._build_resolve_tool_config(self._tool_options)
        config = engine.RoleBasedOperationConfig[Any](
            model=self._model_options,
            event=self._tool_options,
            capability=self._tool_options,
            tool=self._tool_options,
            resolve_tool=lambda _, tool, name: of_tool(tool, name),  # type: ignore[arg-type]
        )
        return _Backend(namer=_Namer(self.name, self.default_model_id), config=config)

    def _normalize_unit_config(self, config: Any) -> Any:
        return recording.check_options(config, 'metadata["holdfast"] of a tool')

    @property
    def has_wrap_run_event_stream(self) -> bool:
        words = self._stream is not None and self.in_durable_context
        return words or super().has_wrap_run_event_stream

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        return super()._model_stream_event_handler() if self._stream is None else self._write_words

    async def _write_words(
        self, ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]
    ) -> None:
        words = current_step().stream(self._stream or "", type=str)
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                await recording.write_words(words, event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                await recording.write_words(words, event.delta.content_delta)

    def get_default_run_id(self) -> str | None:
        if (ctx := current_context()) is None:
            return None
        run_id = str(ctx.uuid(id=step_name(self.name, "run")))
        tally().scopes[run_id] = recording.own_scope()  # the run itself is a task of its own
        return run_id

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return engine.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        ctx = current_context()
        return None if ctx is None else ctx.now

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: Any) -> Any:
        run, agent = current_context(), self.agent
        if run is None or agent is None:
            return await handler()
        tally().claim(self.name, agent)
        scope = tally().scopes.pop(ctx.run_id or "", None) or recording.own_scope()
        # Threads belong to steps; and tools that end in any order are found again by their keys.
        with (
            recording.agent_run(scope),
            engine.replay_scope(is_replaying=recording.is_replaying),
            disable_threads(),
            agent.parallel_tool_call_execution_mode("parallel"),
            engine.external_event_scope(_Waiter(run, self.name)),
        ):
            result = await super().wrap_run(ctx, handler=handler)
        _date(result.all_messages(), run.now())
        return result

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        if (run := current_context()) is not None:
            _date(ctx.messages, run.now())
            _date(request_context.messages, run.now())
        return await super().before_model_request(ctx, request_context)

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        run, total = current_context(), ctx.usage
        before = total.input_tokens, total.output_tokens
        try:
            response = await super().wrap_model_request(
                ctx, request_context=request_context, handler=handler
            )
        except UsageLimitExceeded:
            spent = total.input_tokens - before[0], total.output_tokens - before[1]
            if run is not None and any(spent):  # the request was made, and went beyond the limit
                tally().count(run, self.name, *spent)
            raise
        if run is not None:
            used = response.usage
            tally().count(run, self.name, used.input_tokens, used.output_tokens)
        return response

    # Approvals

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        run, calls = current_context(), requests.approvals
        if run is None or not self._approvals or not calls:
            return None
        answers = await asyncio.gather(*(self._ask(run, call) for call in calls))
        ids = [call.tool_call_id for call in calls]
        return DeferredToolResults(approvals=dict(zip(ids, answers, strict=True)))

    async def _ask(self, run: Context, call: ToolCallPart) -> ToolApproved | ToolDenied:
        arguments, timeout = call.args_as_json_str(), self._approval_timeout
        decision = await recording.ask(run, self.name, call.tool_name, arguments, timeout)
        if decision.approved:
            return ToolApproved()
        return ToolDenied(decision.feedback) if decision.feedback else ToolDenied()


def _date(messages: Sequence[ModelMessage], now: datetime) -> None:
    """Give what was added since the last response a time that is the same on each replay."""
    for message in reversed(messages):
        if not isinstance(message, ModelRequest):
            return
        message.timestamp = now
        for part in message.parts:
            if hasattr(part, "timestamp"):
                setattr(part, "timestamp", now)  # noqa: B010
