"""The spans of time that a run's log is shown as, and how their details are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import msgspec

from holdfast.types import JSON, ErrorInfo

Kind: TypeAlias = Literal[
    "step",
    "activity",
    "child",
    "approval",
    "timer",
    "signal",
    "sent",
    "update",
    "value",
    "patch",
    "pause",
    "cancel",
    "lost",
    "fork",
    "end",
]
Outcome: TypeAlias = Literal["done", "failed", "open", "dropped", "noted"]
Details: TypeAlias = Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt of a step or an activity. `retry_at` is None if it was the last.

    `traceback` is the recorded one, empty if there is none.
    """

    number: int
    at: int
    error: str
    retry_at: int | None
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that happened in a run. A moment has the same beginning and end.

    `open` has no end yet; `dropped` was no longer wanted when the run went on. `key` is that of
    the call, `child_run_id` names the run that a child is, `origin_run_id` that of which
    a fork was made.
    """

    kind: Kind
    label: str
    began_at: int
    ended_at: int | None
    outcome: Outcome
    note: str = ""
    attempts: int = 1
    failures: tuple[Attempt, ...] = ()
    key: str = ""
    child_run_id: str = ""
    origin_run_id: str = ""


def error_text(value: JSON) -> str:
    """Write a recorded error as one line."""
    if not isinstance(value, dict):
        return ""
    kind = text_of(value, "kind").removeprefix("builtins.")
    message = text_of(value, "message")
    return f"{kind}: {message}" if message else kind


def error_chain(value: JSON) -> Iterator[str]:
    """Write a recorded error and its causes, a line each."""
    while isinstance(value, dict):
        yield error_text(value)
        value = value.get("cause")


def traceback_text(value: JSON) -> str:
    """Write the tracebacks of a recorded error; nothing where it has none."""
    if not isinstance(value, dict) or not text_of(value, "traceback"):
        return ""
    try:
        return msgspec.convert(value, ErrorInfo).format().rstrip()
    except msgspec.ValidationError:  # an error that another program recorded
        return text_of(value, "traceback").rstrip()


def read_details(details: str | None) -> Details:
    """Decode the details of an event; what is no object has none."""
    value: object = msgspec.json.decode(details) if details else None
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else {}


def json_text(value: JSON) -> str:
    """Write a value as JSON; nothing where there is none."""
    return "" if value is None else msgspec.json.encode(value).decode()


def text_of(details: Details, name: str) -> str:
    """Return a text of an event's details, empty where it has none."""
    value = details.get(name)
    return value if isinstance(value, str) else ""


def number_of(details: Details, name: str) -> int:
    """Return a number of an event's details, 0 where it has none."""
    value = details.get(name)
    return int(value) if isinstance(value, int | float) else 0


def failed_attempt(details: Details, at: int) -> Attempt:
    """Read a failed attempt that is followed by another."""
    return Attempt(
        number_of(details, "attempt"),
        at,
        error_text(details.get("error")),
        number_of(details, "retry_at"),
        traceback_text(details.get("error")),
    )
