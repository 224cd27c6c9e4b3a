"""What a measurement used: processor time of each side, and what the database waited for."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from benchmarks.worker import WorkerProcess, cpu_seconds

PAUSE_SECONDS = 0.02  # between two looks
BUSY = "on a processor"  # what a backend does that works and waits for nothing

LOOK = """
select coalesce(wait_event_type || ':' || wait_event, $1) from pg_stat_activity
where datname = any ($2) and backend_type = 'client backend' and state = 'active'
    and pid <> pg_backend_pid()
"""


@dataclass
class Usage:
    """What was used over some seconds.

    `cores` says how many cores worth of processor time each side used: workers, server, client,
    and others on this machine. `waits` says how many connections of the database did what, on
    average, seen in so many `looks`, each of which is a transaction.
    """

    seconds: float = 0.0
    cores: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    looks: int = 0


@asynccontextmanager
async def watched(url: str, server_pid: int, worker: WorkerProcess | None) -> AsyncIterator[Usage]:
    """Watch a server, a worker and this process; what is given has the usage at the end.

    The URL may be several, separated by spaces: of databases of one server.
    """
    urls = url.split()
    names = [urlsplit(each).path[1:] for each in urls]

    def used() -> dict[str, float]:
        return {
            "workers": 0.0 if worker is None else worker.cpu_seconds(),
            "server": cpu_seconds(process=server_pid) if server_pid else 0.0,
            "client": time.process_time(),
            "machine": _busy_seconds(),
        }

    usage, connection, seen = Usage(), await asyncpg.connect(urls[0]), Counter[str]()

    async def look() -> None:
        while True:
            seen.update(row[0] for row in await connection.fetch(LOOK, BUSY, names))
            usage.looks += 1
            await asyncio.sleep(PAUSE_SECONDS)

    before, began = used(), time.perf_counter()
    looking = asyncio.create_task(look())
    try:
        yield usage
    finally:
        usage.seconds = time.perf_counter() - began
        after = used()
        looking.cancel()
        await asyncio.wait([looking])
        await connection.close()
    cores = {side: (after[side] - before[side]) / usage.seconds for side in before}
    whole = cores.pop("machine")
    cores["others"] = max(0.0, whole - sum(cores.values()))
    usage.cores = {side: round(used, 3) for side, used in cores.items()}
    looks = max(1, usage.looks)
    usage.waits = {what: round(count / looks, 3) for what, count in seen.most_common()}


def _busy_seconds() -> float:
    """Return how long the processors of this machine were busy, all together."""
    first = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _, _, *interrupts = map(int, first.split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
