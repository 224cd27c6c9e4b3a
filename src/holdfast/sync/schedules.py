"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from holdfast.client.schedule import ScheduleInfo
from holdfast.client.schedules import Schedules
from holdfast.client.scheduling import CreateScheduleOptions
from holdfast.definitions.schedules import MessageScheduleOptions, ScheduleOptions
from holdfast.definitions.startable import Startable
from holdfast.sync.base import SyncGroup, blocking

In = TypeVar("In")


class SyncSchedules(SyncGroup[Schedules], of=Schedules):
    """The schedules of all apps, by name: `app/name`, or the name alone if only one app has
    it.
    """

    list = blocking(Schedules.list)
    """Return schedules by name, those of an app or all; `after` continues after a name."""
    get = blocking(Schedules.get)
    """Return a schedule. Raises UnknownSchedule."""

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
    def create(self, *args: Any, **options: Any) -> ScheduleInfo:
        """Create a schedule that starts a workflow or a flow: by a cron expression, or `every`."""
        return self._call(self._target.create, *args, **options)

    update = blocking(Schedules.update)
    """Change what is given of a schedule; the rest stays. Its next tick is after now."""
    delete = blocking(Schedules.delete)
    """Delete a schedule and what its ticks did; runs that it started continue."""
    pause = blocking(Schedules.pause)
    """Let a schedule's ticks pass without starting runs. Return False if it was paused before."""
    resume = blocking(Schedules.resume)
    """Let a schedule fire again, from its next tick on. Return False if it was not paused."""
    trigger = blocking(Schedules.trigger)
    """Fire a schedule now, also if it is paused; return what that tick did."""
    backfill = blocking(Schedules.backfill)
    """Fire the ticks of a range of the past, both ends included; a worker does so soon."""
    cancel_backfills = blocking(Schedules.cancel_backfills)
    """End all backfills of a schedule that are under way; runs that they started continue."""
    next_ticks = blocking(Schedules.next_ticks)
    """Return the next moments at which a schedule fires, in UTC, whether or not it is paused."""
    ticks = blocking(Schedules.ticks)
    """Return what the ticks of a schedule did, newest first; `before` continues the list."""
