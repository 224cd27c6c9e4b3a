"""Forks of a process that has imported `holdfast`: hundreds of commands start, each for half a
second otherwise.

Each is a process of its own, which can be killed, and does what `python -m holdfast` does. Three
things differ: its parent is the process that has imported all, its hash seed is 0, and at its end
the interpreter does not take apart what was imported. This file is also the program of that parent.

What a command itself starts (`dev`, `worker --processes`) are forks, too, and children of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

_AT_START = ("PYTHON", "LC_", "LANG", "LD_")  # what a program reads as it starts, and never again
_SEED = "PYTHONHASHSEED"
_ENVIRONMENT = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
_ENVIRONMENT[_SEED] = "0"
_LARGEST = 100_000  # bytes of a request
_STARTERS = {"demo", "dev", "--processes"}  # in the words of commands that start others
_CHILD_SUBREAPER = (
    36  # of prctl: a descendant that loses its parent becomes a child of this process
)
_USUAL = (
    *(
        f"holdfast.cli.process.{name}"
        for name in ("catalogue", "logs", "once", "reloading", "worker")
    ),
    *("holdfast.cli.connecting", "holdfast.docs", "holdfast.retention.archive"),
    *("holdfast.server.running", "holdfast.server.server", "holdfast.telemetry.listener"),
    *("uvicorn.protocols.http.httptools_impl", "uvloop", "watchfiles"),
)


class Fork:
    """A running command, as `subprocess.Popen` would be of it."""

    def __init__(self, request: bytes, streams: Sequence[int]) -> None:
        self.returncode: int | None = None
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            with _starting:
                parent = _parent()
            socket.send_fds(parent, [request], [theirs.fileno(), *streams])
        self.pid = int(self._told())

    def _told(self) -> bytes:
        told = self._end.recv(64)
        assert told, "the process of tests/cli/forks.py has ended: see what it has written"
        return told

    def poll(self) -> int | None:
        """Return the exit code, or minus the number of a signal; None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = int(self._told())
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    arguments: Sequence[str],
    env: Mapping[str, str],
    streams: Sequence[int],
    cwd: Path | None = None,
    new_session: bool = False,
) -> Fork | None:
    """Start a command; `streams` are the descriptors of its stdin, stdout and stderr.

    Return None if a fork would not be what a new process is: its environment has what the
    interpreter reads as it starts, or this system cannot do it.
    """
    if not hasattr(os, "pidfd_open") or _read_at_start(env) != _read_at_start(_ENVIRONMENT):
        return None
    here = str(cwd or Path.cwd())
    request = _request(["holdfast", *arguments], {_SEED: "0", **env}, here, new_session, [0, 1, 2])
    return Fork(request, streams) if len(request) <= _LARGEST else None


def _request(
    words: Sequence[str], env: Mapping[str, str], cwd: str, new_session: bool, fds: Sequence[int]
) -> bytes:
    """Ask for a fork; `fds` are what the descriptors that come with it are to be."""
    named = {
        "words": [os.fspath(word) for word in words],
        "env": env,
        "cwd": cwd,
        "new_session": new_session,
        "fds": fds,
    }
    return json.dumps(named).encode()


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    read = {name: env[name] for name in env if name.startswith(_AT_START)}
    for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        read.pop(name, None)  # a fork does these itself
    return {_SEED: "0"} | read


_starting = threading.Lock()


@cache
def _parent(*how: str) -> socket.socket:
    """Start the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno()), *how]
        process = subprocess.Popen(
            command, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Parent:
    """The process that forks. It has one thread, and no event loop."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Fork for each request: return it in the child, and None once no more will come."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._requests:
                    self._tell_end(key)
                    continue
                request, fds, _, _ = socket.recv_fds(self._requests, _LARGEST, 4)
                if not request:
                    return None
                if (pid := os.fork()) == 0:
                    self._forget()
                    os.close(fds[0])
                    return _become(json.loads(request), fds[1:])
                end = socket.socket(fileno=fds[0])
                for fd in fds[1:]:
                    os.close(fd)
                end.send(str(pid).encode())
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, end))

    def _tell_end(self, key: selectors.SelectorKey) -> None:
        pid, end = key.data
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        _, status = os.waitpid(pid, 0)
        with end, suppress(OSError):  # of a test that does not wait for it
            end.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _forget(self) -> None:
        """Close what a child has no use for."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                os.close(key.fd)
                key.data[1].close()
        self._selector.close()
        self._requests.close()


class Children:
    """Makes what this process starts forks, and its children as new processes would be.

    It may have threads and an event loop: a process of its own, without them, forks in its place.
    Where that one has ended, or cannot do it, new processes start.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._prctl = ctypes.CDLL(None).prctl
        self._new: Callable[..., int] = vars(subprocess)["_fork_exec"]

    def begin(self) -> None:
        vars(subprocess)["_fork_exec"] = self._start

    def end(self) -> None:
        vars(subprocess)["_fork_exec"] = self._new

    def _start(self, command: list[str], *how: Any) -> int:
        """Do what `_posixsubprocess.fork_exec` does: return the id of a new process."""
        kept, cwd, environment, stdin, stdout, stderr = (how[at] for at in (2, 3, 4, 5, 8, 10))
        errors, session = how[12], how[14]
        env = dict(os.environ)
        if environment is not None:
            env = dict(os.fsdecode(each).split("=", 1) for each in environment)
        if (words := _words(command)) and _read_at_start(env) == _read_at_start(_ENVIRONMENT):
            given = {at: at if fd < 0 else fd for at, fd in enumerate((stdin, stdout, stderr))}
            given |= {fd: fd for fd in kept if fd != errors}
            request = _request(words, env, os.fspath(cwd or Path.cwd()), session, list(given))
            if len(request) <= _LARGEST and (pid := self._fork(request, list(given.values()))):
                return pid
        return self._new(command, *how)

    def _fork(self, request: bytes, fds: Sequence[int]) -> int | None:
        """Ask for a fork, which is handed over to this process; return its id."""
        requests = self._connect()
        self._prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(requests, [request], fds)
            return int(requests.recv(64) or 0)
        except OSError:
            return None
        finally:
            self._prctl(_CHILD_SUBREAPER, 0, 0, 0, 0)


def _words(command: Sequence[str]) -> Sequence[str]:
    """Return the name of the module or of the file that a command runs, and what that is given."""
    if command[:2] == [sys.executable, "-m"] and command[2].startswith("holdfast"):
        return command[2:]
    is_file = command[0] == sys.executable and Path(*command[1:2]).suffix == ".py"
    return command[1:] if is_file and command[1] != __file__ else ()


@contextmanager
def forked_programs(*imported: str) -> Iterator[None]:
    """Let `holdfast` and files of Python be forks where `subprocess` starts them.

    What forks has imported these modules, too. It is the parent of no fork: this process is.
    """
    children = Children(partial(_parent, "children", *imported))
    children.begin()
    try:
        yield
    finally:
        children.end()


def _with_children(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request, and in each process that this one starts what that one is to be."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        theirs.close()
        Children(lambda: ours).begin()
        return request
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _serve_children(theirs)


def _serve_children(theirs: socket.socket) -> dict[str, Any]:
    """Fork for each request a process that becomes the asker's child: return the request in it."""
    while True:
        asked, fds, _, _ = socket.recv_fds(theirs, _LARGEST, 8)
        if not asked:
            os._exit(0)
        if (pid := os.fork()) == 0:
            between = os.getpid()
            if os.fork() != 0:
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0002)
            with theirs, suppress(OSError):  # of a parent that has been killed
                theirs.send(str(os.getpid()).encode())
            return _become(json.loads(asked), fds)
        os.waitpid(pid, 0)
        for fd in fds:
            os.close(fd)


def _become(request: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
    """Be as a process that has just started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    beyond = max(*fds, *request["fds"]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, beyond) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, given in zip(request["fds"], moved, strict=True):
        os.dup2(given, fd)
        os.close(given)
    sys.dont_write_bytecode = bool(request["env"].get("PYTHONDONTWRITEBYTECODE"))
    unbuffered = bool(request["env"].get("PYTHONUNBUFFERED"))
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _reopened(getattr(sys, name), fd)
        if fd and unbuffered:
            stream.reconfigure(line_buffering=False, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    file = sys.argv[0] if sys.argv[0].endswith(".py") else None
    sys.path[0] = os.path.dirname(os.path.realpath(file)) if file else os.getcwd()
    sys.orig_argv = [sys.executable, *(() if file else ("-m",)), *sys.argv]
    return request


def _reopened(stream: TextIO, fd: int) -> TextIO:
    """Return a stream for what the descriptor is now."""
    mode, lines = ("w", fd == 2 or os.isatty(fd)) if fd else ("r", False)
    return open(fd, mode, 1 if lines else -1, stream.encoding, stream.errors, closefd=False)


def _run(module: str) -> None:
    """Do what `python -m` does with a module, or `python` with a file, to its end.

    The interpreter would write to all pages that are shared with the parent: ten times the work of
    the fork.
    """
    code: object = None
    is_file = module.endswith(".py")
    if not is_file and not hasattr(sys.modules[module], "__path__"):
        del sys.modules[module]  # it will be `__main__`
    try:
        if is_file:
            main = sys.modules["__main__"] = ModuleType("__main__")
            main.__file__ = os.path.abspath(module)
            exec(compile(Path(module).read_bytes(), main.__file__, "exec"), vars(main))
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        raise SystemExit(code)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _import_all() -> None:
    import click

    from holdfast.cli.root import holdfast

    for name in holdfast.list_commands(click.Context(holdfast)):
        holdfast.get_command(click.Context(holdfast), name)
    for name in _USUAL:
        importlib.import_module(name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end it
    _import_all()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    of_children = bool(sys.argv[2:])
    request = _serve_children(requests) if of_children else Parent(requests).serve()
    if request is not None and _STARTERS.intersection(request["words"]):
        request = _with_children(request)
    if request is not None:
        _run(request["words"][0])
