"""The part of the port for schedules: they are kept, computed by schedulers, and fired.

The database does not know cron and time zones. It says which schedules have to be looked at
(`due_schedules`), a scheduler computes their ticks, and the database decides what becomes of these
(`fire_schedules`): a schedule is moved on from the tick that the scheduler expects it at, so of
several schedulers one moves it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import (
    BackfillFiring,
    Bucket,
    CancelledBackfills,
    DueBackfill,
    DueSchedule,
    EnsuredSchedules,
    Fired,
    Firing,
    NewSchedule,
    NextLook,
    Notice,
    Overlap,
    ScheduleRecord,
)

_PAGE: Final = 1_000


class ScheduleStore(Protocol):
    """Keeps schedules, and starts what their ticks start."""

    @readable
    async def create_schedule(self, new: NewSchedule) -> tuple[bool, list[Notice]]:
        """Create a schedule whose first tick is after now; False if the name is taken.

        Refuses values that are not allowed (InvalidInput). Expressions and time zones are not among
        them: the first scheduler that computes it records what is wrong as its `error`.
        """
        ...

    @readable
    async def update_schedule(
        self, new: NewSchedule, *, revision: int | None = None
    ) -> tuple[bool, list[Notice]]:
        """Replace the definition of a schedule; its next tick is after now. Not its pause.

        With a `revision`, only if it still is the schedule's. False if it is not, or if there is
        no such schedule. Refuses what `create_schedule` refuses. Ticks that are buffered, and
        runs that have not ended, stay.
        """
        ...

    @readable
    async def delete_schedule(self, name: str) -> bool:
        """Delete a schedule, its buckets and its backfills; False if there is none.

        Runs that it has started continue; ticks that were buffered are gone.
        """
        ...

    @readable
    async def pause_schedule(self, name: str, *, note: str | None = None) -> bool | None:
        """Pause a schedule: its ticks do not fire, and buffered ones do not start.

        False if it was paused before: then the note is changed if there is one. None: no such
        schedule.
        """
        ...

    @readable
    async def resume_schedule(self, name: str) -> tuple[bool | None, list[Notice]]:
        """Resume a schedule: its next tick is after now. Ticks of the pause are not made up for.

        Nor are those that were due before it. False if it was not paused; None: no such schedule.
        """
        ...

    @readable
    async def trigger_schedule(
        self, name: str, *, at: int | None = None, overlap: Overlap | None = None
    ) -> tuple[Bucket | None, list[Notice]]:
        """Fire a tick now, also if the schedule is paused; return its bucket.

        `at` is the tick's moment, by default now: repeated with the same moment it is one tick,
        and starts one run. `overlap` replaces the policy of the schedule. None: no such schedule.
        """
        ...

    @readable
    async def backfill_schedule(
        self, name: str, first: int, last: int, *, backfill_id: UUID, overlap: Overlap | None = None
    ) -> tuple[bool | None, list[Notice]]:
        """Ask for the ticks from `first` to `last`, both included: a scheduler fires them soon.

        Ticks that have started a run do not start another; those that were skipped do. By
        default each waits for the run before it (`buffer_all`), or not, if the schedule's policy
        is `allow`. False: this `backfill_id` was given before. None: no such schedule. Refuses
        ranges that end in the future or before they begin (InvalidInput).
        """
        ...

    @readable
    async def cancel_backfills(self, name: str) -> CancelledBackfills | None:
        """End all backfills of a schedule; ticks of theirs that wait are skipped.

        Runs that they have started continue. None: no such schedule.
        """
        ...

    @readable
    async def list_schedules(
        self,
        *,
        app: str | None = None,
        after: str | None = None,
        limit: int = 100,
        short_name: str | None = None,
        doubtful: bool = False,
    ) -> list[ScheduleRecord]:
        """Return schedules by name, those of an app or all; `after` continues after a name.

        `short_name`: those with this name in any app. `doubtful`: those that may not fire as they
        should, because of an error, or because they are late, or ahead of the clock.
        """
        ...

    @readable
    async def get_schedule(self, name: str) -> ScheduleRecord | None:
        """Return a schedule; None if there is none."""
        ...

    @readable
    async def list_buckets(
        self, name: str, *, before: int | None = None, limit: int = 50
    ) -> list[Bucket]:
        """Return what the ticks of a schedule did, newest first; of ticks before a moment."""
        ...

    @readable
    async def ensure_schedules(
        self, app: str, digest: str, schedules: Sequence[NewSchedule], *, restore: bool = False
    ) -> tuple[EnsuredSchedules, list[Notice]]:
        """Make the schedules of an app's code those of the database, unless newer code runs.

        `digest` stands for all of `schedules` together. Of the digests that workers have given in
        the last 90 seconds, the one that was given first most recently is the newest code: so call
        this at the start of a worker, and at least every 30 seconds after it. When no worker gives
        the newest any more, the next newest takes its place.

        Schedules are added; those whose definition differs from what the code had before are
        changed, and what users have changed meanwhile stays if the code has not. Schedules that the
        code no longer has are paused by `code`, and resumed when it has them again. With `restore`,
        those that users have deleted are created again. Those that were not created by code are
        left alone: a name that one of them has is refused (InvalidInput).
        """
        ...

    @readable
    async def due_schedules(
        self, *, limit: int = 1000, ahead_seconds: float = 0.0, lease_seconds: float = 5.0
    ) -> list[DueSchedule]:
        """Return schedules that come due within `ahead_seconds`, or that have to be computed.

        They are left to the caller: schedulers that look as far ahead are not given them until
        `lease_seconds` after they are due.
        """
        ...

    @readable
    async def due_backfills(
        self, *, limit: int = 10, lease_seconds: float = 5.0
    ) -> list[DueBackfill]:
        """Return backfills to continue, which are left to the caller for `lease_seconds`."""
        ...

    @readable
    async def release_schedules(
        self, schedules: Sequence[DueSchedule], backfills: Sequence[DueBackfill]
    ) -> list[Notice]:
        """Give schedules and backfills back that were left to the caller, for others at once.

        Those that were fired or changed meanwhile are left alone.
        """
        ...

    @readable
    async def next_look(self) -> NextLook:
        """Return when there is something to compute next."""
        ...

    @readable
    async def fire_schedules(self, firings: Sequence[Firing]) -> Fired:
        """Move schedules on from their expected ticks: write buckets, and start what they start.

        All in one transaction. A tick that has a bucket already is not fired again.
        """
        ...

    @readable
    async def fire_backfill(self, firing: BackfillFiring) -> tuple[bool, list[Notice]]:
        """Move a backfill on; False if it is not at the expected position."""
        ...

    @readable
    async def start_buffered(
        self, *, run_ids: Sequence[UUID] | None = None, limit: int = 1000
    ) -> tuple[int, list[Notice]]:
        """Start buffered ticks of schedules whose runs have ended, one of each; return how many.

        With `run_ids` only those of the schedules that have started these runs.
        """
        ...

    @readable
    async def sweep_buckets(self, *, limit: int = 1000) -> int:
        """Delete buckets whose retention is over; return how many.

        What the clock left behind when it was set back begins again: schedules, and tasks, messages
        and deliveries that were due at once or within a minute while it was ahead.
        """
        ...


async def iterate_schedules(
    store: ScheduleStore, *, short_name: str | None = None, doubtful: bool = False
) -> AsyncGenerator[ScheduleRecord]:
    """Yield the schedules of all apps by name; they are read in pages. See `list_schedules`."""
    after: str | None = None
    while page := await store.list_schedules(
        after=after, limit=_PAGE, short_name=short_name, doubtful=doubtful
    ):
        for each in page:
            yield each
        after = page[-1].name
