"""PostgreSQL servers of the script's own: killed, restarted, copied to a standby, promoted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from benchmarks.worker import WorkerProcess
from holdfast.database.embedded.account import Account, account_for
from holdfast.database.embedded.binaries import binaries_for
from holdfast.database.embedded.processes import kill_orphans

T = TypeVar("T")

USER = DATABASE = "holdfast"
PATIENCE_SECONDS = 120.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "wal_keep_size": "256MB",
    "lc_messages": "C",
    "timezone": "UTC",
    "jit": "off",
}
interrupted = threading.Event()  # nothing is to be waited for any more
INITDB = (
    "--auth=trust",
    "--encoding=UTF8",
    "--no-locale",
    "--no-instructions",
    "--data-checksums",
    "--no-sync",
)


@dataclass
class Postgres:
    """A server at a port of 127.0.0.1, whose files are below a folder.

    The folder and those above must be open to other accounts if root calls: PostgreSQL refuses to
    be root, and is run as another.
    """

    folder: Path
    port: int
    binaries: Path | None = None
    process: WorkerProcess | None = field(default=None, init=False)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def host(self) -> str:
        """The host and the port, as in a URL."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql://{USER}@{self.host}/{DATABASE}"

    def create(self) -> None:
        """Make an empty cluster."""
        self.prepare()
        self._run("initdb", "-D", self.data, f"--username={USER}", *INITDB)

    def copy(self, primary: Postgres) -> None:
        """Make a standby of a server that runs."""
        self.prepare()
        source = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.port}"
        self._run(
            "pg_basebackup",
            "-D",
            self.data,
            "-d",
            source,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        )

    def start(self, **settings: str) -> None:
        """Start it, and wait until it answers."""
        kill_orphans(self.data)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        account = self._account()
        options = {"port": str(self.port), **SETTINGS, **settings}
        command = [str(self._binaries(account) / "postgres"), "-D", str(self.data)]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.process = WorkerProcess(command, self.folder / "log", account=account)
        self.process.start()
        until(self._answers, f"PostgreSQL answers at port {self.port}", self.process.check)

    def stop(self) -> None:
        """Shut it down, sessions or not (a fast shutdown), and wait for its end."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGINT)
        self.process.wait()

    def kill(self) -> None:
        """Kill all of its processes, as if its machine had failed."""
        if self.process is not None:
            self.process.kill()
        kill_orphans(self.data)

    def freeze(self) -> None:
        """Stop all of its processes where they stand: connections stay open, nothing answers."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or has none
                if os.path.samefile(entry / "cwd", self.data):
                    os.kill(int(entry.name), signal.SIGSTOP)

    def promote(self) -> None:
        """Make a standby the primary, and wait until it accepts writes."""
        self.ask("select pg_promote(true, 60)")

    def ask(self, statement: str) -> Any:
        """Run a statement and return the first value of its answer, if there is one."""
        return next(iter(self.column(statement)), None)

    def column(self, statement: str) -> list[Any]:
        """Run a statement and return the first value of each of its rows."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return [row[0] for row in cursor] if cursor.description else []

    def _answers(self) -> bool:
        try:
            self.ask("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def prepare(self) -> None:
        """Make the folder, which belongs to the account, and remove data of before."""
        account = self._account()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        account.adopt(self.folder)
        account.run(["rm", "-rf", str(self.data)], output=subprocess.DEVNULL)

    def _account(self) -> Account:
        return account_for(self.data)

    def _binaries(self, account: Account) -> Path:
        return self.binaries or binaries_for(account)

    def _run(self, program: str, *arguments: object) -> None:
        account = self._account()
        command = [str(self._binaries(account) / program), *map(str, arguments)]
        done = account.run(command, output=subprocess.PIPE)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()}")


def until(look: Callable[[], T], what: str, check: Callable[[], None] = lambda: None) -> T:
    """Wait until `look` returns something true; `check` raises if that can no longer be."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := look()):
        check()
        if interrupted.is_set():
            raise RuntimeError(f"interrupted before {what}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{PATIENCE_SECONDS:g} s were not enough until {what}")
        time.sleep(0.02)
    return seen
