"""What callers that see some apps or workflows only are told of runs: nothing of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from holdfast.store.port import Store
from holdfast.types import (
    AppInfo,
    Approval,
    ClippedEvent,
    CountBy,
    Event,
    FlowInfo,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    Status,
    StreamPart,
    StreamRead,
)
from holdfast.values.names import full_name

Sees: TypeAlias = Callable[[str], bool]
"""Returns True for the full name of a workflow, a flow or an activity that may be seen."""

MOST: Final = 1_000  # rows that are looked through


def without_parent(run: RunRecord) -> RunRecord:
    """Return a run as one that no other run has started."""
    return replace(run, parent_run_id=None, parent_key=None) if run.parent_run_id else run


class NarrowRuns:
    """Answers what is asked of runs as if there were no others than those that are seen."""

    def __init__(self, store: Store, sees: Sees, named: Sequence[str]) -> None:
        """`named` are the apps and the full names that may be seen."""
        self._store, self._sees, self._named = store, sees, named

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        found = await self._seen(run_ids, payloads=payloads)
        return {each.run_id: each for each in await self._shown(found.values())}

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        own = await self._own(run_ids)
        return await self._store.wait_for_end(topic, [each for each in run_ids if each in own])

    async def list_runs(self, where: RunFilter) -> RecordPage:
        narrowed = await self._narrowed(where)
        if narrowed is None:
            return RecordPage([], None)
        page = await self._store.list_runs(narrowed)
        return replace(page, runs=await self._shown(page.runs))

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        narrowed = await self._narrowed(where)
        if narrowed is None:
            return RunCounts(by, {})
        return await self._store.count_runs_by(by, narrowed)

    async def count_runs(
        self, names: Sequence[str] | None, limit: int
    ) -> dict[str, dict[Status, int]]:
        if names is not None:
            return await self._store.count_runs([each for each in names if self._sees(each)], limit)
        total = Counter[Status]()
        for counts in (await self._store.count_runs(await self._names(), limit)).values():
            total.update(counts)
        return {"": {status: min(count, limit) for status, count in total.items()}}

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        found = await self._store.runs_between(first, last, MOST)
        own = await self._own(found)
        return [each for each in found if each in own][:limit]

    async def find_run(self, name: str, key: str) -> UUID | None:
        return await self._store.find_run(name, key) if self._sees(name) else None

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        own = await self._own(run_id for run_id, _ in ranges)
        asked = [each for each in ranges if each[0] in own]
        found = await self._store.read_events(asked, patience=patience)
        return {run_id: found.get(run_id, []) for run_id, _ in ranges}

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        own = await self._own(run_id for run_id, _ in ranges)
        asked = [each for each in ranges if each[0] in own]
        found = iter(
            await self._store.read_tails(asked, limit=limit, clip=clip, most_bytes=most_bytes)
        )
        return [next(found) if run_id in own else [] for run_id, _ in ranges]

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        found = await self._store.recent_log(since=since, limit=limit, clip=clip)
        own = await self._own(run_id for run_id, _ in found)
        return [each for each in found if each[0] in own]

    async def read_streams(
        self, reads: Sequence[StreamRead], *, limit: int, most_bytes: int
    ) -> list[StreamPart]:
        own = await self._own(each.run_id for each in reads)
        asked = [each for each in reads if each.run_id in own]
        found = iter(await self._store.read_streams(asked, limit=limit, most_bytes=most_bytes))
        absent = StreamPart(None, 0, 0, 0, [], [])
        return [next(found) if each.run_id in own else absent for each in reads]

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        found = await self._store.list_approvals(run_id=run_id, limit=MOST)
        return [each for each in found if self._sees(each.workflow)][:limit]

    async def list_apps(self) -> list[AppInfo]:
        found: list[AppInfo] = []
        for each in await self._store.list_apps():
            names = tuple(one for one in each.workflows if self._sees(full_name(each.app, one)))
            if names or each.app in self._named:
                found.append(replace(each, workflows=names))
        return found

    async def list_flows(self) -> list[FlowInfo]:
        return [each for each in await self._store.list_flows() if self._sees(each.name)]

    async def _own(self, run_ids: Iterable[UUID]) -> set[UUID]:
        """Return those of the runs that are seen."""
        asked = list(dict.fromkeys(run_ids))
        return set(await self._seen(asked, payloads=False)) if asked else set()

    async def _seen(self, run_ids: Sequence[UUID], *, payloads: bool) -> dict[UUID, RunRecord]:
        found = await self._store.get_runs(run_ids, payloads=payloads)
        return {run_id: run for run_id, run in found.items() if self._sees(run.full_name)}

    async def _shown(self, runs: Iterable[RunRecord]) -> list[RunRecord]:
        """Return runs that do not name a parent that is not seen, nor its call."""
        shown = list(runs)
        parents = {each.parent_run_id for each in shown if each.parent_run_id is not None}
        seen = await self._own(parents)
        return [each if each.parent_run_id in seen else without_parent(each) for each in shown]

    async def _names(self) -> list[str]:
        """Return the full names of all workflows and flows that are seen."""
        names = {
            full_name(each.app, one) for each in await self.list_apps() for one in each.workflows
        }
        names |= {each.name for each in await self.list_flows()}
        return sorted(names | {each for each in self._named if "/" in each})

    async def _narrowed(self, where: RunFilter) -> RunFilter | None:
        """Return a filter for runs that are seen; None if it cannot find any."""
        names = [each for each in (where.names or await self._names()) if self._sees(each)]
        return replace(where, names=tuple(names)) if names else None
