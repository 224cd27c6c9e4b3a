"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.queues import Queues
from holdfast.sync.base import SyncGroup
from holdfast.types import Pause


class SyncQueues(SyncGroup[Queues]):
    """The queues that workers take runs and activities from."""

    def pause(self, name: str, reason: str | None = None) -> bool:
        """Let no worker begin anything of a queue. Return False if it was paused before.

        What runs already is not disturbed. The pause also holds for workers that start later.

        ```python
        client.queues.pause("mail", reason="the mail server is down")
        ```
        """
        return self._call(self._target.pause, name, reason)

    def resume(self, name: str) -> bool:
        """Let workers continue with a queue. Return False if it was not paused.

        ```python
        client.queues.resume("mail")
        ```
        """
        return self._call(self._target.resume, name)

    def pauses(self) -> list[Pause]:
        """Return the queues that are paused, each with the moment and the reason.

        ```python
        print([pause.name for pause in client.queues.pauses()])
        ```
        """
        return self._call(self._target.pauses)
