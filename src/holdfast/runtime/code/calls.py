"""The calls that a run makes, and which run it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from holdfast.codec import fingerprint
from holdfast.definitions.steps import Step
from holdfast.types import Value


class RunInfo(Value, frozen=True):
    """Which run a turn belongs to.

    `attempt` counts the claims since the last progress, `started_at` is the moment of the first
    one, in microseconds since 1970 UTC. `parent_run_id` is the run that is told of its end. `key`
    and `headers` are those that the run was started with.
    """

    run_id: UUID
    name: str
    version: int
    attempt: int
    started_at: int
    parent_run_id: UUID | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None


class Call:
    """A step that the workflow waits for.

    `attempt` is the number of the next attempt, from 1, and `retry_at` the moment before which
    it must not start. `mark` is how much of the log must be durable by then.
    """

    __slots__ = ("arguments", "attempt", "future", "key", "mark", "name", "retry_at", "run", "step")

    def __init__(self, key: str, step: Step[..., object], arguments: str, run: str) -> None:
        self.key, self.step, self.name = key, step, step.name
        self.arguments, self.run = arguments, run
        self.attempt = 1
        self.mark = 0
        self.retry_at: int | None = None
        self.future: asyncio.Future[Any] | None = None

    @property
    def id(self) -> str:
        """The call's own id, the same at each attempt: an idempotency key for the outside."""
        return f"{self.run}/{self.key}"

    @property
    def fingerprint(self) -> int:
        """The arguments, condensed."""
        return fingerprint(self.arguments)

    def has_arguments(self, recorded: int) -> bool:
        """Return True if the log's arguments are these, apart from added fields with defaults."""
        return recorded == self.fingerprint or recorded in map(
            fingerprint, self.step.arguments_before_fields(self.arguments)
        )
