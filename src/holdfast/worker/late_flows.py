"""Runs that were started by name before the database had the flow of this name.

A caller without the code of a flow cannot know that its name is one of a flow until a worker has
brought the flow. Such a run waits as a workflow's would, and a worker that has the flow claims it.
One whose code has run was started when the name was that of a workflow: it is stuck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from holdfast.errors import HoldfastError
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Notice, Release
from holdfast.values.loggers import get_logger
from holdfast.values.names import changed_kind

logger = get_logger("holdfast.worker")

_AGAIN_SECONDS = 5.0


class LateFlows:
    """Makes runs of flows of claimed runs that were started as runs of workflows."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        handlers: Set[str],
        notify: Callable[[list[Notice]], None],
        release: Callable[[Release], None],
        now: Callable[[], int],
    ) -> None:
        """`handlers` are the flows of the app, as `app/name@version`."""
        self._store, self._worker_id, self.handlers = store, worker_id, handlers
        self._notify, self._release, self._now = notify, release, now
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """True while a call is in flight."""
        return bool(self._calls)

    def take(self, task: ClaimedTask) -> bool:
        """Take a task if it is the run of a flow; return False if it is not."""
        if f"{task.name}@{task.version}" not in self.handlers:
            return False
        call = asyncio.get_running_loop().create_task(self._run_as_flow(task))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return True

    async def _run_as_flow(self, task: ClaimedTask) -> None:
        try:
            notices = await self._store.run_as_flow(self._worker_id, task.run_id, task.lease_no)
        except Exception as error:
            logger.exception("run %s (%s) cannot be run as a flow", task.run_id, task.name)
            self._leave(task, str(error))
            return
        if notices is not None:
            self._notify(notices)
        elif await self._is_lost(task):
            logger.warning(
                "run %s: its lease was lost: another worker has taken it over, or it has ended",
                task.run_id,
            )
        else:
            reason = changed_kind("workflow", f"{task.name}@{task.version}")
            logger.error("run %s cannot continue: %s", task.run_id, reason)
            self._leave(task, reason)

    async def _is_lost(self, task: ClaimedTask) -> bool:
        """Return True if the lease of a run is not this worker's any more, or not known to be."""
        try:
            run = (await self._store.get_runs([task.run_id])).get(task.run_id)
        except HoldfastError:
            return True
        wait = None if run is None else run.wait
        return wait is None or (wait.worker, wait.lease_no) != (self._worker_id, task.lease_no)

    def _leave(self, task: ClaimedTask, reason: str) -> None:
        """Give a run back, unless its lease is lost."""
        again = self._now() + int(_AGAIN_SECONDS * 1e6)
        self._release(Release(task.run_id, task.key, task.lease_no, again, reason))
