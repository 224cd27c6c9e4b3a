"""The part of the port for reading runs and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import (
    ClippedEvent,
    CountBy,
    Event,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    Status,
)


class QueryStore(Protocol):
    """Reads runs and logs, and changes nothing."""

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        """Return the runs that exist; without `payloads` they have no input and no output."""
        ...

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """Return a page of runs, newest first. Its cursor stays valid while runs start and end.

        The work for a page is bounded, so a page may be short and still have a cursor.
        """
        ...

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        """Return how many of the newest `where.limit` runs that `list_runs` finds have what.

        A run counts for each of its tags. The work is bounded, so not all of them may be counted.
        """
        ...

    @readable
    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        """Return the ids of at most `limit` runs from `first` to `last`, in order."""
        ...

    @readable
    async def count_runs(
        self, names: Sequence[str] | None, limit: int
    ) -> dict[str, dict[Status, int]]:
        """Return how many runs workflows have by status; each count stops at `limit`.

        Without names it is all runs, under an empty name. What there is none of is left out.
        """
        ...

    @readable
    async def find_run(self, name: str, key: str) -> UUID | None:
        """Return the id of the run that was started with this key, None if there is none."""
        ...

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        """Return logs, each from an index on. The details of WorkflowStarted are the run's input.

        A run that does not exist has an empty list. `patience` multiplies the time that the
        answer may take; if it takes longer, the error's cause is a TimeoutError.
        """
        ...

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        """Return a page of a log: at most `limit` events from an index on.

        Details of more than `clip` bytes may be cut, to `clip` characters at least. A run that
        does not exist has an empty log.
        """
        ...

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        """Return the next events of logs, for each range those from an index on, in its order.

        There are at most `limit` events in all, and no more after details of `most_bytes`
        together, or of eight times as many before they are cut. The first event comes whatever its
        size. The next event of each range comes before the second of any, so a long log holds up
        no other. Details of more than `clip` bytes may be cut, as by `read_log`.
        """
        ...

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        """Return what happened in all runs since a moment, oldest first.

        Each entry is with its run, and its details are cut as by `read_log`.
        """
        ...

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        """Return the newest value of each name that the runs have set, as JSON text."""
        ...

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        """Return the run's UpdateCompleted or UpdateRejected of this id, or None."""
        ...

    async def find_signal(self, run_id: UUID, signal_id: str) -> Event | None:
        """Return the run's SignalReceived of this id, which may be an update, or None."""
        ...

    @readable
    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return, for each run that exists, the last run of its chain of continuations."""
        ...
