"""`client.workflows`: pause and resume workflows."""

from __future__ import annotations

from holdfast.client.control import list_pauses, set_pause
from holdfast.client.naming import Named
from holdfast.client.session import Group
from holdfast.types import HeldKey, Pause
from holdfast.values.numbers import whole_number


class Workflows(Group):
    """The workflows of all apps: each by its function, or by its name (`app/name`)."""

    async def pause(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker continue the runs of a workflow, of any version.

        Returns False if it was paused before. Runs that a worker has continue until they wait.

        ```python
        await client.workflows.pause(checkout, reason="wrong prices")
        ```
        """
        name = await self._session.names.full(workflow)
        return await set_pause(self._session, "workflow", name, True, reason)

    async def resume(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow continue. Return False if it was not paused.

        ```python
        await client.workflows.resume(checkout)
        ```
        """
        name = await self._session.names.full(workflow)
        return await set_pause(self._session, "workflow", name, False)

    async def held_keys(self, workflow: Named | str, limit: int = 100) -> list[HeldKey]:
        """Return what singletons, debounces and throttles of a workflow hold now, by key.

        At most `limit` keys of each rule.

        ```python
        for held in await client.workflows.held_keys(checkout):
            print(held.rule, held.key, held.run_id, held.until)
        ```
        """
        whole_number(limit, "workflows.held_keys", "limit", 0)
        name = await self._session.names.full(workflow)
        return await self._session.store.list_start_keys(name, limit=limit)

    async def pauses(self) -> list[Pause]:
        """Return the workflows that are paused, each with the moment and the reason.

        ```python
        print([pause.name for pause in await client.workflows.pauses()])
        ```
        """
        return await list_pauses(self._session, "workflow")
