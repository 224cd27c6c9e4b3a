"""Ports for programs that cannot choose one themselves, and one at which nobody listens."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_PATIENCE_SECONDS = 60.0
_TRIES = 5


def serve(start: Callable[[int], subprocess.Popen[bytes]]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program on a free port; return it once it listens, with the port.

    Another program may take the port first: then it ends, and is started on another port.
    """
    for _ in range(_TRIES):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = start(port)
        if await_listening(process, port):
            return process, port
        process.kill()
        process.wait()
    raise AssertionError(f"it ended, or did not listen, {_TRIES} times: {process.args!r}")


def await_listening(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a program listens; return False if it ends or takes too long."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as link:
            if link.connect_ex(("127.0.0.1", port)) == 0:
                return process.poll() is None
        time.sleep(0.02)
    return False


@contextmanager
def refusing_port() -> Generator[int]:
    """Hold a port at which nobody listens, for the length of the block."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
