"""All that a worker holds: runs and activities, which share its room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from holdfast.types import ClaimedTask, Lease, Release
from holdfast.worker.activities import ActivityExecutor
from holdfast.worker.given_up import GivenUp
from holdfast.worker.runs import Dispatcher


class Workload:
    """Split what is claimed between runs and activities, and speak for both."""

    def __init__(self, runs: Dispatcher, activities: ActivityExecutor, concurrency: int) -> None:
        self._runs, self._activities, self._concurrency = runs, activities, concurrency

    @property
    def held(self) -> int:
        """How many runs and activities the worker holds."""
        return self._runs.held + self._activities.held

    @property
    def free(self) -> int:
        """How many more the worker takes."""
        return 0 if self._runs.draining else self._concurrency - self.held

    @property
    def executing(self) -> bool:
        """Say whether a step or an activity runs now."""
        return self._runs.executing or self._activities.executing

    @property
    def busy(self) -> bool:
        """Say whether anything is under way that goes on without the passing of time."""
        return self._runs.busy or self._activities.busy

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Begin with tasks just claimed; called from anywhere on the event loop."""
        activities = [task for task in tasks if task.kind == "activity"]
        if activities:
            self._activities.accept(activities)
            tasks = [task for task in tasks if task.kind != "activity"]
        self._runs.accept(tasks)

    # Heartbeat and news

    def leases(self) -> list[Lease]:
        """Return the leases held now. Safe to call from another thread."""
        return self._runs.leases() + self._activities.leases()

    def give_up(self) -> list[GivenUp]:
        """Return all that is held, to be given back: no run goes on here. For other threads."""
        activities = [
            GivenUp(Release(lease.run_id, lease.key, lease.lease_no))
            for lease in self._activities.leases()
        ]
        return self._runs.give_up(resting=False) + activities

    def give_up_resting(self) -> list[GivenUp]:
        """Return the runs without a step under way, to be given back; as above."""
        return self._runs.give_up(resting=True)

    def give_up_stuck(self, run_id: UUID, reason: str, pause_seconds: float) -> GivenUp | None:
        """Return what gives a run back as stuck, None where it is not held; as above."""
        return self._runs.give_up_stuck(run_id, reason, pause_seconds)

    def forget_given_up(self) -> None:
        """Let go of the runs that another thread has given back."""
        self._runs.forget_given_up()

    def renewed(self, leases: Sequence[Lease]) -> None:
        """Hear which leases were renewed, and with what details. Safe from another thread."""
        self._activities.known(leases)

    def lose(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Hear that a lease is another's."""
        if key:
            self._activities.lose(run_id, key, lease_no)
        else:
            self._runs.lose(run_id, lease_no)

    def news(self, run_id: UUID) -> None:
        """Hear that a run has unread events."""
        self._runs.news(run_id)

    def missed(self) -> None:
        """Hear that news may have been missed."""
        for lease in self._runs.leases():
            self._runs.news(lease.run_id)

    def call_off(self, run_id: UUID, key: str) -> None:
        """Hear that nobody waits for an activity any more."""
        self._activities.call_off(run_id, key)

    # Draining

    async def drain(
        self, grace_seconds: float, save: Callable[[list[Lease]], Awaitable[None]]
    ) -> list[Release]:
        """Let what runs end within the grace period; return what is to be released then."""
        parts = await asyncio.gather(
            self._runs.drain(grace_seconds), self._activities.drain(grace_seconds, save)
        )
        return [release for part in parts for release in part]

    def hurry(self) -> None:
        """End the grace period now."""
        self._runs.hurry()
        self._activities.hurry()
