"""A worker as a process of its own: started, frozen, killed and observed from outside."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.database.embedded.account import Account  # peers have no holdfast


class WorkerProcess:
    """One worker and whatever processes it starts; they share a process group.

    `environment` is added to that of this process; root may run it as another account.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        self._command = command
        self._log = log
        self._environment = environment
        self._account = account if account is not None and account.switches else None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WorkerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process; its output goes to the log file."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=None if self._environment is None else {**os.environ, **self._environment},
                user=None if self._account is None else self._account.uid,
                group=None if self._account is None else self._account.gid,
                extra_groups=None if self._account is None else [],
            )

    @property
    def pid(self) -> int:
        """The id of the process, which is that of its group."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill the group at once (SIGKILL) and wait for its end. Idempotent."""
        if self._process is None:
            return
        self._send(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def terminate(self) -> None:
        """Ask the group to end in good order (SIGTERM)."""
        self._send(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self._process is not None
        return self._process.wait(60)

    def freeze(self) -> None:
        """Stop the group where it stands, so that work can be queued up before it."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen group continue."""
        self._send(signal.SIGCONT)

    def check(self) -> None:
        """Raise RuntimeError if the worker has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            tail = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the worker ended by itself, see {self._log}:\n{tail}")

    def cpu_seconds(self) -> float:
        """Return the processor time that the group has used so far."""
        assert self._process is not None
        return cpu_seconds(group=self._process.pid)

    def memory_bytes(self) -> int:
        """Return the resident memory of the group."""
        assert self._process is not None
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(f[21]) for _, f in _stats() if int(f[2]) == self._process.pid) * page

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def several(command: list[str], processes: int) -> list[str]:
    """Return a command that runs another one so many times at once, the same for every engine."""
    return together([command] * processes)


def together(commands: Sequence[list[str]]) -> list[str]:
    """Return a command that runs all of these at once."""
    if len(commands) == 1:
        return commands[0]
    return ["sh", "-c", "".join(f"{shlex.join(each)} & " for each in commands) + "wait"]


def cpu_seconds(*, group: int = -1, process: int = -1) -> float:
    """Return the processor time of the processes of a group, or of a process and its children.

    The kernel counts it in nanoseconds for each thread. Children that have ended do not count.
    """
    used = 0
    for folder, fields in _stats():
        if int(fields[2]) == group or process in (int(folder.name), int(fields[1])):
            for thread in folder.glob("task/*/schedstat"):
                with suppress(OSError):  # ended in between
                    used += int(thread.read_text().split()[0])
    return used / 1e9


def _stats() -> list[tuple[Path, list[str]]]:
    """Return of each process its folder and the fields of its `stat` after the name."""
    found: list[tuple[Path, list[str]]] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended in between
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found.append((entry, fields))
    return found
