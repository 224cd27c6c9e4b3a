"""Handlers of updates that the log has answered: a replay by changed code begins nothing new there.

The handler of code that has not changed has ended where the log has the answer, and has given its
commands before. Tasks that it has started continue, as do calls that the log has.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.runtime.code.history import History
from holdfast.runtime.code.steps import Call
from holdfast.runtime.loop.loop import WorkflowLoop


def refuses(history: History, loop: WorkflowLoop) -> bool:
    """Return True if the task that runs is such a handler, which may not give a new command."""
    task = asyncio.current_task(loop)
    for update_id, (handler, was_answered) in history.handlers.items():
        if handler is task and was_answered:
            history.overrun[update_id] = None
            return True
    return False


def stop(history: History, pending: dict[str, Call], update_id: str) -> bool:
    """Cancel what the handler of an answered update waits for; return False if there is nothing.

    If it waits for tasks, which may be older than the change, only new calls of its own are.
    """
    if update_id not in history.handlers:
        return False
    task: Any = history.handlers[update_id][0]
    history.handlers[update_id] = task, True
    history.overrun[update_id] = None
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
