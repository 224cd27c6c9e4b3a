"""The tools, each a row: the operation that it is, and how an agent sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from holdfast.insight.shapes import RunShape
from holdfast.server.api.approvals import decide_approval, list_approvals
from holdfast.server.api.control import cancel_run
from holdfast.server.api.explaining import explain_run
from holdfast.server.api.forks import retry_run
from holdfast.server.api.logs import EventList, list_events
from holdfast.server.api.messages import send_signal
from holdfast.server.api.runs import get_run, list_runs, start_run
from holdfast.server.api.served import list_workflows
from holdfast.server.api.table import operations
from holdfast.server.operations import Handler, Operation

KEY: Final = "idempotency_key"
PAYLOAD: Final = "payload"
_IN_PATH: Final = {"run": "run", "name": "workflow", "event": "event"}
_LEFT_OUT: Final = frozenset({"wait", "by", "decision_id"})
"""What an agent does not say: it decides as itself, and `idempotency_key` is for decisions too."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. `defaults` stand in the place of the operation's own, which are for programs.

    `note` says what an answer leaves out, and how to get it. Without an operation it is `doctor`.
    """

    name: str
    about: str
    operation: Operation | None = None
    destructive: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    note: Callable[[Any], str | None] = lambda _: None

    @property
    def writes(self) -> bool:
        """True if it changes something."""
        return self.operation is not None and self.operation.level != "read"

    @property
    def path(self) -> dict[str, str]:
        """Return the arguments that stand in the operation's path, each with its name there."""
        if self.operation is None:
            return {}
        return {
            shown: name for name, shown in _IN_PATH.items() if f"{{{name}}}" in self.operation.path
        }

    def fields(self, kind: Any) -> tuple[str, ...]:
        """Return the arguments that a query or a body takes."""
        if kind is None:
            return ()
        if kind is Any:
            return (PAYLOAD,)
        names = (each.encode_name for each in msgspec.structs.fields(kind))
        return tuple(name for name in names if name not in _LEFT_OUT)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        properties: dict[str, Any] = {name: {"type": "string"} for name in self.path}
        required, shared = list(properties), cast("dict[str, Any]", {})
        for kind in () if self.operation is None else (self.operation.query, self.operation.body):
            if kind is Any:
                properties[PAYLOAD] = {"description": "any JSON"}
            elif kind is not None:
                _, found = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
                own: dict[str, Any] = found.pop(kind.__name__)
                shared |= found
                properties |= {name: own["properties"][name] for name in self.fields(kind)}
                required += own.get("required", [])
        for name, value in self.defaults.items():
            properties[name] = {**properties[name], "default": value}
        if self.operation is not None and self.operation.keyed:
            about = "The same call with the same key is carried out once."
            properties[KEY] = {"type": "string", "description": about}
        schema: dict[str, Any] = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        return {**schema, "$defs": shared} if shared else schema


def _cut_log(found: EventList) -> str | None:
    cut = [each.idx for each in found.events if each.details_bytes is not msgspec.UNSET]
    notes: list[str] = []
    if cut:
        notes.append(
            f"The details of {len(cut)} entries are left out: details_bytes is their size. For the "
            f"first give after={cut[0] - 1}, limit=1 and a clip of that size."
        )
    if found.next is not None:
        notes.append(f"The log continues: give after={found.next}.")
    return " ".join(notes) or None


def _cut_run(found: RunShape) -> str | None:
    if found.input_bytes is msgspec.UNSET and found.output_bytes is msgspec.UNSET:
        return None
    return (
        "A payload is left out, its size is given: "
        f"`holdfast runs show {found.run_id} --json` has it whole."
    )


def _of(handler: Handler) -> Operation:
    return next(each for each in operations(read_only=False) if each.handler is handler)


TOOLS: Final = (
    Tool(
        "list_runs",
        "List runs, newest first, without payloads. `cursor` of an answer continues after it. The "
        "run of a workflow and a key is found by `workflow` and `key`.",
        _of(list_runs),
        defaults={"limit": 20},
    ),
    Tool("get_run", "Return a run as it is now, with its payloads.", _of(get_run), note=_cut_run),
    Tool("why_run", "Say why a run waits, and what would move it.", _of(explain_run)),
    Tool(
        "read_log",
        "Return a run's log, a page at a time. Details of more than `clip` bytes are left out.",
        _of(list_events),
        defaults={"limit": 50, "clip": 2_048},
        note=_cut_log,
    ),
    Tool(
        "list_approvals",
        "List the approvals that wait for a decision, oldest first.",
        _of(list_approvals),
    ),
    Tool(
        "list_workflows",
        "List the workflows with their runs by status, and the JSON schema of each one's input.",
        _of(list_workflows),
    ),
    Tool("doctor", "Check the database, the workers, and tasks that no live worker serves."),
    Tool(
        "start",
        "Start a run of a workflow. list_workflows has the schema of the input.",
        _of(start_run),
    ),
    Tool("signal", "Send a run a signal.", _of(send_signal)),
    Tool(
        "decide",
        "Approve or reject what a run asks for. The first decision counts.",
        _of(decide_approval),
        destructive=True,
    ),
    Tool(
        "cancel",
        "Ask a run to end; its code may clean up first.",
        _of(cancel_run),
        destructive=True,
    ),
    Tool("retry", "Start a run that continues where another one failed.", _of(retry_run)),
)
