"""`client.schedules`: start runs by the clock."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar, Unpack, cast, overload
from uuid import UUID, uuid4

from holdfast.client.schedule import ScheduleInfo, Tick, read_bucket, read_schedule
from holdfast.client.scheduling import (
    RUN_OPTIONS,
    AnyScheduleOptions,
    CreateScheduleOptions,
    UpdateScheduleOptions,
    changed_schedule,
    changed_sender,
    changed_target,
    find_schedule,
    full_schedule_name,
    known_schedule,
    new_target,
    read_tick,
    refuse_group,
)
from holdfast.client.session import Group
from holdfast.client.submitting import prepare_start
from holdfast.definitions.options import check_options
from holdfast.definitions.schedules import (
    MessageScheduleOptions,
    ScheduleOptions,
    in_schedule,
    make_schedule,
)
from holdfast.definitions.senders import check_overlap_of, send_target
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.definitions.starts import RunOptions
from holdfast.errors import ConfigurationError, ScheduleChanged, ScheduleExists, UnknownSchedule
from holdfast.store.shared_calls import persist
from holdfast.types import (
    CancelledBackfills,
    NewSchedule,
    Overlap,
    RunTarget,
    ScheduleRecord,
    SendTarget,
    Target,
)
from holdfast.values.ids import read_id
from holdfast.values.moments import Moment
from holdfast.values.numbers import whole_number
from holdfast.values.texts import check_text

In = TypeVar("In")

_MAX_TRIES: Final = 5  # of a change that other clients make at the same time
_MOST_TICKS: Final = 10_000  # of one answer: they are computed here, while nothing else runs


class Schedules(Group):
    """The schedules of all apps, by name: `app/name`, or the name alone if only one app has it.

    Those that an app's code has are written to the database by its workers.
    """

    async def list(
        self, *, app: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[ScheduleInfo]:
        """Return schedules by name, those of an app or all; `after` continues after a name.

        ```python
        for schedule in await client.schedules.list():
            print(schedule.name, schedule.last_tick_at, schedule.next_tick_at)
        ```
        """
        whole_number(limit, "schedules.list", "limit", 0)
        if after is not None:
            check_text("after", after)
        found = await self._session.reads.list_schedules(app=app, after=after, limit=limit)
        return [read_schedule(each) for each in found]

    async def get(self, name: str) -> ScheduleInfo:
        """Return a schedule. Raises UnknownSchedule.

        ```python
        schedule = await client.schedules.get("nightly")
        print(schedule.when.cron, schedule.policy.overlap, schedule.input)
        ```
        """
        return read_schedule(await self._record(name))

    @overload
    async def create(
        self,
        name: str,
        workflow: Startable[None, Any],
        cron: str | None = None,
        *,
        input: None = None,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    async def create(
        self,
        name: str,
        workflow: Startable[In, Any],
        cron: str | None = None,
        *,
        input: In,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    async def create(
        self,
        name: str,
        workflow: str,
        cron: str | None = None,
        *,
        input: object = None,
        **options: Unpack[CreateScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    async def create(
        self,
        name: str,
        *,
        topic: str,
        cron: str | None = None,
        input: object = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo: ...
    @overload
    async def create(
        self,
        name: str,
        *,
        message_queue: str,
        cron: str | None = None,
        input: object = None,
        **options: Unpack[MessageScheduleOptions],
    ) -> ScheduleInfo: ...
    async def create(
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
        await client.schedules.create(
            "weekdays", checkout, "0 9 * * 1-5", timezone="Europe/Berlin", input=Order(7)
        )
        await client.schedules.create("hourly", topic="clock.hour", cron="@hourly")
        ```
        """
        sends = topic is not None or message_queue is not None
        check_options(options, AnyScheduleOptions.__annotations__, f"schedule {name}")
        with in_schedule(name):
            if (workflow is not None and sends) or (workflow is None and not sends):
                raise ConfigurationError("give one of: a workflow, a topic, a message_queue")
            if not sends:
                refuse_group(options)
            wishes = cast("CreateScheduleOptions", options)
            target: Target
            if workflow is None:
                target = send_target(topic, message_queue, input, options)
            else:
                target = await self._target(workflow, input, wishes)
        full = full_schedule_name(name, self._session.app, target)
        new = make_schedule(full, target, cron, wishes)
        created = await self._session.change(lambda: self._session.store.create_schedule(new))
        if not created:
            raise ScheduleExists(full)
        return await self.get(full)

    async def update(
        self, name: str, cron: str | None = None, **options: Unpack[UpdateScheduleOptions]
    ) -> ScheduleInfo:
        """Change what is given of a schedule; the rest stays. Its next tick is after now.

        A cron expression replaces an interval, and the other way round. `options` are those of
        `UpdateScheduleOptions`. If the code of an app has the schedule, the change holds until the
        code changes it. Raises UnknownSchedule, and what `create` raises.

        ```python
        await client.schedules.update("nightly", "30 3 * * *", overlap="buffer_one")
        ```
        """
        check_options(options, UpdateScheduleOptions.__annotations__, f"schedule {name}")
        for _ in range(_MAX_TRIES):
            record = await self._record(name)
            new = await self._changed(record, cron, options)
            store = self._session.store
            done = await self._session.change(
                partial(store.update_schedule, new, revision=record.revision)
            )
            if done:
                return await self.get(record.name)
        raise ScheduleChanged(name)

    async def delete(self, name: str) -> None:
        """Delete a schedule and what its ticks did; runs that it started continue.

        If the code of an app has it, the next worker that starts creates it again. Raises
        UnknownSchedule.

        ```python
        await client.schedules.delete("nightly")
        ```
        """
        full = await self._name(name)
        if not await persist(lambda: self._session.store.delete_schedule(full)):
            raise UnknownSchedule(full)

    async def pause(self, name: str, note: str | None = None) -> bool:
        """Let a schedule's ticks pass without starting runs. Return False if it was paused before.

        Runs that it has started continue; ticks that wait for them are not started. Raises
        UnknownSchedule.

        ```python
        await client.schedules.pause("nightly", note="until the new disks are there")
        ```
        """
        full = await self._name(name)
        note = None if note is None else check_text("note", note)
        pause = partial(self._session.store.pause_schedule, full, note=note)
        return known_schedule(full, await persist(pause))

    async def resume(self, name: str) -> bool:
        """Let a schedule fire again, from its next tick on. Return False if it was not paused.

        Ticks of the pause, and those that were due before it and had not fired, are not made up
        for: `backfill` does that. Raises UnknownSchedule.

        ```python
        await client.schedules.resume("nightly")
        ```
        """
        full = await self._name(name)
        resume = partial(self._session.store.resume_schedule, full)
        return known_schedule(full, await self._session.change(resume))

    async def trigger(
        self, name: str, *, at: Moment | None = None, overlap: Overlap | None = None
    ) -> Tick:
        """Fire a schedule now, also if it is paused; return what that tick did.

        The tick is `at`, by default this moment: a call that is repeated with the same moment is
        one tick, and starts one run. `overlap` is used in place of the schedule's policy. Raises
        UnknownSchedule.

        ```python
        tick = await client.schedules.trigger("nightly", overlap="allow")
        print(tick.outcome, tick.run_id)
        ```
        """
        record = await self._record(name)
        check_overlap_of(record.target, overlap)
        moment = None if at is None else read_tick("at", at, record.when)
        trigger = partial(
            self._session.store.trigger_schedule, record.name, at=moment, overlap=overlap
        )
        return read_bucket(known_schedule(record.name, await self._session.change(trigger)))

    async def backfill(
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
        await client.schedules.backfill("nightly", "2025-11-01", "2025-11-08")
        ```
        """
        record = await self._record(name)
        check_overlap_of(record.target, overlap)
        first, last = read_tick("start", start, record.when), read_tick("end", end, record.when)
        chosen = uuid4() if backfill_id is None else read_id(backfill_id)
        backfill = partial(
            self._session.store.backfill_schedule,
            *(record.name, first, last),
            backfill_id=chosen,
            overlap=overlap,
        )
        return known_schedule(record.name, await self._session.change(backfill))

    async def cancel_backfills(self, name: str) -> CancelledBackfills:
        """End all backfills of a schedule that are under way; runs that they started continue.

        Ticks of theirs that wait for the end of a run are skipped. Raises UnknownSchedule.

        ```python
        print((await client.schedules.cancel_backfills("nightly")).waiting_ticks, "ticks dropped")
        ```
        """
        full = await self._name(name)
        return known_schedule(
            full, await persist(partial(self._session.store.cancel_backfills, full))
        )

    async def next_ticks(
        self, name: str, count: int = 10, *, after: datetime | None = None
    ) -> builtins.list[datetime]:
        """Return the next moments at which a schedule fires, in UTC, whether or not it is paused.

        They are fewer if the schedule ends. Raises UnknownSchedule.

        ```python
        for moment in await client.schedules.next_ticks("nightly", 3):
            print(moment.isoformat())
        ```
        """
        whole_number(count, "schedules.next_ticks", "count", 0, _MOST_TICKS)
        return (await self.get(name)).next_ticks(count, after=after or datetime.now(UTC))

    async def ticks(
        self, name: str, *, before: datetime | None = None, limit: int = 50
    ) -> builtins.list[Tick]:
        """Return what the ticks of a schedule did, newest first; `before` continues the list.

        Raises UnknownSchedule.

        ```python
        for tick in await client.schedules.ticks("nightly"):
            print(tick.at, tick.outcome, tick.run_id or tick.cause)
        ```
        """
        whole_number(limit, "schedules.ticks", "limit", 0)
        record = await self._record(name)
        moment = None if before is None else read_tick("before", before, record.when)
        found = await self._session.reads.list_buckets(record.name, before=moment, limit=limit)
        return [read_bucket(each) for each in found]

    async def _record(self, name: str) -> ScheduleRecord:
        full = await self._name(name)
        return known_schedule(full, await self._session.store.get_schedule(full))

    async def _name(self, name: str) -> str:
        """Return the full name: of the client's app, else of the one app that has it."""
        return await find_schedule(self._session, name)

    async def _target(
        self, workflow: AnyStartable | str, input: object, options: CreateScheduleOptions
    ) -> RunTarget:
        wishes = cast("RunOptions", {k: v for k, v in options.items() if k in RUN_OPTIONS})
        prepared = await prepare_start(self._session, workflow, wishes, RUN_OPTIONS)
        return new_target(prepared, prepared.encode(input))

    async def _changed(
        self, record: ScheduleRecord, cron: str | None, options: UpdateScheduleOptions
    ) -> NewSchedule:
        target = record.target
        with in_schedule(record.name):
            if isinstance(target, SendTarget):
                return changed_schedule(record, changed_sender(target, options), cron, options)
            refuse_group(options)
            if options.keys() & (RUN_OPTIONS | {"input"}):
                wishes = {k: v for k, v in options.items() if k in RUN_OPTIONS}
                wishes.setdefault("version", target.version)
                prepared = await prepare_start(
                    self._session, target.name, cast("RunOptions", wishes), RUN_OPTIONS
                )
                target = changed_target(target, prepared, options)
            return changed_schedule(record, target, cron, options)
