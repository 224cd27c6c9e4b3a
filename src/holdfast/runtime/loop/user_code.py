"""Finds the line of the user's own code that makes a call.

Frames of holdfast, of Python and of installed libraries are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import site
import sysconfig
from collections.abc import Callable, Sequence
from types import CoroutineType, FrameType
from typing import Any, Final

from holdfast.runtime.loop.tasks import WorkflowTask, inner_coroutine

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PATHS: Final = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES: Final = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        _PACKAGE,
        *(sysconfig.get_path(each) for each in _PATHS),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


async def _wait() -> None: ...


_waiting = _wait()
_AWAITED: Final = type(_waiting.__await__())
_waiting.close()


@functools.lru_cache(maxsize=4096)
def is_user_code(filename: str) -> bool:
    """Return True if a file is the user's own: not of holdfast, Python or a library."""
    return filename[:1] != "<" and not os.path.realpath(filename).startswith(_LIBRARIES)


def describe(frame: FrameType) -> str:
    """Return the file, the line and the function of a frame, as `shop.py:12 in checkout`."""
    code = frame.f_code
    return _place(code.co_filename, frame.f_lineno, code.co_name)


def _place(file: str, number: int, function: str) -> str:
    with contextlib.suppress(OSError, ValueError):  # no working directory, or on another drive
        file = os.path.relpath(file)
    return f"{file}:{number} in {function}"


def line_of_call(
    loop: asyncio.AbstractEventLoop, tasks: Sequence[WorkflowTask[Any]], key: str
) -> str | None:
    """Return the line of the user's code that makes the call with this key, as `describe` does.

    The call is being made now, or one of `tasks` waits for it. None if no line can be found.
    """
    if asyncio.events._get_running_loop() is loop:
        return running_line()
    fallback: str | None = None
    for task in tasks:
        if task.done():
            continue
        chain = frames_of(inner_coroutine(task.get_coro()))
        user = next((each for each in reversed(chain) if is_user_code(_file(each))), None)
        if any(_key_of(frame) == key for frame in chain):
            if user is not None:
                return describe(user)
            fallback = fallback or line_of_task(tasks, key.rpartition("/")[0])
    return fallback


def running_line() -> str | None:
    """Return the line of the user's code that executes, as `describe` does; None if none does."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "drain":
        if is_user_code(_file(frame)):
            return describe(frame)
        frame = frame.f_back
    return None


def line_of_error(error: BaseException) -> str | None:
    """Return the innermost line of the user's code that an error has passed; None for none."""
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if is_user_code(_file(traceback.tb_frame)):
            code = traceback.tb_frame.f_code  # the frame itself may be further by now
            line = _place(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return line


def line_of_task(tasks: Sequence[WorkflowTask[Any]], path: str) -> str | None:
    """Return the line at which the task with this scope waits; None if it is not known.

    That line made the call if the call itself became a task, as in `asyncio.gather(pay(1))`.
    """
    for task in tasks:
        if task.scope.path == path and not task.done():
            chain = [each for each in frames_of(task.get_coro()) if is_user_code(_file(each))]
            return describe(chain[-1]) if chain else None
    return None


def line_of_creator(
    tasks: Sequence[WorkflowTask[Any]], task: asyncio.Task[Any] | None
) -> str | None:
    """Return the line at which the code waits that created a library's task; None for none."""
    scope = task.scope.parent if isinstance(task, WorkflowTask) else None
    while scope is not None:
        if (line := line_of_task(tasks, scope.path)) is not None:
            return line
        scope = scope.parent
    return None


def line_of_waiting(tasks: Sequence[WorkflowTask[Any]]) -> str | None:
    """Return the line at which the first task that is not done waits; None if it is not known."""
    open_tasks = (task for task in tasks if not task.done())
    return next(filter(None, (line_of_task(tasks, each.scope.path) for each in open_tasks)), None)


def line_of_definition(function: Callable[..., object]) -> str | None:
    """Return the line at which a function of the user's begins, as `describe` does."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else _place(code.co_filename, code.co_firstlineno, code.co_name)


def split_line(line: str) -> tuple[str, int]:
    """Return the file and the number of a line that `describe` has described."""
    file, number = line.rpartition(" in ")[0].rsplit(":", 1)
    return file, int(number)


def frames_of(coroutine: object) -> list[FrameType]:
    """Return the frames of a coroutine and of what it awaits, the innermost last."""
    found: list[FrameType] = []
    while True:
        if type(coroutine) is _AWAITED:  # what is awaited with `__await__`, as calls of activities
            coroutine = next(iter(gc.get_referents(coroutine)), None)
        if not isinstance(coroutine, CoroutineType) or coroutine.cr_frame is None:
            return found
        found.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await


def _key_of(frame: FrameType) -> str | None:
    made: Any = frame.f_locals.get("call") or frame.f_locals.get("command")
    return None if is_user_code(_file(frame)) else getattr(made, "key", None)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename
