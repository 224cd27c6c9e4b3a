"""Operations that send messages to runs: signals."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import RunEnded, RunNotFound
from holdfast.server.api.fields import Changed
from holdfast.server.operations import Call, Nothing, Operation


async def send_signal(call: Call[Nothing, Any]) -> Changed:
    """Send a run a signal; the body is its payload.

    With an Idempotency-Key it is delivered once: `changed` is false if it was sent before.
    """
    sent = await call.site.client.signal(
        call.run_id, call.path["event"], call.body, call.idempotency_key
    )
    return Changed(sent)


OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/runs/{run}/signals/{event}",
        level="write",
        handler=send_signal,
        body=Any,
        body_required=False,
        answers=(Changed,),
        problems=(RunNotFound, RunEnded),
        nested=True,
        keyed=True,
    ),
)
