"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

SYNCS = 200


def describe(directory: Path) -> dict[str, str]:
    """Describe the machine and how long its disk takes to keep one page for good."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fsync of 8 kB, p50": f"{_sync_milliseconds(directory):.2f} ms",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _sync_milliseconds(directory: Path) -> float:
    """Time fdatasync after an overwrite in place, as PostgreSQL's log does it."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(8192 * SYNCS))
        file.flush()
        os.fsync(file.fileno())
        for n in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\1" * 8192, n * 8192)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)
