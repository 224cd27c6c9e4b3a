"""Generated from the asynchronous module by scripts/generate_sync.py."""

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
from holdfast.schedules import Moment
from holdfast.sync.base import SyncGroup
from holdfast.types import CancelledBackfills, Overlap

In = TypeVar("In")


class SyncSchedules(SyncGroup[Schedules]):
    """The schedules of all apps, by name: `app/name`, or the name alone if only one app has it.

    Those that an app's code has are written to the database by its workers.
    """

    def list(
        self, *, app: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[ScheduleInfo]:
        """Return schedules by name, those of an app or all; `after` continues after a name.

        ```python
        for schedule in client.schedules.list():
            print(schedule.name, schedule.last_tick_at, schedule.next_tick_at)
        ```
        """
        return self._call(self._target.list, app=app, after=after, limit=limit)

    def get(self, name: str) -> ScheduleInfo:
        """Return a schedule. Raises UnknownSchedule.

        ```python
        schedule = client.schedules.get("nightly")
        print(schedule.when.cron, schedule.policy.overlap, schedule.input)
        ```
        """
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
        """Create a schedule that starts a workflow or a flow: by a cron expression, or `every`.

        With a `topic`, each tick publishes an event there; with a `message_queue`, it sends a
        message. `input` is the payload then, stored as it is. A name without an app is that of the
        client's app, else of the workflow's. `options` are those of `CreateScheduleOptions`, of a
        message those of `MessageScheduleOptions`; those of the runs are by default the workflow's.
        Its first tick is after now. Raises ScheduleExists, ConfigurationError for an expression or
        an option that cannot work, InvalidInput, UnknownQueue, and what `start` raises for a
        workflow.

        ```python
        client.schedules.create(
            "weekdays", checkout, "0 9 * * 1-5", timezone="Europe/Berlin", input=Order(7)
        )
        client.schedules.create("hourly", topic="clock.hour", cron="@hourly")
        ```
        """
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
        """Change what is given of a schedule; the rest stays. Its next tick is after now.

        A cron expression replaces an interval, and the other way round. `options` are those of
        `UpdateScheduleOptions`. If the code of an app has the schedule, the change holds until the
        code changes it. Raises UnknownSchedule, and what `create` raises.

        ```python
        client.schedules.update("nightly", "30 3 * * *", overlap="buffer_one")
        ```
        """
        return self._call(self._target.update, name, cron, **options)

    def delete(self, name: str) -> None:
        """Delete a schedule and what its ticks did; runs that it started continue.

        If the code of an app has it, the next worker that starts creates it again. Raises
        UnknownSchedule.

        ```python
        client.schedules.delete("nightly")
        ```
        """
        return self._call(self._target.delete, name)

    def pause(self, name: str, note: str | None = None) -> bool:
        """Let a schedule's ticks pass without starting runs. Return False if it was paused before.

        Runs that it has started continue; ticks that wait for them are not started. Raises
        UnknownSchedule.

        ```python
        client.schedules.pause("nightly", note="until the new disks are there")
        ```
        """
        return self._call(self._target.pause, name, note)

    def resume(self, name: str) -> bool:
        """Let a schedule fire again, from its next tick on. Return False if it was not paused.

        Ticks of the pause are not made up for: `backfill` does that. Raises UnknownSchedule.

        ```python
        client.schedules.resume("nightly")
        ```
        """
        return self._call(self._target.resume, name)

    def trigger(
        self, name: str, *, at: Moment | None = None, overlap: Overlap | None = None
    ) -> Tick:
        """Fire a schedule now, also if it is paused; return what that tick did.

        The tick is `at`, by default this moment: a call that is repeated with the same moment is
        one tick, and starts one run. `overlap` is used in place of the schedule's policy. Raises
        UnknownSchedule.

        ```python
        tick = client.schedules.trigger("nightly", overlap="allow")
        print(tick.outcome, tick.run_id)
        ```
        """
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
        """Fire the ticks of a range of the past, both ends included; a worker does so soon.

        Ticks that have started a run do not start another one. By default each run waits for the
        end of the one before it; with `overlap="allow"` they run at once. Returns False if a
        backfill with this `backfill_id` was asked for before. Raises UnknownSchedule, and
        InvalidInput for a range that ends in the future.

        ```python
        client.schedules.backfill("nightly", "2025-11-01", "2025-11-08")
        ```
        """
        return self._call(
            self._target.backfill, name, start, end, overlap=overlap, backfill_id=backfill_id
        )

    def cancel_backfills(self, name: str) -> CancelledBackfills:
        """End all backfills of a schedule that are under way; runs that they started continue.

        Ticks of theirs that wait for the end of a run are skipped. Raises UnknownSchedule.

        ```python
        print((client.schedules.cancel_backfills("nightly")).waiting_ticks, "ticks dropped")
        ```
        """
        return self._call(self._target.cancel_backfills, name)

    def next_ticks(
        self, name: str, count: int = 10, *, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next moments at which a schedule fires, in UTC, whether or not it is paused.

        They are fewer if the schedule ends. Raises UnknownSchedule.

        ```python
        for moment in client.schedules.next_ticks("nightly", 3):
            print(moment.isoformat())
        ```
        """
        return self._call(self._target.next_ticks, name, count, after=after)

    def ticks(
        self, name: str, *, before: datetime | None = None, limit: int = 50
    ) -> builtins.list[Tick]:
        """Return what the ticks of a schedule did, newest first; `before` continues the list.

        Raises UnknownSchedule.

        ```python
        for tick in client.schedules.ticks("nightly"):
            print(tick.at, tick.outcome, tick.run_id or tick.cause)
        ```
        """
        return self._call(self._target.ticks, name, before=before, limit=limit)
