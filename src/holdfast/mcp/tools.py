"""The tools: each operation of the table that says how an agent sees it, and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from holdfast.server.api.table import operations
from holdfast.server.operations import ForAgents, Operation

KEY: Final = "idempotency_key"
PAYLOAD: Final = "payload"
_IN_PATH: Final = {"run": "run", "name": "workflow", "event": "event", "stream": "stream"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A tool as a client sees it: `schema` is that of its arguments, `output` of its answer."""

    name: str
    about: str
    schema: dict[str, Any]
    output: dict[str, Any] | None = None
    writes: bool = False
    destructive: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: an operation as an agent sees it, or something else that takes `arguments`."""

    name: str
    shown: ForAgents
    operation: Operation | None = None
    arguments: Any = None

    @property
    def writes(self) -> bool:
        """True if it changes something."""
        return self.operation is not None and self.operation.level != "read"

    def described(self) -> Described:
        """Return what a client sees."""
        return Described(
            name=self.name,
            about=self.shown.about,
            schema=self.schema(),
            writes=self.writes,
            destructive=self.shown.destructive,
        )

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
        return tuple(name for name in names if name not in self.shown.hidden)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        properties: dict[str, Any] = {name: {"type": "string"} for name in self.path}
        required, shared = list(properties), cast("dict[str, Any]", {})
        operation = self.operation
        for kind in (self.arguments,) if operation is None else (operation.query, operation.body):
            if kind is Any:
                properties[PAYLOAD] = {"description": "any JSON"}
            elif kind is not None:
                _, found = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
                own: dict[str, Any] = found.pop(kind.__name__)
                shared |= found
                properties |= {name: own["properties"][name] for name in self.fields(kind)}
                required += own.get("required", [])
        for name, value in self.shown.defaults.items():
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


_CHECK: Final = "Check the database, the workers, and tasks that no live worker serves."

TOOLS: Final = (
    *(
        Tool(each.tool.name or each.name, each.tool, each)
        for each in operations(read_only=False)
        if each.tool is not None
    ),
    Tool("doctor", ForAgents(about=_CHECK)),
)
