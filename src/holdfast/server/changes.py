"""Write to the log who changed what, and with what outcome."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from holdfast.server.operations import Call, Operation
from holdfast.server.problems import problem_of

logger = logging.getLogger("holdfast.server")


async def carry_out(operation: Operation, call: Call[Any, Any]) -> object:
    """Return what the operation answers. A change is written to the log, also one that failed."""
    try:
        answer = await operation.handler(call)
    except Exception as error:
        _log_change(operation, call, problem_of(error).slug)
        raise
    _log_change(operation, call, "done")
    return answer


def _log_change(operation: Operation, call: Call[Any, Any], outcome: str) -> None:
    """Write a change to the log, once the answer is sent: the caller need not wait for that."""
    if operation.method != "GET":
        what = f" {call.run_id}" if "run" in call.path else ""
        line = "%s%s by %s: %s", operation.name, what, call.principal.name, outcome
        asyncio.get_running_loop().call_soon(logger.info, *line)
