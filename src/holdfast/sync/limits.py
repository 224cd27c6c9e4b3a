"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.limits import Limits
from holdfast.client.naming import Named
from holdfast.definitions.limits import AnyLimit
from holdfast.sync.base import SyncGroup
from holdfast.types import LimitInfo


class SyncLimits(SyncGroup[Limits]):
    """The limits of queues, workflows and activities, in all workers together."""

    def set(
        self,
        limit: AnyLimit,
        *,
        queue: str | None = None,
        workflow: Named | str | None = None,
        activity: Named | str | None = None,
    ) -> bool:
        """Set a limit on a queue, a workflow or an activity. Return False if nothing changed.

        It holds for what workers claim from now on; what runs already counts and is not stopped.
        It stays when workers start again, until their code declares something else than before.
        An activity's name may lack its app if only one app has live workers with it. Raises
        InvalidInput unless one of the three is named, and for a name that means none or several.

        ```python
        client.limits.set(Limit(5), queue="mail")
        client.limits.set(Rate(100, per="1m", key="input.customer"), workflow=checkout)
        ```
        """
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
        """Remove a limit, which is known by its class and its key. Return False if there is none.

        With `units` it is the `Rate` that counts units.

        What waits for it may run at once. A limit that code declares stays removed until the code
        declares something else.

        ```python
        client.limits.remove(Limit, queue="mail")
        ```
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
        """Return all limits, and how they are used.

        ```python
        for limit in client.limits.list():
            print(limit.rule.name, limit.rule.most, limit.held, limit.waiting)
        ```
        """
        return self._call(self._target.list)
