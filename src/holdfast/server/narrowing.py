"""A store for callers that see some apps or workflows only: nothing else exists for them.

What is not named here is refused: a call that is new to the port shows nothing until it says what
a narrow view of it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from msgspec.json import decode
from msgspec.structs import replace

from holdfast.errors import InvalidInput, UnknownWorkflow
from holdfast.retention.reading import read_head
from holdfast.server.narrow_runs import MOST, NarrowRuns, Sees
from holdfast.server.problems import Problem
from holdfast.store.port import Store
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    AlertInfo,
    BuildInfo,
    CatalogueEntry,
    Decided,
    Delivered,
    Delivery,
    FlowShape,
    Gauges,
    HeldKey,
    MinuteCounts,
    NewRun,
    NewSchedule,
    NewSignal,
    Notice,
    Pause,
    Restoring,
    RetryPlan,
    RulesOfStart,
    RunTarget,
    ScheduleRecord,
    Scope,
    StartedRun,
    WorkerInfo,
)
from holdfast.types.work import SILENT_SECONDS
from holdfast.values.ids import keyed_run_id, retry_run_id
from holdfast.values.names import full_name, split_name

PASSED: Final = frozenset(
    {"await_streams", "check_reads", "close", "forget_waits", "listen", "notify", "now", "open"}
)
"""Calls that say nothing of any run."""

EMPTY: Final[Mapping[str, object]] = {
    "list_deliveries": (),
    "list_limits": (),
    "list_queues": (),
    "list_subscriptions": (),
    "queue_metrics": (),
    "read_gauges": Gauges(
        in_flight={}, due={}, oldest_due_seconds={}, approvals_open=0, runs_stuck=0
    ),
    "read_samples": (),
}
"""Calls about what all apps share, and what they answer."""

ABSENT: Final[Mapping[str, object]] = {
    "decide_approval": Decided("missing", None, []),
    "explain_limits": (),
    "failing_puts": (),
    "find_reply": None,
    "find_signal": None,
    "fork_flow": ("missing", list[Notice]()),
    "fork_run": ("missing", list[Notice]()),
    "list_activities": (),
    "list_streams": (),
    "open_step_tasks": (),
    "read_log": (),
    "retry_flow": ("missing", list[Notice]()),
    "retry_plan": RetryPlan(),
    "set_attributes": None,
    "set_tags": None,
    "shape_of_run": None,
    "start_wait": None,
}
"""Calls about one run, which comes first, and what they answer of one that does not exist."""

OF_RUNS: Final = frozenset({"flow_steps", "get_values", "newest_runs"})
"""Calls that answer with a mapping of the runs that come first."""

CHANGES: Final = frozenset(
    {"cancel_runs", "pause_runs", "reschedule_runs", "resume_runs", "terminate_runs"}
)
"""Calls that change the runs that come first, and say what became of each."""

NO_SCHEDULE: Final[Mapping[str, object]] = {
    "backfill_schedule": (None, list[Notice]()),
    "cancel_backfills": None,
    "delete_schedule": False,
    "list_buckets": (),
    "pause_schedule": None,
    "resume_schedule": (None, list[Notice]()),
    "trigger_schedule": (None, list[Notice]()),
}
"""Calls about one schedule, whose name comes first, and what they answer if there is none."""


class NarrowStore(NarrowRuns):
    """Passes on what is about runs that may be seen, and answers as if there were no others."""

    @property
    def schema(self) -> str | None:
        return self._store.schema

    @cached_property
    def reads(self) -> Store:
        return narrow(self._store.reads, self._sees, self._named)

    async def fresh_reads(self) -> Store:
        return narrow(await self._store.fresh_reads(), self._sees, self._named)

    # Changes

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`. Raises UnknownWorkflow."""
        self._check(runs)
        return await self._store.start_runs(runs)

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs of flows; see `FlowStore.start_flows`. Raises UnknownWorkflow."""
        self._check(runs)
        return await self._store.start_flows(runs)

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        own = await self._own(each.run_id for each in signals)
        return await self._change(
            self._store.signal_runs, signals, [each.run_id in own for each in signals]
        )

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """End attempts; see `ActivityStore.end_activities`. All are lost if one is not seen."""
        if len(await self._own(each.run_id for each in ends)) < len({each.run_id for each in ends}):
            return ActivitiesEnded(await self._store.now(), ["lost" for _ in ends], [])
        return await self._store.end_activities(worker_id, ends)

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Pause or resume a workflow; see `ControlStore.set_pause`. Queues are not seen."""
        if scope != "workflow" or not self._sees(name):
            raise _not_found()
        return await self._store.set_pause(scope, name, paused=paused, reason=reason)

    async def restore_run(self, lines: Sequence[str], *, retention_seconds: float) -> Restoring:
        if not self._sees(read_head(lines[0]).name):
            raise _not_found()
        return await self._store.restore_run(lines, retention_seconds=retention_seconds)

    # What apps have

    async def apps_with(self, workflow: str) -> list[str]:
        found = await self._store.apps_with(workflow)
        return [app for app in found if self._sees(full_name(app, workflow))]

    async def read_catalogue(self, names: Sequence[str]) -> dict[str, CatalogueEntry]:
        return await self._store.read_catalogue([each for each in names if self._sees(each)])

    async def get_flow(self, name: str, version: int | None = None) -> FlowShape | None:
        found = await self._store.get_flow(name, version)
        return found if found is not None and self._sees(found.name) else None

    async def list_alerts(self) -> list[AlertInfo]:
        """Return alerts of apps that are seen whole, and those about workflows that are seen."""
        found = await self._store.list_alerts()
        return [each for each in found if each.app in self._named or self._sees(each.rule.subject)]

    async def list_builds(self, app: str | None = None) -> list[BuildInfo]:
        """Return the builds of apps that are seen whole."""
        return [each for each in await self._store.list_builds(app) if each.app in self._named]

    async def list_start_keys(self, name: str, *, limit: int = 100) -> list[HeldKey]:
        return await self._store.list_start_keys(name, limit=limit) if self._sees(name) else []

    async def read_stats(
        self,
        *,
        since: int,
        part_seconds: int = 60,
        names: Sequence[str] | None = None,
        limit: int = 100_000,
    ) -> list[MinuteCounts]:
        own = [
            each for each in (await self._names() if names is None else names) if self._sees(each)
        ]
        if not own:
            return []
        return await self._store.read_stats(
            since=since, part_seconds=part_seconds, names=own, limit=limit
        )

    # Who works, and what waits

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers of what is seen, with no other handlers and no consumers."""
        found = [
            replace(each, handlers=tuple(filter(self._serves, each.handlers)), consumes=None)
            for each in await self._store.list_workers()
        ]
        return [each for each in found if each.handlers]

    async def unserved(
        self, *, silent_seconds: float | None = SILENT_SECONDS
    ) -> list[tuple[str, str, int]]:
        found = await self._store.unserved(silent_seconds=silent_seconds)
        return [each for each in found if self._serves(each[1])]

    async def list_pauses(self) -> list[Pause]:
        return [
            each
            for each in await self._store.list_pauses()
            if each.scope == "workflow" and self._sees(each.name)
        ]

    # Schedules

    async def get_schedule(self, name: str) -> ScheduleRecord | None:
        found = await self._store.get_schedule(name)
        return found if found is not None and self._starts(found) else None

    async def list_schedules(
        self,
        *,
        app: str | None = None,
        after: str | None = None,
        limit: int = 100,
        short_name: str | None = None,
        doubtful: bool = False,
    ) -> list[ScheduleRecord]:
        found: list[ScheduleRecord] = []
        while page := await self._store.list_schedules(
            app=app, after=after, limit=MOST, short_name=short_name, doubtful=doubtful
        ):
            found += filter(self._starts, page)
            if len(found) >= limit or len(page) < MOST:
                break
            after = page[-1].name
        return found[:limit]

    async def create_schedule(self, new: NewSchedule) -> tuple[bool, list[Notice]]:
        """Create a schedule; see `ScheduleStore.create_schedule`. Raises UnknownWorkflow."""
        self._check_schedule(new)
        return await self._store.create_schedule(new)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Pass a call on as the tables say. Raises Problem 404 for one that none names."""
            if name in PASSED:
                return getattr(self._store, name)
            if name in EMPTY:
                return self._answering(EMPTY[name])
            if name in ABSENT or name in NO_SCHEDULE or name in OF_RUNS or name in CHANGES:
                return self._guarded(name)
            raise _not_found()

    @staticmethod
    def _answering(answer: object) -> Callable[..., Awaitable[object]]:
        async def call(*_: object, **__: object) -> object:
            return list[object]() if answer == () else answer

        return call

    def _guarded(self, name: str) -> Callable[..., Awaitable[object]]:
        """Return a call that is made for what is seen only."""
        method = getattr(self._store, name)

        async def call(first: Any, *rest: object, **options: object) -> object:
            if name in NO_SCHEDULE:
                if await self.get_schedule(first) is None:
                    return await self._answering(NO_SCHEDULE[name])()
                return await method(first, *rest, **options)
            if name in ABSENT:
                if not getattr(first, "retry", False):
                    _check_drawn(getattr(first, "new_run_id", None))
                if not await self._own([getattr(first, "run_id", first)]):
                    return await self._answering(ABSENT[name])()
                return await method(first, *rest, **options)
            own = await self._own(first)
            if name in OF_RUNS:
                return await method([each for each in first if each in own], *rest, **options)
            return await self._change(method, first, [each in own for each in first], **options)

        return call

    async def _change(
        self,
        method: Callable[..., Awaitable[Delivered]],
        targets: Sequence[Any],
        seen: Sequence[bool],
        **options: object,
    ) -> Delivered:
        """Change what is seen; the rest is missing."""
        asked = [each for each, is_seen in zip(targets, seen, strict=True) if is_seen]
        changed = await method(asked, **options) if asked else Delivered([], [])
        outcomes = iter(changed.outcomes)
        merged: list[Delivery] = [next(outcomes) if is_seen else "missing" for is_seen in seen]
        return Delivered(merged, changed.notices)

    def _serves(self, handler: str) -> bool:
        return self._sees(handler.rpartition("@")[0])

    def _starts(self, schedule: ScheduleRecord | NewSchedule) -> bool:
        return isinstance(schedule.target, RunTarget) and self._sees(schedule.target.name)

    def _check(self, runs: Sequence[NewRun]) -> None:
        for each in runs:
            if not self._sees(each.name):
                raise UnknownWorkflow(f"there is no workflow {each.name!r}")
            if each.key is None or each.run_id not in (
                keyed_run_id(each.name, each.key),
                _next_of_key(each),
            ):
                _check_drawn(each.run_id)

    def _check_schedule(self, new: NewSchedule) -> None:
        if not self._starts(new):
            raise UnknownWorkflow(f"there is no workflow {new.target.name!r}")
        apps = sorted({each.partition("/")[0] for each in self._named})
        if split_name(new.name)[0] not in apps:
            begin = " or ".join(f"{each}/" for each in apps)
            raise InvalidInput(
                f"{new.name!r} cannot be a schedule of this caller: {begin} begins it"
            )


def narrow(store: Store, sees: Sees, named: Sequence[str]) -> Store:
    """Return a store in which only some apps and workflows exist."""
    return cast("Store", NarrowStore(store, sees, named))


def _check_drawn(run_id: UUID | None) -> None:
    """Refuse an id that can be that of another workflow's key: a start would say if it exists."""
    if run_id is not None and run_id.version != 7:
        raise InvalidInput(f"{run_id} cannot be the id of a new run: draw a UUID of version 7")


def _next_of_key(run: NewRun) -> UUID | None:
    """Return the id of a run that takes the key of one that has ended; None if it does not."""
    after = None if run.rules is None else decode(run.rules, type=RulesOfStart).after
    return None if after is None else retry_run_id(after)


def _not_found() -> Problem:
    return Problem(404, "not-found", "there is nothing here that the caller may see")
