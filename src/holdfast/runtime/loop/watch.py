"""Find calls of clocks and random numbers in workflow code: a replay would get other values.

Python's profiling hook sees the calls. It is set only while workflow code runs, and only calls that
are written in the user's own code count: not those of steps, libraries, asyncio or logging. The
hook is slow, so only tests and `holdfast dev` use it.
"""

from __future__ import annotations

import datetime
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from holdfast.runtime.loop.user_code import describe, is_user_code

_CLOCKS: Final = {time.time: "time.time()", time.time_ns: "time.time_ns()"}
_DATES: Final = frozenset({"now", "utcnow", "today"})
_SOURCE: Final = random.random.__self__  # type: ignore[attr-defined]  # that the module's functions share
_INSTEAD: Final = {
    "time": "ctx.time()",
    "datetime": "ctx.now()",
    "date": "ctx.now().date()",
    "random": "ctx.random",
    "secrets": "a step",
    "uuid": "ctx.uuid()",
}


def _codes() -> dict[CodeType, str]:
    named = {f"uuid.{name}": getattr(uuid, name, None) for name in ("uuid1", "uuid4", "uuid7")}
    named |= {f"random.{name}": each for name, each in vars(random.Random).items()}
    named |= {f"secrets.{name}": getattr(secrets, name) for name in secrets.__all__}
    return {
        each.__code__: f"{name}()"
        for name, each in named.items()
        if isinstance(each, FunctionType) and "._" not in name
    }


_CODES: Final = _codes()


class Watch:
    """Reports calls of clocks and random numbers in workflow code, with their line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def begin(self) -> bool:
        """Watch from now on, and return True; False if another profiler is active."""
        if sys.getprofile() is not None:
            return False
        sys.setprofile(self._see)
        return True

    @staticmethod
    def end() -> None:
        """Stop watching."""
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            name, caller = _builtin(arg), frame
        elif event == "call" and frame.f_code in _CODES:
            name, caller = _function(frame), frame.f_back or frame
        else:
            return
        if name is None:
            return
        while caller.f_code.co_filename[:1] == "<" and caller.f_back is not None:
            caller = caller.f_back  # generated code, for example the __init__ of a dataclass
        if is_user_code(caller.f_code.co_filename):
            instead = _INSTEAD[name.partition(".")[0]]
            self._tell(
                f"{describe(caller)} calls {name} in a workflow: a replay gets another value; "
                f"use {instead}, or do it in a step"
            )


def _builtin(called: Any) -> str | None:
    owner, name = getattr(called, "__self__", None), called.__name__
    if isinstance(owner, type):
        if name in _DATES and issubclass(owner, datetime.date):
            return f"{owner.__name__}.{name}()"
        return None
    if owner is _SOURCE:
        return f"random.{name}()"
    return next((text for clock, text in _CLOCKS.items() if called is clock), None)


def _function(frame: FrameType) -> str | None:
    name = _CODES[frame.f_code]
    if name.startswith("random.") and frame.f_locals.get("self") is not _SOURCE:
        return None  # a generator that the code made itself may have a fixed seed
    return name
