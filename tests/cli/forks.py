"""Forks of a process that has imported `holdfast`: hundreds of commands start, each for half a
second otherwise.

Each is a process of its own, which can be killed, and does what `python -m holdfast` does. Three
things differ: its parent is the process that has imported all, its hash seed is 0, and at its end
the interpreter does not take apart what was imported. This file is also the program of that parent.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

_AT_START = ("PYTHON", "LC_", "LANG", "LD_")  # what a program reads as it starts, and never again
_SEED = "PYTHONHASHSEED"
_ENVIRONMENT = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
_ENVIRONMENT[_SEED] = "0"
_LARGEST = 100_000  # bytes of a request
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
    request = json.dumps(
        {
            "arguments": list(arguments),
            "env": {_SEED: "0", **env},
            "cwd": str(cwd or Path.cwd()),
            "new_session": new_session,
        }
    ).encode()
    return Fork(request, streams) if len(request) <= _LARGEST else None


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {_SEED: "0"} | {name: env[name] for name in env if name.startswith(_AT_START)}


_starting = threading.Lock()


@cache
def _parent() -> socket.socket:
    """Start the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
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
                    return _become(json.loads(request), *fds)
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


def _become(request: dict[str, Any], end: int, *streams: int) -> dict[str, Any]:
    """Be as a process that has just started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.close(end)
    for fd, given in enumerate(streams):
        os.dup2(given, fd)
        os.close(given)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _reopened(getattr(sys, name), fd)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.path[0] = os.getcwd()
    sys.argv = ["holdfast", *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    return request


def _reopened(stream: TextIO, fd: int) -> TextIO:
    """Return a stream for what the descriptor is now."""
    mode, lines = ("w", fd == 2 or os.isatty(fd)) if fd else ("r", False)
    return open(fd, mode, 1 if lines else -1, stream.encoding, stream.errors, closefd=False)


def _run() -> None:
    """Do what `python -m holdfast` does, to its end.

    The interpreter would write to all pages that are shared with the parent: ten times the work of
    the fork.
    """
    code: object = None
    try:
        runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
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
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    gc.freeze()
    if Parent(socket.socket(fileno=int(sys.argv[1]))).serve() is not None:
        _run()
