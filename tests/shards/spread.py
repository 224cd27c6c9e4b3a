"""A store over shards that workers can use, too: the suites of one database run over several.

A worker of the engine has one shard. This store lets a worker of the tests have all of them: each
of its calls reaches all shards, or that of its run. What a shard has for others is sent at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, cast
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import VirtualClock
from holdfast.store.port import Store
from holdfast.store.shards import Pass
from holdfast.store.shards.router import in_order, merged, run_of
from holdfast.store.shards.store import ShardedStore
from holdfast.types import (
    ClaimedTask,
    Claims,
    Committed,
    Delivered,
    Heartbeat,
    Lease,
    Notice,
    Release,
    ShardState,
    StepTaskEnd,
    StepTasksEnded,
    TurnCommit,
    WorkerInfo,
)

AT_HOME = {
    "claim_deliveries", "declare_subscriptions", "due_backfills", "due_schedules",
    "end_deliveries", "ensure_schedules", "fire_backfill", "fire_schedules",
    "release_schedules", "return_expired", "sweep_queues",
}  # fmt: skip
EVERYWHERE = {
    "begin_deletions", "begin_sweep", "declare_alerts",
    "declare_limits", "declare_start_rules", "due_payloads", "end_deletions",
    "expire_start_keys", "forget_payloads", "kept_declarations",
    "look_at_alerts", "merge_samples", "merge_stats", "next_due", "reap_workers",
    "remove_worker", "results_since", "sample_load", "sign_on_app", "stray_leases",
    "sweep_buckets", "sweep_limits",
    "sweep_runs", "sweep_topics", "take_counts", "take_ends",
}  # fmt: skip
SUMS = {
    "expire_start_keys", "merge_samples", "merge_stats", "sweep_buckets", "sweep_limits",
    "sweep_topics",
}  # fmt: skip
LOOKS = {"free_singletons", "time_out_activities", "time_out_runs"}  # (number[, next], notices)
OF_RUN = {"find_step", "sealed_step"}


class SpreadStore(ShardedStore):
    """Stores as the shards of one engine: alike, and on one clock."""

    def __init__(self, stores: Sequence[Any]) -> None:
        self.stores = stores
        super().__init__(stores)

    async def open(self) -> None:
        for number, each in enumerate(self.stores):
            await each.open()
            state = ShardState("engine", number, (len(self.stores),))
            assert await each.set_shard_state(state) != "other"
        await super().open()

    # What tests do with memory stores

    @property
    def _clock(self) -> Any:
        return self.stores[0]._clock  # pyright: ignore[reportPrivateUsage]

    def time(self) -> int:
        now: int = self.stores[0].time()
        return now

    def advance(self, seconds: float) -> None:
        self.advance_to(self.time() + int(seconds * 1_000_000))

    def advance_to(self, at: int) -> None:
        for each in self.stores:
            each.advance_to(at)

    def next_due_at(self, *, schedules: bool = True) -> int | None:
        found = [each.next_due_at(schedules=schedules) for each in self.stores]
        return min((at for at in found if at is not None), default=None)

    # What workers do

    async def claim_tasks(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str], limit: int, **o: Any
    ) -> Claims:
        found: list[Claims] = []
        tasks: list[ClaimedTask] = []
        for each in self.stores:
            claims = await each.claim_tasks(worker_id, queues, handlers, limit - len(tasks), **o)
            found.append(claims)
            tasks += claims.tasks
        return Claims(
            found[0].now,
            tasks,
            min((x.next_due_at for x in found if x.next_due_at is not None), default=None),
            [notice for each in found for notice in each.notices],
            any(each.limited for each in found),
            any(each.suspects for each in found),
        )

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        found = await self._split("commit", turns, lambda part: (worker_id, token, part))
        answers: list[Committed] = [answer for _, answer in found]
        notices = [notice for each in answers for notice in each.notices]
        return Committed(
            await self.now(),
            merged([each.refused for each in answers]),
            notices + await self._forward(),
            merged([each.ahead for each in answers]),
            [x for each in answers for x in each.undelivered],
        )

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        found = await self._split("release_tasks", releases, lambda part: (worker_id, part))
        return [notice for _, each in found for notice in each]

    async def end_step_tasks(
        self, worker_id: str, ends: Sequence[StepTaskEnd], taker: Any = None, *, patience: int = 1
    ) -> StepTasksEnded:
        parts = await self._router.parts(ends, run_of)
        found: list[StepTasksEnded] = []
        for number, which in parts.items():
            part = [ends[at] for at in which]
            found.append(await self.stores[number].end_step_tasks(worker_id, part, taker))
        return StepTasksEnded(
            await self.now(),
            in_order(parts, [each.outcomes for each in found]),
            [notice for each in found for notice in each.notices],
            [task for each in found for task in each.tasks],
        )

    async def run_as_flow(self, worker_id: str, run_id: UUID, lease_no: int) -> list[Notice] | None:
        number = (await self._router.apart([run_id])).popitem()[0]
        return await self.stores[number].run_as_flow(worker_id, run_id, lease_no)

    async def heartbeat(
        self, info: WorkerInfo, leases: Sequence[Lease], *, stats: Any = (), **options: Any
    ) -> Heartbeat:
        parts = await self._router.parts(leases, run_of)
        found: list[Heartbeat] = []
        for number, each in enumerate(self.stores):
            part = [leases[at] for at in parts.get(number, ())]
            options["stats"] = stats if number == 0 else ()
            found.append(await each.heartbeat(info, part, **options))
        return Heartbeat(
            found[0].now,
            [x for each in found for x in each.lost],
            [x for each in found for x in each.unread],
            [x for each in found for x in each.cancelled],
            tuple(sorted({x for each in found for x in each.duties})),
        )

    async def lease_due_runs(self, **options: Any) -> Any:
        found = [await each.lease_due_runs(**options) for each in self.stores]
        runs = [run for each in found for run in each.runs]
        return replace(found[0], runs=runs, has_more=any(each.has_more for each in found))

    async def export_runs(self, afters: Any) -> Any:
        found = await self._split("export_runs", [*afters], lambda p: ({x: afters[x] for x in p},))
        lines = merged([each.lines for _, each in found])
        unfinished = merged([each.unfinished for _, each in found])
        labels = merged([each.labels for _, each in found])
        changes = {"lines": lines, "unfinished": unfinished, "labels": labels}
        return replace(found[0][1], **changes) if found else None

    async def delete_archived(self, runs: Sequence[Any], **options: Any) -> Any:
        found = await self._split("delete_archived", runs, lambda part: (part,))
        return sum(each[0] for _, each in found), [x for _, each in found for x in each[1]]

    async def write_streams(self, worker_id: str, chunks: Sequence[Any], **options: Any) -> Any:
        parts = await self._router.parts(chunks, run_of)
        found: list[Any] = []
        for number, which in parts.items():
            part = [chunks[at] for at in which]
            found.append(await self.stores[number].write_streams(worker_id, part, **options))
        offsets = in_order(parts, [each.offsets for each in found])
        notices = [notice for each in found for notice in each.notices]
        return replace(found[0], offsets=offsets, notices=notices)

    async def write_logs(self, writer: int, chunks: Sequence[Any], **options: Any) -> Any:
        parts = await self._router.parts(chunks, run_of)
        found: list[Any] = []
        for number, which in parts.items():
            part = [chunks[at] for at in which]
            found.append(await self.stores[number].write_logs(writer, part, **options))
        return found[0]

    async def terminate_runs(self, run_ids: Sequence[UUID], **options: Any) -> Delivered:
        answer: Delivered = await self._router.change("terminate_runs", run_ids, **options)
        return Delivered(answer.outcomes, [*answer.notices, *await self._forward()])

    async def publish(self, event: Any) -> Any:
        published, notices = await self.stores[0].publish(event)
        return published, notices + await self._forward()

    async def list_workers(self) -> Any:
        found = [replace(each, shard=None) for each in await super().list_workers()]  # it has all
        return [*{each.worker_id: each for each in reversed(found)}.values()][::-1]

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return plainly(found) if iscoroutinefunction(found) and name[0] != "_" else found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in AT_HOME:
            return plainly(getattr(self.stores[0], name))
        if name in OF_RUN:
            return lambda *args, **options: self._router.of_run(name, *args, **options)
        if name in EVERYWHERE | LOOKS:
            return plainly(lambda *args, **options: self._all(name, *args, **options))
        return plainly(self._router.find(name))

    async def _all(self, name: str, *args: Any, **options: Any) -> Any:
        found = [await getattr(each, name)(*args, **options) for each in self.stores]
        if name in LOOKS:
            middle = [x for each in found for x in each[1:-1] if x is not None]
            notices = [notice for each in found for notice in each[-1]] + await self._forward()
            between = (min(middle, default=None),) if len(found[0]) == 3 else ()
            return (sum(each[0] for each in found), *between, notices)
        if name == "next_due":
            return found[0][0], min((x for _, x in found if x is not None), default=None)
        if name in ("due_payloads", "take_ends", "stray_leases", "take_counts"):
            return [x for each in found for x in each]
        if name in SUMS:
            return sum(found)
        if name == "sweep_runs":
            return replace(
                found[0],
                deleted=sum(each.deleted for each in found),
                kept=sum(each.kept for each in found),
                has_more=any(each.has_more for each in found),
            )
        if name == "look_at_alerts":
            await self._forward()
        if name in ("reap_workers", "look_at_alerts"):
            first = dict.fromkeys(x for each in found for x in each[0])
            return [*first], [x for each in found for x in each[1]]
        return found[0]

    async def _split(
        self, name: str, items: Sequence[Any], arguments: Callable[[list[Any]], tuple[Any, ...]]
    ) -> list[tuple[int, Any]]:
        parts = await self._router.parts(items, run_of)
        return [
            (
                number,
                await getattr(self.stores[number], name)(*arguments([items[at] for at in which])),
            )
            for number, which in parts.items()
        ]

    async def _forward(self) -> list[Notice]:
        """Send what the shards have for each other; nothing that is due stays for later."""
        for each in self.stores:
            while page := await each.take_forwards("tests"):
                done = await Pass(self.members).send(page)
                await each.end_forwards(done)
                if len(done) < len(page):
                    break
        return []


def plainly(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let the wake-ups of a call be those of one database."""

    async def made(*args: Any, **options: Any) -> Any:
        return plain(await call(*args, **options))

    return made


def plain(answer: Any) -> Any:
    """Return an answer whose wake-ups name no shard, without those of who sends between shards."""
    if isinstance(answer, Notice):
        return Notice(answer.topic, answer.payload)
    if type(answer) in (list, tuple):
        return type(answer)(plain(x) for x in answer if getattr(x, "topic", None) != "forwards")
    if isinstance(answer, Struct) and getattr(answer, "notices", None):
        return replace(answer, notices=plain(answer.notices))
    return answer


def spread(count: int) -> Store:
    """Return an engine of so many memory stores as one store, not open yet."""
    clock = VirtualClock()
    return spread_over([MemoryStore(clock) for _ in range(count)])


def spread_over(stores: Sequence[Store]) -> Store:
    """Return an engine of stores as one store, not open yet."""
    return cast("Store", SpreadStore(stores))
