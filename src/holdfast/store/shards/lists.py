"""The lists and counts of a store over shards: of all that answer, merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import DatabaseUnavailable
from holdfast.store.shards.members import answered
from holdfast.store.shards.merging import (
    cut_short,
    merge_alerts,
    merge_counts,
    merge_counts_by,
    merge_held_keys,
    merge_ids,
    merge_pages,
    merge_pauses,
    merge_samples,
    merge_shares,
    unite,
)
from holdfast.store.shards.router import Routed
from holdfast.types import (
    AlertInfo,
    Approval,
    BuildInfo,
    CatalogueEntry,
    ClippedEvent,
    CountBy,
    FlowShape,
    Gauges,
    HeldKey,
    LoadSample,
    MinuteCounts,
    Pause,
    RecordPage,
    RunCounts,
    RunFilter,
    Status,
    SubscriptionKind,
    SweeperState,
    SweepShare,
    WorkerInfo,
)
from holdfast.values.moments import to_micros


class Lists(Routed):
    """Reads of what all shards have."""

    async def now(self) -> int:
        """Return the time of shard 0, or while it is away of another one."""
        try:
            return int(await self._router.members.call(0, "now"))
        except DatabaseUnavailable:
            return int(max(await self._router.present("now")))

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """Return a page of the runs of all shards; see `QueryStore.list_runs`.

        Each is asked for little more than its share, and again if it has more of the newest.
        """
        share = min(where.limit, 2 * where.limit // self._router.members.count + 8)
        pages = await self._router.members.present("list_runs", replace(where, limit=share))
        page = merge_pages([*pages.values()], where)
        if share == where.limit or len(page.runs) == where.limit:
            return page
        fuller, _ = await answered(
            {
                number: self._router.members.call(number, "list_runs", where)
                for number in cut_short(pages, share)
            }
        )
        return merge_pages([*(pages | fuller).values()], where)

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        """Return the sums over the newest runs of all shards; see `QueryStore.count_runs_by`.

        Where a shard's count ended at the limit, the others count from that moment on again.
        """
        found: list[RunCounts] = await self._router.present("count_runs_by", by, where)
        until = max((x.searched_until for x in found if x.searched_until), default=None)
        if until is not None and any(each.searched_until != until for each in found):
            since = replace(where, since=to_micros(until))
            found = await self._router.present("count_runs_by", by, since)
        return merge_counts_by(found, until)

    async def count_runs(
        self, names: Sequence[str] | None, limit: int
    ) -> dict[str, dict[Status, int]]:
        """Return sums; each shard's count stops at `limit`; see `QueryStore.count_runs`."""
        return merge_counts(await self._router.present("count_runs", names, limit))

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        """Return ids in order; see `QueryStore.runs_between`."""
        return merge_ids(await self._router.present("runs_between", first, last, limit), limit)

    async def runs_of_build(
        self, app: str, build: str, *, after: UUID | None = None, limit: int = 1_000
    ) -> list[UUID]:
        """Return ids in order; see `BuildStore.runs_of_build`. Fails while a shard is away."""
        found = await self._router.members.each(
            "runs_of_build", app, build, after=after, limit=limit
        )
        return merge_ids(found, limit)

    async def list_builds(self, app: str | None = None) -> list[BuildInfo]:
        """Return builds with sums; a shard that is away may need any of them."""
        members = self._router.members
        found = await members.present("list_builds", app)
        away = tuple(f"shard {number}, which is away" for number in members.away(found))
        builds: list[BuildInfo] = unite(found.values())
        return [replace(each, needed_for=(*each.needed_for, *away)) for each in builds]

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        """Return entries of all shards, oldest first; see `QueryStore.recent_log`."""
        found = await self._router.present("recent_log", since=since, limit=limit, clip=clip)
        return sorted(chain.from_iterable(found), key=lambda each: each[1].event.at)[:limit]

    async def read_gauges(self, *, limit: int = 10_001) -> Gauges:
        """Return sums, and the longest waits; see `StatsStore.read_gauges`."""
        found: list[Gauges] = await self._router.present("read_gauges", limit=limit)
        in_flight, due = Counter[str](), Counter[str]()
        oldest: dict[str, float] = {}
        for each in found:
            in_flight.update(each.in_flight)
            due.update(each.due)
            for queue, seconds in each.oldest_due_seconds.items():
                oldest[queue] = max(seconds, oldest.get(queue, 0.0))
        return Gauges(
            in_flight=dict(in_flight),
            due=dict(due),
            oldest_due_seconds=oldest,
            approvals_open=sum(each.approvals_open for each in found),
            runs_stuck=sum(each.runs_stuck for each in found),
        )

    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        """Return what shard 0 says, with the sums of all; see `RetentionStore.get_sweeper`."""
        found: list[SweeperState] = await self._router.present("get_sweeper", limit=limit)
        failed = next((each for each in found if each.error is not None), found[0])
        return replace(
            found[0],
            deleted=sum(each.deleted for each in found),
            due=sum(each.due for each in found),
            oldest=min((x.oldest for x in found if x.oldest is not None), default=None),
            failed_at=failed.failed_at,
            error=failed.error,
        )

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        """Return open approvals, the oldest first; see `ApprovalStore.list_approvals`."""
        found = await self._router.present("list_approvals", run_id=run_id, limit=limit)
        ordered = sorted(
            chain.from_iterable(found), key=lambda each: (each.requested_at, each.run_id, each.key)
        )
        return ordered[:limit]

    async def list_pauses(self) -> list[Pause]:
        """Return each pause once; if only some shards have it, the reason says which.

        See `ControlStore.list_pauses`.
        """
        return merge_pauses(await self._router.members.present("list_pauses"))

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers of all shards, shard by shard; see `WorkerStore.list_workers`."""
        found: dict[int, list[WorkerInfo]] = await self._router.members.present("list_workers")
        return [replace(each, shard=number) for number, some in found.items() for each in some]

    async def unserved(self, **options: Any) -> list[tuple[str, str, int]]:
        """Return sums by queue and handler; see `WorkerStore.unserved`."""
        counts: Counter[tuple[str, str]] = Counter()
        for queue, handler, count in chain.from_iterable(
            await self._router.present("unserved", **options)
        ):
            counts[queue, handler] += count
        return [(queue, handler, count) for (queue, handler), count in counts.items()]

    async def read_stats(
        self,
        *,
        since: int,
        part_seconds: int = 60,
        names: Sequence[str] | None = None,
        limit: int = 100_000,
    ) -> list[MinuteCounts]:
        """Return the counts of all shards, the newest first; see `StatsStore.read_stats`."""
        found = await self._router.present(
            "read_stats", since=since, part_seconds=part_seconds, names=names, limit=limit
        )
        rows = sorted(chain.from_iterable(found), key=lambda each: -each.minute)
        merged = accumulate((row.merged for row in rows), initial=0)
        return [row for row, before in zip(rows, merged, strict=False) if before < limit]

    async def read_samples(
        self, *, since: int, part_seconds: int, name: str | None = None
    ) -> list[LoadSample]:
        """Return sums by part and queue; see `StatsStore.read_samples`."""
        options = {"since": since, "part_seconds": part_seconds, "name": name}
        return merge_samples(await self._router.present("read_samples", **options))

    async def read_catalogue(self, names: Sequence[str]) -> dict[str, CatalogueEntry]:
        """Return what code has said in any shard; see `AppStore.read_catalogue`."""
        found: list[dict[str, CatalogueEntry]] = await self._router.present("read_catalogue", names)
        entries = chain.from_iterable(each.values() for each in found)
        return {each.name: each for each in sorted(entries, key=lambda each: each.version)}

    async def get_flow(self, name: str, version: int | None = None) -> FlowShape | None:
        """Return the newest version that a shard has, or one; see `FlowStore.get_flow`."""
        found: list[FlowShape | None] = await self._router.present("get_flow", name, version)
        known = [each for each in found if each is not None]
        return max(known, key=lambda each: each.version, default=None)

    async def count_subscriptions(self, topic: str) -> Mapping[SubscriptionKind, int]:
        """Return sums: those of runs are with their runs; see `TopicStore.count_subscriptions`."""
        counts: Counter[SubscriptionKind] = Counter()
        for each in await self._router.present("count_subscriptions", topic):
            counts.update(each)
        return counts

    async def list_alerts(self) -> list[AlertInfo]:
        """Return each alert as it stands where it is worst; see `AlertStore.list_alerts`."""
        return merge_alerts(await self._router.present("list_alerts"))

    async def list_start_keys(self, name: str, *, limit: int = 100) -> list[HeldKey]:
        """Return held keys by rule; see `StartRuleStore.list_start_keys`."""
        return merge_held_keys(
            await self._router.present("list_start_keys", name, limit=limit), limit
        )

    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        """Return sums by workflow; see `RetentionStore.preview_sweep`."""
        return merge_shares(await self._router.present("preview_sweep", limit=limit))
