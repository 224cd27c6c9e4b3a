"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.limits import Limits
from holdfast.client.naming import Named
from holdfast.definitions.limits import AnyLimit
from holdfast.sync.base import SyncGroup
from holdfast.types import LimitInfo


class SyncLimits(SyncGroup[Limits], of=Limits):
    """The limits of queues, workflows and activities, in all workers together."""

    def set(
        self,
        limit: AnyLimit,
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
    ) -> bool:
        """Set a limit on a queue, a workflow or an activity. Return False if nothing changed."""
        return self._call(
            self._target.set, limit, queue=queue, workflow=workflow, activity=activity
        )

    def remove(
        self,
        limit: type[AnyLimit],
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
        key: str | None = None,
        units: bool = False,
    ) -> bool:
        """Remove a limit, which is known by its class and its key. Return False if there is
        none.
        """
        return self._call(
            self._target.remove,
            limit,
            queue=queue,
            workflow=workflow,
            activity=activity,
            key=key,
            units=units,
        )

    def list(self) -> list[LimitInfo]:
        """Return all limits, and how they are used."""
        return self._call(self._target.list)
