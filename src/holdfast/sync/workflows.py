"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.naming import Named
from holdfast.client.workflows import Workflows
from holdfast.sync.base import SyncGroup
from holdfast.types import Pause


class SyncWorkflows(SyncGroup[Workflows]):
    """The workflows of all apps: each by its function, or by its name (`app/name`)."""

    def pause(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker continue the runs of a workflow, of any version.

        Returns False if it was paused before. Runs that a worker has continue until they wait.

        ```python
        client.workflows.pause(checkout, reason="wrong prices")
        ```
        """
        return self._call(self._target.pause, workflow, reason)

    def resume(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow continue. Return False if it was not paused.

        ```python
        client.workflows.resume(checkout)
        ```
        """
        return self._call(self._target.resume, workflow)

    def pauses(self) -> list[Pause]:
        """Return the workflows that are paused, each with the moment and the reason.

        ```python
        print([pause.name for pause in client.workflows.pauses()])
        ```
        """
        return self._call(self._target.pauses)
