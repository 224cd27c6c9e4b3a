"""`client.workers`: list the workers."""

from __future__ import annotations

import builtins

from holdfast.client.session import Group
from holdfast.types import WorkerInfo


class Workers(Group):
    """The workers of all apps."""

    async def list(self) -> builtins.list[WorkerInfo]:
        """Return the workers that are signed on.

        ```python
        print([worker.hostname for worker in await client.workers.list()])
        ```
        """
        return await self._session.store.list_workers()
