"""Runs as callers see them: values of the workflow's types, and moments with a time zone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import cast
from uuid import UUID

from holdfast.codec import decode_error, decoder
from holdfast.definitions.app import App
from holdfast.definitions.startable import AnyStartable
from holdfast.errors import ConfigurationError, UnknownWorkflow
from holdfast.types import (
    JSON,
    ErrorInfo,
    RecordPage,
    RunKind,
    RunRecord,
    State,
    Status,
    Value,
    Wait,
    continued_as,
)
from holdfast.values.composing import compose
from holdfast.values.moments import maybe_datetime, to_datetime

decode_plain = cast("Callable[[str], JSON]", decoder(object))
"""Decodes JSON text to plain values."""


class RunWait(Value, frozen=True):
    """What a run that has not ended is doing.

    `until` is the moment at which it continues without a message, None if there is none; a run
    whose moment has come is queued. `awaiting` names the signals that it waits for. `worker` is the
    worker that has claimed it. `stuck` is the reason why it cannot continue. `attempts` counts how
    often it was claimed since it last made progress.
    """

    until: datetime | None
    awaiting: tuple[str, ...]
    worker: str | None
    attempts: int
    stuck: str | None
    paused: bool


class LastFailure(Value, frozen=True):
    """An attempt of a run that failed and was retried; `attempts` is None if there is no limit."""

    number: int
    attempts: int | None
    error: ErrorInfo


class Run:
    """A run as it was when it was asked for.

    `kind` is "workflow" or "flow". `status` is "running" or how it ended, `state` also what it is
    doing until then: a flow is running if a worker has one of its steps, queued if one is due.
    `key` and `headers` were given at its start; `parent_run_id` and `parent_key` name the run and
    the call that started it, or the retry of that run that has taken it over. `created_at`,
    `due_at` (of a start that was delayed until then), `started_at` (first, by a worker),
    `completed_at` and `deadline_at` are moments in UTC. `wait` describes what it is doing, until it
    has ended. `build` is the one that the run stays with, None if it is not pinned. `archive` is
    where a run was archived that is not in the database any more, else None. `record` is its row:
    values as JSON text, moments in microseconds since 1970.
    """

    def __init__(self, record: RunRecord, workflow: AnyStartable | None = None) -> None:
        """Hold a row, whose values are of the workflow's types. Clients make runs."""
        self.record = record
        self._workflow = workflow
        self.run_id: UUID = record.run_id
        self.kind: RunKind = record.kind
        self.app, self.name, self.version = record.app, record.name, record.version
        self.full_name, self.handler = record.full_name, record.handler
        self.key, self.queue, self.priority = record.key, record.queue, record.priority
        self.build: str | None = record.build
        self.status: Status = record.status
        self.state: State = record.state
        self.tags, self.headers = record.tags, dict(record.headers or {})
        self.attributes = dict(record.attributes)
        self.retention_seconds = record.retention_seconds
        self.created_at: datetime = to_datetime(record.created_at)
        self.due_at = maybe_datetime(record.due_at)
        self.started_at = maybe_datetime(record.started_at)
        self.completed_at = maybe_datetime(record.completed_at)
        self.deadline_at = maybe_datetime(record.deadline_at)
        self.wait = None if record.wait is None else _wait(record.wait)
        self.parent_run_id, self.parent_key = record.parent_run_id, record.parent_key
        self.archive: str | None = record.archive

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.handler}: {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.record == other.record

    def __hash__(self) -> int:
        return hash(self.run_id)

    @cached_property
    def input(self) -> object:
        """The input, of the type that the workflow declares, else as plain JSON values.

        Raises ConfigurationError for a run from a list without payloads, and InvalidInput for an
        input that is of another type.
        """
        text = self._payload(self.record.input) or "null"
        return decode_plain(text) if self._workflow is None else self._workflow.decode_input(text)

    @cached_property
    def output(self) -> object:
        """The output, as `input` is typed; None for a run that has not completed.

        Raises what `input` raises.
        """
        text = self._payload(self.record.output)
        if text is None or self.status != "completed":
            return None
        decode: Callable[[str], object] = (
            decode_plain if self._workflow is None else self._workflow.decode_output
        )
        return decode(text)

    @cached_property
    def error(self) -> ErrorInfo | None:
        """What the run failed with, None if it has not failed."""
        return None if self.record.error is None else decode_error(self.record.error)

    @cached_property
    def last_failure(self) -> LastFailure | None:
        """The last attempt that failed and was retried: this run, or the one before it."""
        last = self.record.last_failure
        if last is None:
            return None
        return LastFailure(last.number, last.attempts, decode_error(last.error))

    @property
    def continued_as(self) -> UUID | None:
        """The run that continues this one, None if it did not continue as new.

        Raises ConfigurationError for a run from a list without payloads.
        """
        return continued_as(self.record) if self._payload(self.record.output) else None

    def _payload(self, text: str | None) -> str | None:
        if self.record.input is None:
            raise ConfigurationError(
                f"run {self.run_id} comes from a list, which has no inputs and outputs: list with "
                "payloads=True, or get the run by its id"
            )
        return text


class RunPage(Value, frozen=True):
    """A page of runs; `cursor` continues after it, None at the end.

    A filter by tag, queue, build or input looks at 5,000 runs at most for one page, and at fewer
    where that takes long. So does a state like `queued` that more than 5,000 runs are in. Where
    that was not enough, `searched_until` is the creation of the last run that was looked at, and
    the page has fewer runs than the limit, or none, although more may follow.
    """

    runs: list[Run]
    cursor: str | None
    searched_until: datetime | None = None


def read_run(record: RunRecord, app: App | None, workflow: AnyStartable | None = None) -> Run:
    """Make a run of a record, typed by its version of the workflow that is given or in the app."""
    if workflow is not None and workflow.full_name == record.full_name:
        return Run(record, workflow.of_version(record.version) or workflow)
    if app is not None and record.app == app.name:
        with suppress(UnknownWorkflow):
            return Run(record, app.startable(record.name, record.version))
    return Run(record)


def read_page(page: RecordPage, app: App | None) -> RunPage:
    """Make a page of runs of a page of records."""
    return RunPage(
        [read_run(each, app) for each in page.runs],
        page.cursor,
        maybe_datetime(page.searched_until),
    )


def _wait(wait: Wait) -> RunWait:
    return compose(RunWait, wait, until=maybe_datetime(wait.visible_at))
