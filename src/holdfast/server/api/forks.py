"""Operations that start a run from another's log: forks and retries."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from holdfast.client.forking import ForkOptions
from holdfast.errors import ForkRefused, RunExists
from holdfast.server.api.fields import Key
from holdfast.server.operations import Body, Call, ForAgents, Nothing, Operation, Reply


class ForkBody(Body, frozen=True):
    """Where the fork begins (a step's key, or how many events are kept), and what is different."""

    step: Key | None = None
    index: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    input: Any | msgspec.UnsetType = msgspec.UNSET
    results: dict[str, Any] | None = None
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class RetryBody(Body, frozen=True):
    """Of a flow, `step` runs again with all steps after it.

    `failed_steps` repeats all that failed: also calls whose failures the code of a workflow
    handled, and steps and elements of maps that did not fail the run of a flow.
    """

    step: Key | None = None
    failed_steps: bool = False


class Forked(msgspec.Struct, frozen=True):
    """The new run; `created` is false if the same call had made it before."""

    run_id: UUID
    created: bool


async def fork_run(call: Call[Nothing, ForkBody]) -> Reply:
    """Start a run that continues from a place in another run's log.

    With an Idempotency-Key the same call again finds the same run.
    """
    body = call.body
    options = ForkOptions(step=body.step, index=body.index, version=body.version)
    if body.input is not msgspec.UNSET:
        options["input"] = body.input
    if body.results is not None:
        options["results"] = body.results
    if call.idempotency_key is not None:
        options["run_id"] = uuid5(call.run_id, f"fork {call.idempotency_key}")
    handle = await call.site.client.runs.fork(call.run_id, **options)
    created = not handle.already_existed
    return Reply(Forked(handle.run_id, created), 201 if created else 200)


async def retry_run(call: Call[Nothing, RetryBody]) -> Reply:
    """Start a run that continues where another one failed. A run is retried once."""
    handle = await call.site.client.runs.retry(
        call.run_id, from_step=call.body.step, failed_steps=call.body.failed_steps
    )
    created = not handle.already_existed
    return Reply(Forked(handle.run_id, created), 201 if created else 200)


OPERATIONS: Final = (
    Operation(
        "POST /v1/runs/{run}/fork",
        "write",
        fork_run,
        body_required=False,
        answers=(Forked,),
        statuses=(201, 200),
        problems=(ForkRefused, RunExists),
        keyed=True,
    ),
    Operation(
        "POST /v1/runs/{run}/retry",
        "write",
        retry_run,
        body_required=False,
        answers=(Forked,),
        statuses=(201, 200),
        problems=(ForkRefused,),
        tool=ForAgents(name="retry", about="Start a run that continues where another one failed."),
    ),
)
