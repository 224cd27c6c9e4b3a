"""Set up, start and stop the server of one data home.

Callers hold the home's start lock and pass its descriptor on: the programs that set up and
start the server inherit it. So no caller starts them a second time after one was killed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from holdfast.database.embedded import processes
from holdfast.database.embedded.account import Account, account_for
from holdfast.database.embedded.binaries import binaries_for
from holdfast.database.embedded.probe import Answer, ask
from holdfast.errors import EmbeddedServerError

SOCKET = ".s.PGSQL.5432"

_POLL_SECONDS = 0.02
_REFUSED_SECONDS = 5.0
_SILENT_SECONDS = 10.0
_RECOVERY_SECONDS = 300.0
_SHUTDOWN_SECONDS = 30.0
_LOG_BYTES = 16 << 20

_INITDB = (
    "--username=holdfast",
    # Only those reach the socket who may enter the data directory.
    "--auth=trust",
    "--encoding=UTF8",
    "--no-locale",
    "--no-instructions",
)

# Durability is PostgreSQL's default and stands here so that no file can turn it off.
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "listen_addresses": "",
    # Relative to the data directory: the server needs no right to the directories above.
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "log_checkpoints": "off",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The server's files in one data home."""

    home: Path
    binaries: Path | None = None

    @property
    def data(self) -> Path:
        """The server's data directory; its socket lies in it."""
        return self.home / "postgres"

    @property
    def unfinished(self) -> Path:
        """What the data directory is called while it is made."""
        return self.home / "postgres.new"

    @property
    def log(self) -> Path:
        """The file that the server writes its messages to."""
        return self.home / "postgres.log"

    def create(self, lock: int) -> None:
        """Make the data directory unless it is there; half a directory is never seen."""
        if self.data.exists():
            return
        account = account_for(self.data)
        binaries = self.binaries or binaries_for(account)
        unfinished = self.unfinished
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        account.adopt(unfinished)
        with account.location_of(unfinished) as location:
            kept = (lock, *location.descriptors)
            self._make(account, [str(binaries / "initdb"), "-D", location.path, *_INITDB], kept)
            self._make(
                account,
                [str(binaries / "postgres"), "--single", "-D", location.path, "postgres"],
                kept,
                statements="create database holdfast\n",
            )
        unfinished.rename(self.data)

    def start(self, socket: str, lock: int) -> None:
        """Bring the server up unless it answers; finish or replace a start that was cut off.

        Raises:
            EmbeddedServerError: it does not come up; the message carries the log's end.
        """
        began = time.monotonic()
        refused = 0.0
        while (answer := ask(socket)) is not Answer.READY:
            waited = time.monotonic() - began
            if waited > _RECOVERY_SECONDS or refused > _REFUSED_SECONDS:
                raise EmbeddedServerError(
                    f"the embedded PostgreSQL in {self.home} does not start; "
                    f"the end of {self.log}:\n{self._log_tail()}"
                )
            pid = processes.live_pid(self.data)
            if pid is None:
                self._clear_remains()
                refused = 0.0 if self._launch(lock) else waited
            elif answer is Answer.NOBODY and waited > _SILENT_SECONDS:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Shut the server down: open sessions end, nothing that was committed is lost."""
        pid = processes.live_pid(self.data)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if pid is None:
                return
            os.kill(pid, number)
            deadline = time.monotonic() + _SHUTDOWN_SECONDS
            while pid is not None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                pid = processes.live_pid(self.data)

    def _make(
        self, account: Account, command: list[str], kept: tuple[int, ...], statements: str = ""
    ) -> None:
        with tempfile.TemporaryFile() as source:
            source.write(statements.encode())
            source.seek(0)
            result = account.run(command, output=PIPE, source=source.fileno(), descriptors=kept)
        if result.returncode != 0:
            raise EmbeddedServerError(
                f"no database could be made in {self.home}: {Path(command[0]).name} said\n"
                f"{result.stderr.strip() or result.stdout.strip()}"
            )

    def _clear_remains(self) -> None:
        """Remove what a killed server left that would have its successor refused."""
        processes.kill_orphans(self.data)
        # Both name the dead postmaster, whose number may be a zombie's or a stranger's now.
        for name in ("postmaster.pid", f"{SOCKET}.lock"):
            (self.data / name).unlink(missing_ok=True)

    def _launch(self, lock: int) -> bool:
        """Start the postmaster as a child of no client. Return True if it came up."""
        account = account_for(self.data)
        binaries = self.binaries or binaries_for(account)
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.old"))
        with self.log.open("a") as log, account.location_of(self.data) as location:
            account.adopt(self.log)
            command = [str(binaries / "pg_ctl"), "start", "--wait", "--silent"]
            command += ["-D", location.path, "-o", shlex.join(options)]
            # Its input is the lock, which it holds until the server is up even if this process
            # is killed; the server itself gets an empty input from it, and no lock.
            result = account.run(
                command, output=log.fileno(), source=lock, descriptors=location.descriptors
            )
        return result.returncode == 0

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-10:])
