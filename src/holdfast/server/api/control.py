"""Operations that cancel, terminate, pause, resume and reschedule one run."""

from __future__ import annotations

from typing import Final, cast

from holdfast.client.rescheduling import RescheduleOptions
from holdfast.errors import RescheduleRefused, RunEnded
from holdfast.server.access import Principal
from holdfast.server.api.fields import Changed, Length, Moment, Name, Reason, Text
from holdfast.server.operations import Body, Call, ForAgents, Nothing, Operation, Query
from holdfast.server.problems import Problem


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
    """Let a paused run continue, or try a stuck one again now."""
    return Changed(await call.site.client.runs.resume(call.run_id, by=call.principal.name))


class RescheduleFields(Body, frozen=True):
    """What to change; what is left out stays as it is.

    `delay` and `start_at` are for a run that has not begun. Give one of `deadline`, `timeout` (from
    now, or from the start that it waits for) and `no_deadline`.
    """

    queue: Name | None = None
    delay: Length | None = None
    start_at: Moment | None = None
    deadline: Moment | None = None
    timeout: Length | None = None
    no_deadline: bool = False


class RescheduleBody(RescheduleFields, frozen=True):
    """What to change, and why."""

    reason: Text | None = None


def read_reschedule(body: RescheduleFields, principal: Principal) -> RescheduleOptions:
    """Return what a body changes. Raises Problem 403 for a deadline of who may not terminate."""
    if (body.deadline, body.timeout) != (None, None) and not principal.may("admin"):
        raise Problem(
            403, "forbidden", "a deadline ends a run without its code: this needs the level admin"
        )
    names = RescheduleFields.__struct_fields__
    return cast("RescheduleOptions", {name: getattr(body, name) for name in names})


async def reschedule_run(call: Call[Nothing, RescheduleBody]) -> Changed:
    """Change the queue, the start or the deadline of a run that has not ended."""
    change, runs = read_reschedule(call.body, call.principal), call.site.client.runs
    reason, by = call.body.reason, call.principal.name
    return Changed(await runs.reschedule(call.run_id, reason=reason, by=by, **change))


OPERATIONS: Final = (
    Operation("DELETE /v1/runs/{run}", "write", delete_run, nested=True),
    Operation(
        "POST /v1/runs/{run}/cancel",
        "write",
        cancel_run,
        body_required=False,
        tool=ForAgents(
            name="cancel", about="Ask a run to end; its code may clean up first.", destructive=True
        ),
    ),
    Operation("POST /v1/runs/{run}/terminate", "admin", terminate_run, body_required=False),
    Operation(
        "POST /v1/runs/{run}/pause", "write", pause_run, body_required=False, problems=(RunEnded,)
    ),
    Operation("POST /v1/runs/{run}/resume", "write", resume_run, problems=(RunEnded,)),
    Operation(
        "POST /v1/runs/{run}/reschedule",
        "write",
        reschedule_run,
        problems=(RunEnded, RescheduleRefused),
        tool=ForAgents(
            about="Move a run that waits to another queue, let it begin at another time, or remove "
            "its deadline.",
            hidden=frozenset({"deadline", "timeout"}),  # it never has the level admin
        ),
    ),
)
