"""All that a worker holds: runs, activities, steps of flows and messages, treated as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from holdfast.types import ClaimedTask, Lease, Release
from holdfast.worker.activities import Activities
from holdfast.worker.consumers import Consumers
from holdfast.worker.giving_back import GivenUp, MessageEnds
from holdfast.worker.late_flows import LateFlows
from holdfast.worker.runs import Runs
from holdfast.worker.step_tasks import StepTasks


class Workload:
    """Answer for all that the worker holds, to the heartbeat, the watchdog and a drain."""

    def __init__(
        self,
        runs: Runs,
        activities: Activities,
        steps: StepTasks,
        late_flows: LateFlows,
        consumers: Consumers,
    ) -> None:
        self._runs, self._activities, self._steps = runs, activities, steps
        self._late_flows, self._consumers = late_flows, consumers
        if late_flows.handlers:
            runs.takes_flow = late_flows.take
        self.interrupted = 0  # attempts and turns that the drain has stopped

    @property
    def takers(self) -> Mapping[str, Callable[[Sequence[ClaimedTask]], None]]:
        """The functions that receive claimed tasks, by the kind of task."""
        return {
            "workflow": self._runs.accept,
            "activity": self._activities.accept,
            "step": self._steps.accept,
        }

    @property
    def executing(self) -> bool:
        """True if a step or an activity runs."""
        return self._runs.executing or self._activities.executing or self._steps.executing

    @property
    def cached(self) -> int:
        """The number of suspended runs that are kept in memory."""
        return self._runs.cached

    @property
    def busy(self) -> bool:
        """True if something is under way that continues without input and without waiting."""
        return self._runs.busy or self._activities.busy or self._steps.busy or self._late_flows.busy

    # Called for the heartbeat, and for notifications

    def leases(self) -> list[Lease]:
        """Return the leases held now. Safe from any thread."""
        return self._runs.leases() + self._activities.leases() + self._steps.leases()

    def knows(self, run_id: UUID, key: str) -> bool:
        """Return True if a run or an attempt here belongs to a task. Safe from any thread."""
        if not key:
            return self._runs.knows(run_id)
        return self._activities.knows(run_id, key) or self._steps.knows(run_id, key)

    def renewed(self, leases: Sequence[Lease]) -> None:
        """Remember that the database has the details of these leases. Safe from any thread."""
        self._activities.renewed(leases)

    def lose(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Stop what belongs to a lease that was lost."""
        if key:
            self._activities.lose(run_id, key, lease_no)
            self._steps.lose(run_id, key, lease_no)
        else:
            self._runs.lose(run_id, lease_no)

    def unread(self, run_id: UUID) -> None:
        """Read the events of a run that others have written."""
        self._runs.unread(run_id)

    def request_cancel(self, run_id: UUID, key: str) -> None:
        """Ask an activity or a flow's step to stop, because its run no longer waits for it."""
        self._activities.request_cancel(run_id, key)
        self._steps.request_cancel(run_id, key)

    def notified(self, payload: str) -> None:
        """Act on a notification to this worker: `RUN_ID`, `RUN_ID KEY` of a task, or empty.

        An empty payload says that notifications may have been lost: then all runs are looked at.
        """
        run_id, _, key = payload.partition(" ")
        if key:
            self.request_cancel(UUID(run_id), key)
        elif run_id:
            self.unread(UUID(run_id))
        else:
            for lease in self._runs.leases():
                self._runs.unread(lease.run_id)

    # Called for the watchdog, mostly from its thread. What is given up does not continue here when
    # the event loop is free again: another worker may have it by then.

    def give_up(self) -> list[GivenUp]:
        """Give up everything; return the leases to release. Safe from any thread."""
        others = [
            GivenUp(Release(lease.run_id, lease.key, lease.lease_no))
            for lease in self._activities.leases() + self._steps.leases()
        ]
        return self._runs.give_up(only_idle=False) + others

    def give_up_messages(self) -> MessageEnds:
        """Give up the messages that consumers have; return how they end. Safe from any thread."""
        return self._consumers.give_up()

    def give_up_idle(self) -> list[GivenUp]:
        """Give up the runs that have no step under way; return their leases, as `give_up` does."""
        return self._runs.give_up(only_idle=True)

    def give_up_stuck(self, run_id: UUID, reason: str, pause_seconds: float) -> GivenUp | None:
        """Give up one run as stuck, until after the pause; None if it is not held."""
        return self._runs.give_up_stuck(run_id, reason, pause_seconds)

    def forget_given_up(self) -> None:
        """Forget the runs that the watchdog has given back. Called on the event loop."""
        self._runs.forget_given_up()

    # Draining

    def mark_interrupted(self) -> None:
        """From now on record in the log of a run that a drain has stopped steps of it."""
        self._runs.marks_interrupted = True

    async def drain(
        self, grace_seconds: float, save: Callable[[list[Lease]], Awaitable[None]]
    ) -> list[Release]:
        """Let running work end within the grace period; return the releases of the rest."""
        parts = await asyncio.gather(
            self._runs.drain(grace_seconds),
            self._activities.drain(grace_seconds, save),
            self._steps.drain(grace_seconds),
        )
        self.interrupted = self._runs.interrupted + sum(map(len, parts))
        return [release for part in parts for release in part]

    def end_grace(self) -> None:
        """End the grace period now."""
        self._runs.end_grace()
        self._activities.end_grace()
        self._steps.end_grace()
