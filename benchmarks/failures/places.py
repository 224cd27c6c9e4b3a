"""Where the programs of one scenario run: their folder, their ports, and their end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from benchmarks.failures.app import TRACES
from benchmarks.failures.postgres import Postgres
from benchmarks.worker import WorkerProcess
from holdfast.database.embedded.account import Account

HOLDFAST = (sys.executable, "-m", "holdfast")
APP = "benchmarks.failures.app:app"


class Place(ExitStack):
    """A folder of a scenario's own; what was started in it is killed with it."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-failures-"))
        self.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)  # PostgreSQL may run as another account
        self.traces = self.folder / "traces"
        return self

    def postgres(self, name: str = "postgres") -> Postgres:
        """Return a server that has not been created; it is killed with the place."""
        server = Postgres(self.folder / name, free_port())
        self.callback(server.kill)
        return server

    def program(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> WorkerProcess:
        """Start a program that is killed with the place."""
        process = WorkerProcess(command, self.folder / f"{name}.log", environment, account)
        process.start()
        self.callback(process.kill)
        return process

    def worker(self, url: str, *options: str, name: str = "worker") -> WorkerProcess:
        """Start a worker of the load's app."""
        command = [*HOLDFAST, "worker", APP, "--database", url, *options]
        return self.program(name, command, {TRACES: str(self.traces)})

    def log(self, name: str) -> str:
        """Return what a program has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


def migrate(url: str) -> None:
    """Install the schema."""
    subprocess.run([*HOLDFAST, "migrate", "--database", url], check=True, capture_output=True)


def free_port() -> int:
    """Return a port at which nobody listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
