"""What the modules for the frameworks share: steps and their keys, approvals, usage, errors."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import importlib
import random
import re
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final, TypedDict, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from holdfast.agents.naming import step_name
from holdfast.definitions.caller import current_caller
from holdfast.definitions.streams import StreamWriter
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.retry import Retry
from holdfast.runtime.code.approvals import Decision
from holdfast.runtime.code.context import Context, current_context
from holdfast.runtime.code.run import Run
from holdfast.runtime.loop.tasks import Scope, WorkflowTask
from holdfast.values.durations import Duration
from holdfast.values.names import check_stream_name

T = TypeVar("T")

MOST_SHOWN: Final = 8_000  # characters of a call's arguments that a person is shown
_MOST_SAID: Final = 8_000  # characters of one value of a stream
_number: Final = re.compile(r"\d+(\.\d+)?")
_PASSING: Final = (408, 409, 425, 429)  # statuses of 400 and more that another attempt may not get


class StepOptions(TypedDict, total=False):
    """How steps are tried: as `retry` and `timeout` of `Context.step`."""

    retry: Retry
    timeout: Duration


def check_options(options: StepOptions | None, place: str) -> StepOptions:
    """Return options, none for None. Raises ConfigurationError for one that does not exist."""
    checked = options or StepOptions()
    if unknown := sorted(set(checked) - set(StepOptions.__annotations__)):
        raise ConfigurationError(f"{place} has no option {unknown[0]!r}: it has 'retry', 'timeout'")
    return checked


def check_stream(name: str | None) -> str | None:
    """Return the name of a stream, None for None. Raises InvalidName for one that cannot be."""
    return None if name is None else check_stream_name(name)


async def write_words(out: StreamWriter[str], text: str) -> None:
    """Write a text to a stream, in parts that it takes: some models say all they say at once."""
    for start in range(0, len(text), _MOST_SAID):
        await out.write(text[start : start + _MOST_SAID])


def load(read: Callable[[], T], what: str) -> T:
    """Return what `read` makes of the recorded result of `what`.

    A result that does not fit any more makes the run stuck: as an error it would reach the model,
    which would answer it with another request.
    """
    try:
        return read()
    except Exception as error:
        run = cast("Run | None", current_caller())
        if run is None:
            raise
        raise run.history.differ(
            f"the recorded result of {what} cannot be read ({error})"
        ) from None


def not_json(error: Exception) -> PayloadError:
    """Return the error for what a model or a tool has returned, if it cannot be recorded."""
    return PayloadError(
        f"what it has returned is not JSON, so it cannot be recorded ({error}); return texts, "
        "numbers, lists, dicts, or dataclasses and pydantic models of them"
    )


class _Random:
    """The module `random`, which draws the same on each replay of a workflow."""

    def __getattr__(self, name: str) -> Any:
        ctx = current_context()
        return getattr(random if ctx is None else ctx.random, name)


def repeat_pauses(module: str) -> None:
    """Let a module of a framework draw the lengths of its pauses as workflow code must."""
    with suppress(ImportError):  # of a release that has it elsewhere
        vars(importlib.import_module(module))["random"] = _Random()


_home: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("agent_run", default=None)


def is_replaying() -> bool:
    """Return True if workflow code calls that repeats itself: its spans were sent before."""
    run = cast("Run | None", current_caller())
    return run is not None and run.history.replaying


def own_scope() -> Scope | None:
    """Return the scope in which the workflow code that calls gets its keys."""
    task = asyncio.current_task()
    return task.scope if isinstance(task, WorkflowTask) else None


@contextmanager
def agent_run(scope: Scope | None) -> Generator[None]:
    """Let the steps of an agent have keys of the code that runs it.

    The tasks that a framework makes inside may have other names in its next release.
    """
    token = _home.set(scope)
    try:
        yield
    finally:
        _home.reset(token)


@contextmanager
def _at_home() -> Generator[None]:
    task, home = asyncio.current_task(), _home.get()
    if home is None or not isinstance(task, WorkflowTask):
        yield
        return
    own, task.scope = task.scope, home
    try:
        yield
    finally:
        task.scope = own


def call_step(
    ctx: Context,
    name: str,
    fn: Callable[[str], Awaitable[Any]],
    asked: str,
    options: StepOptions,
    call_id: str = "",
) -> Coroutine[object, None, Any]:
    """Call a step of an agent. `asked` is the fingerprint of what it is asked.

    `call_id` is the model's id of a tool call: the step has the same key in whatever order tools
    are called.
    """
    with _at_home():
        return ctx.step(
            name, fn, asked, id=step_name(*name.split("."), call_id) if call_id else None, **options
        )


@lru_cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what writes and reads values of a type."""
    return TypeAdapter(kind)


async def record(
    ctx: Context,
    name: str,
    call: Callable[[], Awaitable[Any]],
    kind: Any,
    asked: str,
    options: StepOptions,
    call_id: str = "",
) -> Any:
    """Call something as `call_step` does, and return its result as `kind`, as on each replay."""

    async def step(asked: str) -> Any:
        result = await call()
        try:
            payload = adapter(kind).dump_python(result, mode="json", exclude_unset=True)
            adapter(kind).validate_python(payload)  # the step fails, before it is recorded
        except (PydanticSerializationError, ValueError, TypeError) as error:
            raise not_json(error) from None
        return payload

    payload = await call_step(ctx, name, step, asked, options, call_id)
    return load(lambda: adapter(kind).validate_python(payload), name)


async def ask(
    ctx: Context, agent: str, tool: str, arguments: str, timeout: Duration | None
) -> Decision[None]:
    """Ask a person if an agent may call a tool; nobody in time is a rejection."""
    request = ctx.request_approval(
        f"{agent}: {tool}",
        description=arguments[:MOST_SHOWN],
        timeout=timeout,
        id=step_name(agent, "approve", tool),
    )
    with _at_home():
        asking = asyncio.ensure_future(request)
    try:
        return await asking
    except TimeoutError:
        return Decision(False, feedback="Nobody decided in time.")


class Tally:
    """What a run of a workflow knows of its agents: who has which name, and what they used.

    `scopes` are those of the code that runs agents, by the ids of these runs.
    """

    def __init__(self) -> None:
        self.owners: dict[str, object] = {}
        self.scopes: dict[str, Scope | None] = {}
        self.used: dict[str, Counter[str]] = {}

    def claim(self, agent: str, owner: object) -> None:
        """Raise ConfigurationError if another agent of the run has this name, or it is empty."""
        if not agent:
            raise ConfigurationError("an agent needs a name: the names of its steps begin with it")
        if self.owners.setdefault(agent, owner) is not owner:
            raise ConfigurationError(
                f"two agents of one run have the name {agent!r}: their steps would be taken for "
                "each other's; name one of them otherwise, or make the agent once, in the module"
            )

    def count(self, ctx: Context, agent: str, input_tokens: int, output_tokens: int) -> None:
        """Add what a request used to the value `AGENT.usage` of the run."""
        total = self.used.setdefault(agent, Counter())
        total.update(requests=1, input_tokens=input_tokens, output_tokens=output_tokens)
        ctx.set_value(step_name(agent, "usage"), dict(total))


_tallies: weakref.WeakKeyDictionary[object, Tally] = weakref.WeakKeyDictionary()


def tally() -> Tally:
    """Return the tally of the run whose workflow code calls."""
    return _tallies.setdefault(asyncio.get_running_loop(), Tally())


def model_options(
    options: StepOptions | None,
    wait_of: Callable[[BaseException], float | None],
    never: tuple[type[BaseException], ...],
) -> StepOptions:
    """Return the options of requests: a Retry-After is heeded, what is refused is not asked again.

    `wait_of` finds the seconds that an error asks for; errors of the types `never` are final.
    """

    def should_retry(error: BaseException) -> bool:
        status = getattr(error, "status_code", None)
        final = isinstance(status, int) and 400 <= status < 500 and status not in _PASSING
        return not final and not isinstance(error, never)

    checked = check_options(options, "model_options").copy()
    given = checked.get("retry") or Retry(attempts=6, base="1s", max="2m")
    checked["retry"] = dataclasses.replace(
        given, should_retry=given.should_retry or should_retry, delay=given.delay or wait_of
    )
    return checked


def retry_after(error: BaseException) -> float | None:
    """Return the seconds for which an HTTP answer's error asks, None without such a header.

    The header is `retry-after-ms`, or `Retry-After` with seconds or a date.
    """
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = str(headers.get(name, "")).strip()
        if _number.fullmatch(text):
            return float(text) * unit
        with suppress(ValueError):
            until = parsedate_to_datetime(text)
            return max(0.0, (until - datetime.now(until.tzinfo)).total_seconds())
    return None
