"""Runs and their logs, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from holdfast.codec import is_sealed
from holdfast.errors import ConfigurationError
from holdfast.payloads.details import open_event
from holdfast.payloads.store.part import SEALED_SHOWS, PayloadPart
from holdfast.types import ClippedEvent, CountBy, Event, RecordPage, RunCounts, RunFilter, RunRecord


class PayloadQueries(PayloadPart):
    """Decodes what is read of runs."""

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        runs = await self._store.get_runs(run_ids, payloads=payloads)
        return {run_id: self._open_record(run) for run_id, run in runs.items()}

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs; see `QueryStore.list_runs`. Raises ConfigurationError for `input_contains`."""
        self._check_filter(where)
        page = await self._store.list_runs(where)
        return msgspec.structs.replace(page, runs=[self._open_record(run) for run in page.runs])

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        """Count runs; see `QueryStore.count_runs_by`. Raises as `list_runs`."""
        self._check_filter(where)
        return await self._store.count_runs_by(by, where)

    def _check_filter(self, where: RunFilter) -> None:
        if where.input_contains is not None and self.payloads.hides:
            raise ConfigurationError(
                f"runs cannot be listed by input_contains: their inputs {self.payloads.hiding}, "
                "and the database cannot look into them. Give runs attributes or tags, and list by "
                "these"
            )

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        logs = await self._store.read_events(ranges, patience=patience)
        return {run_id: self._open_events(events) for run_id, events in logs.items()}

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        """Read a page of a log; see `QueryStore.read_log`. What is sealed is read whole."""
        shown = max(clip, SEALED_SHOWS)
        found = await self._store.read_log(run_id, since, limit=limit, clip=shown)
        return [await self._whole(run_id, each, shown, clip) for each in found]

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        """Read the next events; see `QueryStore.read_tails`. What is sealed is read whole."""
        shown = max(clip, SEALED_SHOWS)
        tails = await self._store.read_tails(ranges, limit=limit, clip=shown, most_bytes=most_bytes)
        return [
            [await self._whole(run_id, each, shown, clip) for each in tail]
            for (run_id, _), tail in zip(ranges, tails, strict=True)
        ]

    async def _whole(
        self, run_id: UUID, entry: ClippedEvent, shown: int, clip: int
    ) -> ClippedEvent:
        """Return an entry opened and cut; one that is sealed and was cut is read again, whole."""
        text = entry.event.details or ""
        if len(text) == shown and is_sealed(text):
            [entry] = await self._store.read_log(run_id, entry.idx, limit=1, clip=entry.size)
        return self._open_clipped(entry, clip)

    def _open_clipped(self, entry: ClippedEvent, clip: int) -> ClippedEvent:
        opened = open_event(self.payloads, entry.event)
        if opened is entry.event:
            cut = None if opened.details is None else opened.details[:clip]
            return msgspec.structs.replace(
                entry, event=msgspec.structs.replace(opened, details=cut)
            )
        return ClippedEvent.of(entry.idx, opened, clip)

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        """Read the newest entries; see `QueryStore.recent_log`. What is sealed is read whole."""
        shown = max(clip, SEALED_SHOWS)
        found = await self._store.recent_log(since=since, limit=limit, clip=shown)
        return [(run_id, await self._whole(run_id, each, shown, clip)) for run_id, each in found]

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        return {
            run_id: {name: self.payloads.open(text) for name, text in values.items()}
            for run_id, values in (await self._store.get_values(run_ids)).items()
        }

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        found = await self._store.find_reply(run_id, update_id)
        return None if found is None else open_event(self.payloads, found)

    async def find_signal(self, run_id: UUID, signal_id: str) -> Event | None:
        found = await self._store.find_signal(run_id, signal_id)
        return None if found is None else open_event(self.payloads, found)
