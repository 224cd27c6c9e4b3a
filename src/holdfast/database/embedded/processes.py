"""Which processes serve a data directory.

A server's processes stay in its data directory, so on Linux their working directory tells
them from another process that got the number of a dead one, and from a zombie.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_HAS_PROC = Path("/proc/self/cwd").exists()


def recorded_pid(data: Path) -> int | None:
    """Read the postmaster's number from its pid file, whether it lives or not."""
    try:
        return int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def live_pid(data: Path) -> int | None:
    """Return the number of the postmaster that serves this directory now, if one does."""
    pid = recorded_pid(data)
    return pid if pid is not None and serves(pid, data) else None


def serves(pid: int, data: Path) -> bool:
    """Return True if this process lives and works in the data directory."""
    if _HAS_PROC:
        return _works_in(_PROC / str(pid), data)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_orphans(data: Path) -> None:
    """End what is left of a server whose postmaster died; recovery makes up for it.

    A new postmaster would otherwise be refused until the last of them has noticed.
    """
    if not _HAS_PROC:
        return
    for entry in _PROC.iterdir():
        is_server = entry.name.isdigit() and _works_in(entry, data) and _is_postgres(entry)
        if is_server:
            with suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)


def _works_in(entry: Path, data: Path) -> bool:
    try:
        return os.path.samefile(entry / "cwd", data)
    except OSError:
        return False


def _is_postgres(entry: Path) -> bool:
    try:
        return (entry / "comm").read_text().startswith("postgres")
    except OSError:
        return False
