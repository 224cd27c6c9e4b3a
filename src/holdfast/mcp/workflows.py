"""The workflows of an app as tools: one for each, which starts it, and two for runs of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast.client import Client
from holdfast.codec import decode_error, encode, raw
from holdfast.definitions.app import App
from holdfast.definitions.catalogue import entry_of, schema_of
from holdfast.definitions.jobs import Job
from holdfast.definitions.signatures import read_signature
from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.workflows import newest_definitions
from holdfast.errors import ConfigurationError, InvalidInput, ResultTimeout, RunNotFound
from holdfast.mcp.calling import LARGEST, Answer, bad, check_names, find_tool, key_of, text_of
from holdfast.mcp.tools import KEY, Described
from holdfast.server.api.explaining import whole
from holdfast.server.operations import printable
from holdfast.server.problems import problem_of
from holdfast.server.reading import MAX_KEY
from holdfast.types import UPDATE_REPLY, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.values.texts import several

WAIT: Final = "wait_seconds"
LONGEST_WAIT: Final = 300.0
USUAL_WAIT: Final = 20.0  # seconds: clients give a call about a minute
RESULT: Final = "get_result"
SIGNAL: Final = "send_signal"

_STATUSES: Final = ("running", "completed", "failed", "cancelled", "timed_out", "terminated")
_RUN: Final = {"type": "string", "format": "uuid", "description": "The id of a run."}

logger = get_logger("holdfast.mcp")


class AppTools:
    """The tools of an app's workflows. `names` says which, by default all.

    Raises ConfigurationError for a workflow that the app does not have, and for two tools of one
    name.
    """

    def __init__(self, app: App, client: Client, names: Collection[str] | None = None) -> None:
        self.name, self._client = app.name, client
        self._definitions: dict[str, AnyStartable] = {}
        found = {each.name: each for each in newest_definitions(app.registry)}
        for name in found if names is None else several("workflows", names, str):
            if name not in found:
                known = ", ".join(sorted(found)) or "none"
                raise ConfigurationError(f"app {app.name} has no workflow {name}; it has {known}")
            tool = name.replace(".", "_")  # models take no other characters
            if tool in (RESULT, SIGNAL) or tool in self._definitions:
                raise ConfigurationError(f"workflow {name} cannot be a tool: {tool} is one already")
            self._definitions[tool] = found[name]
        self.tools = [
            *(_of_workflow(name, each) for name, each in self._definitions.items()),
            _result_tool(),
            _signal_tool(),
        ]

    @property
    def full_names(self) -> set[str]:
        """The workflows and flows that the tools are about."""
        return {each.full_name for each in self._definitions.values()}

    async def call(self, name: str, arguments: Mapping[str, object]) -> Answer:
        """Carry out a call."""
        try:
            check_names(name, find_tool(name, self.tools, self.tools).schema, arguments)
            await self._client.open()
            if name == SIGNAL:
                return await self._signal(arguments)
            if name == RESULT:
                run_id = await self._run_of(arguments)
                return await self._answer(run_id, _wait_of(arguments, 0.0))
            return await self._start(name, arguments)
        except Exception as error:
            return Answer(problem_of(error).detail, failed=True)

    async def _start(self, name: str, arguments: Mapping[str, object]) -> Answer:
        definition, wait = self._definitions[name], _wait_of(arguments, USUAL_WAIT)
        start = cast("Callable[..., Any]", self._client.start)
        handle = await start(definition, input=_input(definition, arguments), key=key_of(arguments))
        logger.info("%s by mcp: run %s", name, handle.run_id)
        try:
            return await self._answer(handle.run_id, wait)
        except Exception as error:  # the run is there: an agent must not start another
            text = f"run {handle.run_id} was started, do not start it again: ask {RESULT}"
            text += f"; {problem_of(error).detail}"
            return Answer(text, failed=True)

    async def _signal(self, arguments: Mapping[str, object]) -> Answer:
        run_id, event = await self._run_of(arguments), text_of("name", arguments.get("name"))
        payload, key = arguments.get("payload"), key_of(arguments)
        sent = await self._client.signal(run_id, event, payload, key)
        logger.info("%s %s to run %s by mcp", SIGNAL, printable(event), run_id)
        return _structured({"run_id": run_id, "changed": sent})

    async def _run_of(self, arguments: Mapping[str, object]) -> UUID:
        """Return the run of a call. Raises RunNotFound for one that is not of these workflows."""
        text = text_of("run_id", arguments.get("run_id"))
        try:
            run_id = UUID(text)
        except ValueError:
            raise bad(f"{text!r} is not a run's id: an id is a UUID") from None
        run = (await self._client.runs.get(run_id)).record
        if run.full_name not in self.full_names:
            raise RunNotFound(run_id)
        return run_id

    async def _answer(self, run_id: UUID, wait: float) -> Answer:
        """Wait for the end of a run at most so long, and say how it is."""
        try:
            run = (await self._client.runs.wait(run_id, wait)).record
        except ResultTimeout:
            run = (await self._client.runs.get(run_id)).record
        if run.status != "running":
            return _of_run(run)
        asked = await self._client.approvals.list(run_id, limit=10)
        return _of_run(run, [each.title for each in asked])


def _of_run(run: RunRecord, asked: Sequence[str] = ()) -> Answer:
    error = None if run.error is None else str(decode_error(run.error))
    said: dict[str, object] = {
        "run_id": run.run_id,
        "status": run.status,
        "output": raw(run.output),
        "error": error,
    }
    if run.status == "completed":
        size = len(whole(run.output or "null").encode())
        if size > LARGEST:
            return Answer(
                f"run {run.run_id} completed; its output has {size:,} bytes, and {LARGEST:,} "
                f"at most are given: have a person read it with `holdfast runs show {run.run_id} "
                "--json`",
                failed=True,
            )
        return _structured(said)
    if run.status == "running":
        more = f"it has not ended: ask {RESULT} later"
        awaiting = () if run.wait is None else run.wait.awaiting
        others = [each for each in awaiting if each != UPDATE_REPLY]
        if asked:
            more += f"; it waits for a person to decide: {', '.join(asked)}"
        if signals := [each for each in others if ":" not in each]:  # others are not signals
            more += f"; it waits for signal {' or '.join(signals)}: {SIGNAL} sends it"
        return _structured(said, note=more)
    return Answer(f"run {run.run_id} ended: {run.status}; {error or ''}", failed=True)


def _structured(said: Mapping[str, object], note: str | None = None) -> Answer:
    data = msgspec.json.encode(said)
    return Answer(data.decode(), note, structured=msgspec.json.decode(data))


def _wait_of(arguments: Mapping[str, object], usual: float) -> float:
    wait = arguments.get(WAIT, usual)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_WAIT:
        raise bad(f"{WAIT}: give 0 to {LONGEST_WAIT:g} seconds")
    return float(wait)


def _input(definition: AnyStartable, arguments: Mapping[str, object]) -> object:
    """Return the input that the arguments of a call make. Raises InvalidInput, and Problem."""
    if isinstance(definition, Job):
        given = {name: value for name, value in arguments.items() if name not in (KEY, WAIT)}
        return definition.decode_input(encode(given))
    parameter = _parameter(definition)
    if parameter is not None and parameter in arguments:
        return definition.decode_input(encode(arguments[parameter]))
    if parameter is not None and not _is_optional(definition):
        raise bad(f"{parameter}: give it")
    return None


def _parameter(definition: AnyStartable) -> str | None:
    """Return the name of the parameter that takes the input, None if there is no input."""
    if definition.input_annotation is type(None):
        return None
    fn = getattr(definition, "fn", None)
    return "input" if fn is None else list(read_signature(fn).parameters)[-1]


def _is_optional(definition: AnyStartable) -> bool:
    try:
        definition.encode_input()
    except InvalidInput:
        return False
    return True


def _wait_schema(usual: float) -> dict[str, object]:
    about = "How long to wait for the end of the run. It continues after that."
    bounds = {"minimum": 0, "maximum": LONGEST_WAIT, "default": usual}
    return {"type": "number", "description": about, **bounds}


_KEY_SCHEMA: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_KEY,
    "description": "The same call with the same key is carried out once.",
}


def _of_workflow(name: str, definition: AnyStartable) -> Described:
    shared: dict[str, object] = {}
    properties, required = _arguments(definition, shared)
    for taken in properties.keys() & {KEY, WAIT}:
        raise ConfigurationError(
            f"workflow {definition.name}: {taken} is an argument of each tool: rename it"
        )
    properties |= {WAIT: _wait_schema(USUAL_WAIT), KEY: _KEY_SCHEMA}
    about = entry_of(definition).about or f"Run the workflow {definition.name}."
    outputs: dict[str, object] = {}
    output = _part(definition.output_annotation, outputs)
    return Described(
        name=name,
        about=f"{about} Starts a run, and returns its output if it ends in time.",
        schema=_object(properties, required, shared),
        output=_run_schema(output, outputs),
        writes=True,
    )


def _arguments(
    definition: AnyStartable, shared: dict[str, object]
) -> tuple[dict[str, object], list[str]]:
    """Return the schemas of what makes the input, by name, and the names that are required."""
    parameter = _parameter(definition)
    if parameter is None:
        return {}, []
    schema = _part(definition.input_annotation, shared)
    if isinstance(definition, Job):  # its input is an object of its arguments
        own = cast("dict[str, Any]", shared.pop(str(schema["$ref"]).rpartition("/")[2]))
        return own["properties"], own.get("required", [])
    return {parameter: schema}, [] if _is_optional(definition) else [parameter]


def _result_tool() -> Described:
    return Described(
        name=RESULT,
        about="Return the output of a run if it has ended, or ends in time.",
        schema=_object({"run_id": _RUN, WAIT: _wait_schema(0)}, ["run_id"], {}),
        output=_run_schema({}, {}),
    )


def _signal_tool() -> Described:
    name = {"type": "string", "description": "The name of the signal that the run waits for."}
    properties = {
        "run_id": _RUN,
        "name": name,
        "payload": {"description": "any JSON"},
        KEY: _KEY_SCHEMA,
    }
    changed = {"run_id": _RUN, "changed": {"type": "boolean"}}
    return Described(
        name=SIGNAL,
        about="Send a signal to a run, which its code waits for.",
        schema=_object(properties, ["run_id", "name"], {}),
        output=_object(changed, list(changed), {}),
        writes=True,
    )


def _run_schema(output: dict[str, object], shared: Mapping[str, object]) -> dict[str, object]:
    properties: dict[str, object] = {
        "run_id": _RUN,
        "status": {"type": "string", "enum": list(_STATUSES)},
        "output": {"anyOf": [output, {"type": "null"}]} if output else {"description": "any JSON"},
        "error": {"type": ["string", "null"]},
    }
    return _object(properties, list(properties), shared)


def _part(annotation: object, shared: dict[str, object]) -> dict[str, object]:
    """Return the schema of a type; its definitions are added to `shared`."""
    schema = dict(schema_of(annotation) or {"description": "any JSON"})
    shared |= cast("dict[str, object]", schema.pop("$defs", {}))
    return schema


def _object(
    properties: Mapping[str, object], required: list[str], shared: Mapping[str, object]
) -> dict[str, object]:
    schema: dict[str, object] = {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }
    return {**schema, "$defs": dict(shared)} if shared else schema
