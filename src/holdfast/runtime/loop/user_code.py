"""Finds the line of the user's own code that makes a call.

Frames of holdfast, of Python and of installed libraries are skipped.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import site
import sysconfig
from collections.abc import Sequence
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


@functools.lru_cache(maxsize=4096)
def is_user_code(filename: str) -> bool:
    """Return True if a file is the user's own: not of holdfast, Python or a library."""
    return filename[:1] != "<" and not os.path.realpath(filename).startswith(_LIBRARIES)


def describe(frame: FrameType) -> str:
    """Return the file, the line and the function of a frame, as `shop.py:12 in checkout`."""
    code = frame.f_code
    try:
        file = os.path.relpath(code.co_filename)
    except (OSError, ValueError):  # the working directory is gone, or on another drive
        file = code.co_filename
    return f"{file}:{frame.f_lineno} in {code.co_name}"


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
        chain = _chain(inner_coroutine(task.get_coro()))
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
            line = describe(traceback.tb_frame)
        traceback = traceback.tb_next
    return line


def line_of_task(tasks: Sequence[WorkflowTask[Any]], path: str) -> str | None:
    """Return the line at which the task with this scope waits; None if it is not known.

    That line made the call if the call itself became a task, as in `asyncio.gather(pay(1))`.
    """
    for task in tasks:
        if task.scope.path == path and not task.done():
            chain = [each for each in _chain(task.get_coro()) if is_user_code(_file(each))]
            return describe(chain[-1]) if chain else None
    return None


def _chain(coroutine: object) -> list[FrameType]:
    """Return the frames of a coroutine and of what it awaits, the innermost last."""
    found: list[FrameType] = []
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        found.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    return found


def _key_of(frame: FrameType) -> str | None:
    made: Any = frame.f_locals.get("call") or frame.f_locals.get("command")
    return None if is_user_code(_file(frame)) else getattr(made, "key", None)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename
