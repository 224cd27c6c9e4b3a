"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.client.schedule import ScheduleInfo, Tick
from holdfast.client.schedules import Schedules
from holdfast.client.scheduling import CreateScheduleOptions, UpdateScheduleOptions
from holdfast.definitions.schedules import MessageScheduleOptions, ScheduleOptions
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.sync.base import SyncGroup
from holdfast.types import CancelledBackfills, Overlap
from holdfast.values.moments import Moment

In = TypeVar("In")


class SyncSchedules(SyncGroup[Schedules], of=Schedules):
    """The schedules of all apps, by name: `app/name`, or the name alone if only one app has
    it.
    """

    def list(
        self, *, app: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[ScheduleInfo]:
        """Return schedules by name, those of an app or all; `after` continues after a name."""
        return self._call(self._target.list, app=app, after=after, limit=limit)

    def get(self, name: str) -> ScheduleInfo:
        """Return a schedule. Raises UnknownSchedule."""
        return self._call(self._target.get, name)

    @overload
    def create(
        self,
        name: str,
        workflow: Startable[None, Any],
        cron: str | None = None,
        *,
        input: None = None,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    def create(
        self,
        name: str,
        workflow: Startable[In, Any],
        cron: str | None = None,
        *,
        input: In,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    def create(
        self,
        name: str,
        workflow: str,
        cron: str | None = None,
        *,
        input: object = None,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    def create(
        self,
        name: str,
        *,
        topic: str,
        cron: str | None = None,
        input: object = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    def create(
        self,
        name: str,
        *,
        message_queue: str,
        cron: str | None = None,
        input: object = None,
        **options: Unpack[MessageScheduleOptions],
    ) -> ScheduleInfo: ...
    def create(
        self,
        name: str,
        workflow: AnyStartable | str | None = None,
        cron: str | None = None,
        *,
        topic: str | None = None,
        message_queue: str | None = None,
        input: object = None,
        **options: Any,
    ) -> ScheduleInfo:
        """Create a schedule that starts a workflow or a flow: by a cron expression, or `every`."""
        return self._call(
            self._target.create,
            name,
            workflow,
            cron,
            topic=topic,
            message_queue=message_queue,
            input=input,
            **options,
        )

    def update(
        self, name: str, cron: str | None = None, **options: Unpack[UpdateScheduleOptions]
    ) -> ScheduleInfo:
        """Change what is given of a schedule; the rest stays. Its next tick is after now."""
        return self._call(self._target.update, name, cron, **options)

    def delete(self, name: str) -> None:
        """Delete a schedule and what its ticks did; runs that it started continue."""
        return self._call(self._target.delete, name)

    def pause(self, name: str, note: str | None = None) -> bool:
        """Let a schedule's ticks pass without starting runs. Return False if it was paused
        before.
        """
        return self._call(self._target.pause, name, note)

    def resume(self, name: str) -> bool:
        """Let a schedule fire again, from its next tick on. Return False if it was not paused."""
        return self._call(self._target.resume, name)

    def trigger(
        self, name: str, *, at: Moment | None = None, overlap: Overlap | None = None
    ) -> Tick:
        """Fire a schedule now, also if it is paused; return what that tick did."""
        return self._call(self._target.trigger, name, at=at, overlap=overlap)

    def backfill(
        self,
        name: str,
        start: Moment,
        end: Moment,
        *,
        overlap: Overlap | None = None,
        backfill_id: UUID | None = None,
    ) -> bool:
        """Fire the ticks of a range of the past, both ends included; a worker does so soon."""
        return self._call(
            self._target.backfill, name, start, end, overlap=overlap, backfill_id=backfill_id
        )

    def cancel_backfills(self, name: str) -> CancelledBackfills:
        """End all backfills of a schedule that are under way; runs that they started continue."""
        return self._call(self._target.cancel_backfills, name)

    def next_ticks(
        self, name: str, count: int = 10, *, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next moments at which a schedule fires, in UTC, whether or not it is
        paused.
        """
        return self._call(self._target.next_ticks, name, count, after=after)

    def ticks(
        self, name: str, *, before: datetime | None = None, limit: int = 50
    ) -> builtins.list[Tick]:
        """Return what the ticks of a schedule did, newest first; `before` continues the list."""
        return self._call(self._target.ticks, name, before=before, limit=limit)
