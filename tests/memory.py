"""The tests' files are kept in memory where there is room: a database is hundreds of small files.

Nothing that the tests kill is the machine itself, so files in memory outlive it as others do.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = Path("/dev/shm")
NEEDED_BYTES = 4 << 30  # a session uses 1 GB
ROOT = "PYTEST_DEBUG_TEMPROOT"  # pytest's own name for where its temporary folders are


class FilesInMemory:
    """A folder in memory for the temporary folders of one session of tests."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def begin(self) -> None:
        """Make the folder, unless memory is short or the environment says where files are to be."""
        if ROOT in os.environ or min(_free_bytes(), _available_bytes()) < NEEDED_BYTES:
            return
        _remove_abandoned()
        self._folder = FOLDER / f"holdfast-tests-{os.getpid()}"
        self._folder.mkdir(mode=0o755)
        os.environ[ROOT] = str(self._folder)

    def end(self) -> None:
        """Give the memory back."""
        if self._folder is not None:
            del os.environ[ROOT]
            shutil.rmtree(self._folder, ignore_errors=True)


def _free_bytes() -> int:
    return shutil.disk_usage(FOLDER).free if os.access(FOLDER, os.W_OK) else 0


def _available_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) << 10 if sizes else 0


def _remove_abandoned() -> None:
    """Remove the folders of sessions that were killed."""
    for folder in FOLDER.glob("holdfast-tests-*"):
        if not Path("/proc", folder.name.rpartition("-")[2]).exists():
            shutil.rmtree(folder, ignore_errors=True)
