"""Run logs: what the code of a run logs while it works, kept as a stream of the run."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias
from uuid import UUID

from msgspec import field

from holdfast.types.base import Notice, Value

LOG_STREAM: Final = "$log"
"""The stream that has a run's log lines: no code can open one of this name."""

MOST_LOG_BYTES: Final = 1024 * 1024
"""Bytes of log lines that a run keeps: the oldest make room for new ones."""

LogField: TypeAlias = str | int | float | bool | None

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]


class LogLine(Value, frozen=True, kw_only=True):
    """A line that the code of a run has logged.

    `call` is the key of the step or activity that logged it and `name` its name, both '' for the
    code of the workflow; `attempt` is its attempt. `fields` are those of `extra`. Reading `after`
    the `offset` continues with the next line.
    """

    offset: int = 0
    at: datetime
    level: LogLevel
    logger: str
    message: str
    call: str = ""
    attempt: int = 1
    name: str = ""
    fields: dict[str, LogField] = field(default_factory=dict[str, LogField])
    traceback: str | None = None


class LogLinePage(Value, frozen=True):
    """Lines of a run's log. `next` is the `after` that continues; if it has `ended`, nothing does.

    `dropped` lines stood before these, and had to make room.
    """

    lines: list[LogLine]
    next: int
    ended: bool
    dropped: int = 0


class LogChunk(Value, frozen=True):
    """Lines of one run, as a worker sends them: `items` is a JSON array of `count` lines.

    `number` tells it from the other chunks of its worker.
    """

    run_id: UUID
    number: int
    count: int
    items: str


class WrittenLogs(Value, frozen=True):
    """The time of the database, and what its readers are to be told."""

    now: int
    notices: list[Notice]
