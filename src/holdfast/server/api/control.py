"""Operations that cancel, terminate, pause and resume one run."""

from __future__ import annotations

from typing import Final

from holdfast.errors import RunEnded, RunNotFound
from holdfast.server.api.fields import Changed, Reason, Text
from holdfast.server.operations import Call, ForAgents, Nothing, Operation, Query


class CancelQuery(Query, frozen=True):
    """Why the run is cancelled."""

    reason: Text | None = None


async def delete_run(call: Call[CancelQuery, None]) -> Changed:
    """Cancel a run, which stays readable: the same as `cancel`."""
    return Changed(
        await call.site.client.runs.cancel(call.run_id, call.query.reason, by=call.principal.name)
    )


async def cancel_run(call: Call[Nothing, Reason]) -> Changed:
    """Ask a run to end; its code may clean up first."""
    return Changed(
        await call.site.client.runs.cancel(call.run_id, call.body.reason, by=call.principal.name)
    )


async def terminate_run(call: Call[Nothing, Reason]) -> Changed:
    """End a run at once, without its code."""
    return Changed(
        await call.site.client.runs.terminate(call.run_id, call.body.reason, by=call.principal.name)
    )


async def pause_run(call: Call[Nothing, Reason]) -> Changed:
    """Let a run do nothing until it is resumed."""
    return Changed(
        await call.site.client.runs.pause(call.run_id, call.body.reason, by=call.principal.name)
    )


async def resume_run(call: Call[Nothing, None]) -> Changed:
    """Let a paused run continue."""
    return Changed(await call.site.client.runs.resume(call.run_id, by=call.principal.name))


OPERATIONS: Final = (
    Operation(
        method="DELETE",
        path="/v1/runs/{run}",
        level="write",
        handler=delete_run,
        query=CancelQuery,
        answers=(Changed,),
        problems=(RunNotFound,),
        nested=True,
    ),
    Operation(
        method="POST",
        path="/v1/runs/{run}/cancel",
        level="write",
        handler=cancel_run,
        body=Reason,
        body_required=False,
        answers=(Changed,),
        problems=(RunNotFound,),
        tool=ForAgents(
            name="cancel",
            about="Ask a run to end; its code may clean up first.",
            destructive=True,
        ),
    ),
    Operation(
        method="POST",
        path="/v1/runs/{run}/terminate",
        level="admin",
        handler=terminate_run,
        body=Reason,
        body_required=False,
        answers=(Changed,),
        problems=(RunNotFound,),
    ),
    Operation(
        method="POST",
        path="/v1/runs/{run}/pause",
        level="write",
        handler=pause_run,
        body=Reason,
        body_required=False,
        answers=(Changed,),
        problems=(RunNotFound, RunEnded),
    ),
    Operation(
        method="POST",
        path="/v1/runs/{run}/resume",
        level="write",
        handler=resume_run,
        answers=(Changed,),
        problems=(RunNotFound, RunEnded),
    ),
)
