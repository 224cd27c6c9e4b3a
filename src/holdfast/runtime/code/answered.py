"""Handlers of updates that the log has answered: a replay by changed code begins nothing new there.

The handler of code that has not changed has ended where the log has the answer, and has given its
commands before. Tasks that it has started continue, as do calls that the log has.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from holdfast.runtime.code.history import History
from holdfast.runtime.code.steps import Call
from holdfast.runtime.loop.loop import WorkflowLoop

_MOST_TRIES: Final = 100


def refuses(history: History, loop: WorkflowLoop) -> bool:
    """Return True if the task that runs is such a handler, which may not give a new command."""
    task = asyncio.current_task(loop)
    for update_id, (handler, was_answered) in history.handlers.items():
        if handler is task and was_answered:
            history.overrun.setdefault(update_id, 0)
            return True
    return False


def check_new(history: History, loop: WorkflowLoop) -> None:
    """Raise CancelledError if the task that runs is such a handler."""
    if refuses(history, loop):
        raise asyncio.CancelledError


def stop(history: History, pending: dict[str, Call], update_id: str) -> bool:
    """Cancel what the handler of an answered update waits for; return False if there is nothing.

    If it waits for tasks, which may be older than the change, only new calls of its own are
    cancelled. Raises DeterminismError if the handler does not end.
    """
    if update_id not in history.handlers:
        return False
    task: Any = history.handlers[update_id][0]
    history.handlers[update_id] = task, True
    tries = history.overrun[update_id] = history.overrun.get(update_id, 0) + 1
    if tries > _MOST_TRIES:
        raise history.differ(f"update {update_id} was answered, and its handler does not end")
    waiter = task._fut_waiter
    if not (isinstance(waiter, asyncio.Task) or hasattr(waiter, "_children")):  # of a gather
        task.cancel()
        return True
    new = [call for call in pending.values() if not call.begun and call.attempt == 1]
    own = [call for call in new if call.key.rpartition("/")[0] == task.scope.path]
    for call in own:
        if call.future is not None:
            call.future.cancel()
    return bool(own)
