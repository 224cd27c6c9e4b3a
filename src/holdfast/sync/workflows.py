"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.naming import Named
from holdfast.client.workflows import Workflows
from holdfast.sync.base import SyncGroup
from holdfast.types import HeldKey, Pause


class SyncWorkflows(SyncGroup[Workflows], of=Workflows):
    """The workflows of all apps: each by its function, or by its name (`app/name`)."""

    def pause(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker continue the runs of a workflow, of any version."""
        return self._call(self._target.pause, workflow, reason)

    def resume(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow continue. Return False if it was not paused."""
        return self._call(self._target.resume, workflow)

    def held_keys(self, workflow: Named | str, limit: int = 100) -> list[HeldKey]:
        """Return what singletons, debounces and throttles of a workflow hold now, by key."""
        return self._call(self._target.held_keys, workflow, limit)

    def pauses(self) -> list[Pause]:
        """Return the workflows that are paused, each with the moment and the reason."""
        return self._call(self._target.pauses)
