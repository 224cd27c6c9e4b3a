"""Find calls that workflow code must not make: clocks, chance, blocking ones, foreign locks.

A replay would get other values from clocks and random numbers: such a call counts if it is written
in the user's own code. A blocking call counts if the user's code makes it through a library, too;
one of logging or of a debugger does not count. Python's profiling hook sees the calls. It is set
only while workflow code runs; it is slow, so only tests and `holdfast dev` use it.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import random
import secrets
import socket
import ssl
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, cast

from holdfast.runtime.loop.user_code import describe, is_user_code

_CLOCKS: Final = {time.time: "time.time()", time.time_ns: "time.time_ns()"}
_DATES: Final = frozenset({"now", "utcnow", "today"})
_SOURCE: Final = random.random.__self__  # type: ignore[attr-defined]  # that the module's functions share
_INSTEAD: Final = {
    "time": "ctx.time()",
    "datetime": "ctx.now()",
    "date": "ctx.now().date()",
    "random": "ctx.random",
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

_SECURE: Final = cast("type", vars(vars(ssl)["_ssl"])["_SSLSocket"])

# Calls that hold the thread, by the name of the function in C that waits.
_BLOCKING: Final[Mapping[str, tuple[type | None, str]]] = {
    "sleep": (None, "time.sleep()"),
    "getaddrinfo": (None, "a look-up of a host"),
    "fork_exec": (None, "a subprocess"),
    "posix_spawn": (None, "a subprocess"),
    "system": (None, "os.system()"),
    "do_handshake": (_SECURE, "a socket"),
    "read": (_SECURE, "a socket"),
} | dict.fromkeys(
    ("connect", "accept", "recv", "recv_into", "recvfrom", "send", "sendall", "sendto"),
    (socket.socket.__base__, "a socket"),
)
_MODULES: Final = frozenset({"time", "_socket", "posix", "nt", "_posixsubprocess", "_winapi"})
_LEFT_ALONE: Final = frozenset({"logging", "bdb", "pdb", "pydevd", "debugpy"})

_SHARED: Final[tuple[type[Any], ...]] = (
    asyncio.Lock,
    asyncio.Event,
    asyncio.Condition,
    asyncio.Semaphore,
    asyncio.Queue,
    asyncio.Barrier,
)
_MADE: Final = frozenset(vars(each)["__init__"].__code__ for each in _SHARED)
_WAITS: Final = frozenset(
    method.__code__
    for each in _SHARED
    for name, method in vars(each).items()
    if inspect.iscoroutinefunction(method) and name[:1] != "_"
)


# Nearly all calls are of other names, and what else tells calls apart takes much longer.
_NAMES_IN_C: Final = _DATES.union(
    _BLOCKING, vars(random.Random.__base__), (clock.__name__ for clock in _CLOCKS)
)
_NAMES: Final = frozenset(code.co_qualname for code in (*_CODES, *_MADE, *_WAITS))


class Watch:
    """Reports calls in workflow code that it must not make, with their line."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._made: weakref.WeakSet[object] = weakref.WeakSet()  # locks and such of this code

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

    @contextmanager
    def paused(self) -> Generator[None]:
        """Do not watch meanwhile: what is called is not the workflow's code."""
        if sys.getprofile() != self._see:
            yield
            return
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            if arg.__name__ not in _NAMES_IN_C:
                return
            if arg.__name__ in _BLOCKING and (what := _blocking(arg)) is not None:
                self._see_blocking(what, frame)
            name, caller = _builtin(arg), frame
        elif event != "call" or frame.f_code.co_qualname not in _NAMES:
            return
        elif frame.f_code in _MADE:
            self._made.add(frame.f_locals["self"])
            return
        elif frame.f_code in _WAITS:
            self._see_shared(frame)
            return
        elif frame.f_code in _CODES:
            name, caller = _function(frame), frame.f_back or frame
        else:
            return
        if name is None:
            return
        while caller.f_code.co_filename[:1] == "<" and caller.f_back is not None:
            caller = caller.f_back  # generated code, for example the __init__ of a dataclass
        if is_user_code(caller.f_code.co_filename):
            instead = _INSTEAD.get(name.partition(".")[0])
            self.tell(
                f"{describe(caller)} calls {name} in a workflow: a replay gets another value; "
                + (f"use {instead}, or do it in a step" if instead else "do it in a step")
            )

    def _see_blocking(self, what: str, frame: FrameType) -> None:
        caller = _user_frame(frame)
        if caller is not None:
            instead = "use asyncio.sleep()" if what == "time.sleep()" else "do it in a step"
            self.tell(
                f"{describe(caller)} blocks on {what} in a workflow: it holds the worker and all "
                f"its other runs meanwhile; {instead}"
            )

    def _see_shared(self, frame: FrameType) -> None:
        used = frame.f_locals["self"]
        caller = None if used in self._made else _user_frame(frame)
        if caller is not None:
            self.tell(
                f"{describe(caller)} uses an asyncio.{type(used).__name__} in a workflow that "
                "this run has not made: a replay and other runs, each with a loop of its own, "
                "find it in another state; make it inside the workflow, or share it in steps only"
            )


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame that makes a call; None for calls of logging and debuggers."""
    found: FrameType | None = None
    while frame is not None and frame.f_code.co_name != "drain":
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _LEFT_ALONE:
            return None
        if found is None and is_user_code(frame.f_code.co_filename):
            found = frame
        frame = frame.f_back
    return found


def _blocking(called: Any) -> str | None:
    kind, what = _BLOCKING[called.__name__]
    owner = getattr(called, "__self__", None)
    if kind is not None:
        return what if isinstance(owner, kind) else None
    return what if getattr(owner, "__name__", None) in _MODULES else None


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
