"""The code that a thread executes now, for the watchdog and tests: it may hold an event loop."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Final, NamedTuple
from uuid import UUID

from holdfast.runtime.loop.loop import WorkflowLoop

_DRAIN: Final = WorkflowLoop.drain.__code__
_DROP: Final = WorkflowLoop._drop_code.__code__  # pyright: ignore[reportPrivateUsage]
_STANDARD: Final = os.path.dirname(os.__file__)
_OWN: Final = __name__.partition(".")[0]
_DEBUGGERS: Final = frozenset(
    {"bdb", "pdb", "ipdb", "pudb", "debugpy", "pydevd", "_pydevd_bundle", "IPython"}
)


class Hold(NamedTuple):
    """The code that a thread executes.

    `loop`, `run_id` and `name` (the workflow's) are those of the run, None outside of workflow
    code. `place` is the line of the user's code. `debugged` says that a debugger has stopped the
    thread.
    """

    loop: WorkflowLoop | None
    run_id: UUID | None
    name: str
    place: str
    debugged: bool

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.name})"


def find_hold(thread: int) -> Hold:
    """Return what a thread of this process executes now; safe to call from any thread."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    loop, place, debugged = None, "", False
    while frame is not None and loop is None:
        if frame.f_code in (_DRAIN, _DROP):
            loop = frame.f_locals["self"]
        else:
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            debugged = debugged or package in _DEBUGGERS
            if not place and package != _OWN and not _is_library(frame):
                place = _describe(frame)
        frame = frame.f_back
    info: Any = None if loop is None else getattr(loop.caller, "info", None)
    run_id, name = (None, "") if info is None else (info.run_id, info.name)
    return Hold(loop, run_id, name, place or "code that cannot be seen", debugged)


def held_too_long(loop: WorkflowLoop, place: str) -> str:
    """Return why a run is stuck whose code has held its thread longer than its app allows."""
    return (
        f"its code has held the worker for {loop.limit_seconds:g} s without an await that "
        f"waits, at {place}: move the work into a step"
    )


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((_STANDARD, "<frozen")) or "site-packages" in file


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    return f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}'
