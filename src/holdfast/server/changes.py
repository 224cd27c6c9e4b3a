"""Write to the log who changed what, and with what outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from holdfast.server.operations import Call, Operation, Reply
from holdfast.server.problems import problem_of

NAMES: Final = ("do", "scope", "name", "kind", "topic", "workflow", "key", "step")
"""Fields of a query, a body or a form that name what is changed."""

_MOST: Final = 200  # characters of a name

logger = logging.getLogger("holdfast.server")


async def carry_out(operation: Operation, call: Call[Any, Any]) -> object:
    """Return what the operation answers. A change is written to the log, also one that failed."""
    try:
        answer = await operation.handler(call)
    except Exception as error:
        _log_change(operation, call, problem_of(error).slug)
        raise
    made = answer.content if isinstance(answer, Reply) else answer
    run_id = getattr(made, "run_id", None)
    _log_change(operation, call, "done" if run_id is None else f"done, run {run_id}")
    return answer


def named(texts: Iterable[object]) -> str:
    """Return texts for a line of the log, each after a space; what cannot be printed is escaped."""
    return "".join(f" {printable(each)}" for each in texts if isinstance(each, str) and each)


def names_in(given: object) -> list[object]:
    """Return what the fields of a query or a body say about what is changed."""
    return [getattr(given, name, None) for name in NAMES]


def printable(text: str) -> str:
    """Return a text that is one line, and cannot control a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    shown = text if len(text) <= _MOST else text[:_MOST] + "…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
    )


def _log_change(operation: Operation, call: Call[Any, Any], outcome: str) -> None:
    """Write a change to the log, once the answer is sent: the caller need not wait for that."""
    if operation.method != "GET":
        path = [value for name, value in call.path.items() if name != "token"]
        what = named([*path, *names_in(call.query), *names_in(call.body)])
        by = printable(call.principal.name)
        line = "%s%s by %s: %s", operation.name, what, by, outcome
        asyncio.get_running_loop().call_soon(logger.info, *line)
