"""Act on runs, queues and workflows: cancel, terminate, pause, resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import UUID

from holdfast.client.messaging import Messenger
from holdfast.client.references import Named, RunRef
from holdfast.errors import RunEnded, RunNotFound
from holdfast.names import check_queue_name
from holdfast.texts import check_reason
from holdfast.types import Delivered, Delivery, Scope


class Controller(Messenger):
    """The part of a client that stops things and lets them go on.

    Whatever is asked of a run that continued as new goes to the newest.
    """

    async def cancel(self, run: RunRef, reason: str | None = None) -> bool:
        """Ask a run to end; its code may clean up first. False where it had ended before.

        A run that no worker has begun ends at once. Raises RunNotFound.

        ```python
        await client.cancel(run_id, reason="the customer changed their mind")
        ```
        """
        call = partial(self._live.store.cancel_runs, reason=check_reason(reason))
        return _found(*await self._change(run, call)) != "ended"

    async def terminate(self, run: RunRef, reason: str | None = None) -> bool:
        """End a run at once, without its code. False where it had ended before.

        Raises RunNotFound.

        ```python
        await client.terminate(run_id, reason="started by mistake")
        ```
        """
        call = partial(self._live.store.terminate_runs, reason=check_reason(reason))
        return _found(*await self._change(run, call)) != "ended"

    async def pause(self, run: RunRef, reason: str | None = None) -> bool:
        """Let a run do nothing more until it is resumed. False where it was paused before.

        Steps that are running end and are recorded; its timers do not go off and its signals
        are kept. A deadline still ends it. Raises RunNotFound and RunEnded.

        ```python
        await client.pause(("checkout", "order-7"), reason="the shop is closed")
        ```
        """
        call = partial(self._live.store.pause_runs, reason=check_reason(reason))
        return await self._going(*await self._change(run, call))

    async def resume(self, run: RunRef) -> bool:
        """Let a paused run go on. False where it was not paused.

        Raises RunNotFound and RunEnded.

        ```python
        await client.resume(("checkout", "order-7"))
        ```
        """
        call = self._live.store.resume_runs
        return await self._going(*await self._change(run, call))

    async def pause_queue(self, name: str, reason: str | None = None) -> bool:
        """Let no worker begin anything of a queue. False where it was paused before.

        What runs already is not disturbed. Holds for workers that start later, too.

        ```python
        await client.pause_queue("mail", reason="the mail server is down")
        ```
        """
        return await self._set_pause("queue", check_queue_name(name), True, reason)

    async def resume_queue(self, name: str) -> bool:
        """Let workers go on with a queue. False where it was not paused.

        ```python
        await client.resume_queue("mail")
        ```
        """
        return await self._set_pause("queue", check_queue_name(name), False)

    async def pause_workflow(self, workflow: Named | str, reason: str | None = None) -> bool:
        """Let no worker begin a turn of a workflow's runs, of any version.

        False where it was paused before. Runs that are held by a worker go on until they wait.

        ```python
        await client.pause_workflow(checkout, reason="wrong prices")
        ```
        """
        name = await self._live.names.full(workflow)
        return await self._set_pause("workflow", name, True, reason)

    async def resume_workflow(self, workflow: Named | str) -> bool:
        """Let the runs of a workflow go on. False where it was not paused.

        ```python
        await client.resume_workflow(checkout)
        ```
        """
        name = await self._live.names.full(workflow)
        return await self._set_pause("workflow", name, False)

    async def _change(
        self, run: RunRef, call: Callable[[Sequence[UUID]], Awaitable[Delivered]]
    ) -> tuple[Delivery, UUID]:
        return await self._live.change(await self._live.newest_of(run), call)

    async def _set_pause(
        self, scope: Scope, name: str, paused: bool, reason: str | None = None
    ) -> bool:
        changed, notices = await self._live.store.set_pause(
            scope, name, paused=paused, reason=check_reason(reason)
        )
        self._live.tell(notices)
        return changed

    async def _going(self, outcome: Delivery, run_id: UUID) -> bool:
        if _found(outcome, run_id) == "ended":
            raise RunEnded(run_id, (await self._get(run_id)).status)
        return outcome == "delivered"


def _found(outcome: Delivery, run_id: UUID) -> Delivery:
    if outcome == "missing":
        raise RunNotFound(run_id)
    return outcome
