"""What all parts of the store that encodes payloads share: values encoded and decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast
from uuid import UUID

import msgspec

from holdfast.codec import is_sealed
from holdfast.errors import PayloadError
from holdfast.payloads.details import open_event
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.outgoing import Outgoing, seal_run
from holdfast.payloads.shelf import FetchingStore, Shelf
from holdfast.store.port import Store
from holdfast.types import (
    ActivityEnd,
    ClaimedTask,
    Event,
    Finish,
    Lease,
    NewRun,
    OpenActivity,
    OpenStepTasks,
    Release,
    RunRecord,
    StepTaskEnd,
    Value,
    Wait,
)
from holdfast.values.loggers import get_logger

V = TypeVar("V", bound=Value)
D = TypeVar("D", Lease, ActivityEnd)
E = TypeVar("E", Finish, ActivityEnd, StepTaskEnd)
R = TypeVar("R", Wait, OpenActivity, OpenStepTasks)

logger = get_logger("holdfast.payloads")

SEALED_SHOWS = 4096  # characters of details, which have the mark of what is sealed among them


class PayloadPart:
    """Encodes and decodes the payloads of values, which pass to and from a store.

    What is null stays null. What a method does is said in the port.
    """

    def __init__(self, store: Store, payloads: Payloads) -> None:
        self._plain = self._store = store
        self.payloads = payloads
        self._shelf: Shelf | None = None
        if payloads.large is not None:
            self._shelf = Shelf(store, payloads.large)
            self._store = cast("Store", FetchingStore(store, self._shelf))

    def _outgoing(self) -> Outgoing:
        return Outgoing(self.payloads, self._shelf)

    @staticmethod
    def _sealed(outgoing: Outgoing, value: V, owner: UUID, **fields: str) -> V:
        """Return a value with these fields encoded, which errors name so; see `_sealed_error`.

        Raises PayloadError for one that is too large.
        """
        changes: dict[str, str] = {}
        for name, what in fields.items():
            text: str | None = getattr(value, name)
            if text is not None:
                changes[name] = outgoing.seal(text, what, owner)
        return msgspec.structs.replace(value, **changes) if changes else value

    def _sealed_error(self, value: E) -> E:
        """Return a value whose `error`, an encoded ErrorInfo, is encoded."""
        if value.error is None:
            return value
        return msgspec.structs.replace(value, error=self.payloads.seal_error(value.error))

    def _hidden(self, value: D) -> D:
        """Return a value whose details are encoded, of any size: a heartbeat says them.

        Details that cannot be encoded are left out: a lease or an attempt must not end by them.
        """
        if value.details is None:
            return value
        details = None
        try:
            details = self.payloads.seal_details(value.details)
        except PayloadError as error:
            logger.error(
                "the details of a heartbeat of run %s are left out: %s", value.run_id, error
            )
        return msgspec.structs.replace(value, details=details)

    async def sealed_runs(self, runs: Sequence[NewRun]) -> list[NewRun]:
        """Return runs to start whose inputs are encoded; those that are large are objects then."""
        outgoing = self._outgoing()
        sealed = [seal_run(outgoing, run) for run in runs]
        await outgoing.put()
        return sealed

    def _opened(self, value: V, *fields: str) -> V:
        changes: dict[str, str] = {}
        for name in fields:
            text: str | None = getattr(value, name)
            if text is not None and is_sealed(text):
                changes[name] = self.payloads.open(text)
        return msgspec.structs.replace(value, **changes) if changes else value

    def opened_run(self, run: RunRecord, events: Sequence[Event]) -> tuple[RunRecord, list[Event]]:
        """Return a run and its log, which are those of an archive, with what can be opened."""
        return self._open_record(run), self._open_events(events)

    def _open_events(self, events: Sequence[Event]) -> list[Event]:
        return [open_event(self.payloads, event) for event in events]

    def _open_record(self, run: RunRecord) -> RunRecord:
        if run.last_failure is not None:
            opened = self._opened(run.last_failure, "error")
            run = msgspec.structs.replace(run, last_failure=opened)
        if run.wait is not None and run.wait.stuck is not None:
            run = msgspec.structs.replace(run, wait=self._open_reason(run.wait))
        return self._opened(run, "input", "output", "error")

    def _sealed_reason(self, release: Release) -> Release:
        """Return a release whose reason is encoded if it quotes what the code has said."""
        if release.stuck is None or not release.quotes:
            return release
        return msgspec.structs.replace(release, stuck=self.payloads.seal_words(release.stuck))

    def _open_reason(self, value: R) -> R:
        if value.stuck is None or not is_sealed(value.stuck):
            return value
        return msgspec.structs.replace(value, stuck=self.payloads.open_words(value.stuck))

    def _open_task(self, task: ClaimedTask) -> ClaimedTask:
        task = self._opened(task, "input", "payload", "heartbeat")
        if any(event.details is not None and is_sealed(event.details) for event in task.tail):
            task = msgspec.structs.replace(task, tail=self._open_events(task.tail))
        return task
