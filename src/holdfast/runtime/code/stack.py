"""Where the code of a run stands: its tasks, their lines, and what each awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Final

from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.context import Context
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.steps import Steps
from holdfast.runtime.loop.tasks import WorkflowTask, WorkflowTimer, inner_coroutine
from holdfast.runtime.loop.user_code import describe, frames_of, is_user_code
from holdfast.types import Value
from holdfast.values.moments import to_datetime

_STEP: Final = Steps._perform.__code__  # pyright: ignore[reportPrivateUsage]
_COMMAND: Final = Commands.end_of.__code__
_SIGNAL: Final = Mailbox.take.__code__
_SLEEP: Final = (Context._sleep.__code__, asyncio.sleep.__code__)  # pyright: ignore[reportPrivateUsage]


class TaskStack(Value, frozen=True):
    """An asyncio task of a run that is not done.

    `lines` are those of the user's code, the innermost last, as `shop.py:12 in order`, and `frames`
    are theirs. `awaits` says what the task waits for. `children` are the tasks that it created.
    """

    name: str
    lines: tuple[str, ...]
    awaits: str
    frames: tuple[FrameType, ...]
    children: tuple[TaskStack, ...]


def stack_of(instance: Instance) -> tuple[TaskStack, ...]:
    """Return the tasks of a run that are not done, as a tree: those without a parent, with theirs.

    A task whose parent is done stands with those of its parent's parent.
    """
    tasks = {task.scope.path: task for task in instance.loop.tasks if not task.done()}
    below: dict[str | None, list[WorkflowTask[Any]]] = {}
    for task in tasks.values():
        scope = task.scope.parent
        while scope is not None and scope.path not in tasks:
            scope = scope.parent
        below.setdefault(None if scope is None else scope.path, []).append(task)
    return tuple(_of(task, below) for task in below.get(None, ()))


def _of(task: WorkflowTask[Any], below: Mapping[str | None, list[WorkflowTask[Any]]]) -> TaskStack:
    frames = frames_of(inner_coroutine(task.get_coro()))
    user = tuple(frame for frame in frames if is_user_code(frame.f_code.co_filename))
    children = tuple(_of(each, below) for each in below.get(task.scope.path, ()))
    awaits = next(filter(None, map(_awaited, reversed(frames))), None) or _waits_for(task)
    return TaskStack(task.get_name(), tuple(map(describe, user)), awaits, user, children)


def _awaited(frame: FrameType) -> str | None:
    """Return what a frame of holdfast's or asyncio's waits for, None if it does not say."""
    code, local = frame.f_code, frame.f_locals
    if code is _STEP:
        call = local["call"]
        return f"step {call.name} under {call.key!r}" + (
            "" if call.attempt == 1 else f", attempt {call.attempt}"
        )
    if code is _COMMAND:
        command = local["command"]
        return f"{command.family} {command.name} under {command.key!r}"
    if code is _SIGNAL:
        return f"signal {local['name']!r}"
    if code in _SLEEP:
        timer = local.get("timer", local.get("h"))
        return _timer(timer) if isinstance(timer, WorkflowTimer) else None
    return None


def _timer(timer: WorkflowTimer) -> str:
    until = "" if timer.fire_at is None else f" until {to_datetime(timer.fire_at):%F %T} UTC"
    return f"a timer{until}, under {timer.key!r}"


def _waits_for(task: WorkflowTask[Any]) -> str:
    waiter: Any = getattr(task, "_fut_waiter")  # noqa: B009  # asyncio's own, without a type
    names = sorted(_names(waiter))
    return f"{'task' if len(names) == 1 else 'tasks'} {', '.join(names)}" if names else "a future"


def _names(waiter: Any) -> Iterator[str]:
    """Yield the names of the tasks that a task or a gather waits for."""
    for each in (waiter, *getattr(waiter, "_children", ())):
        if isinstance(each, WorkflowTask) and not each.done():
            yield each.get_name()
