"""Two sessions that meet at a lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hand import Hand

T = TypeVar("T")
DEADLINE_SECONDS = 60.0
AT_A_LOCK = (
    "select exists (select from pg_stat_activity"
    " where datname = current_database() and wait_event_type = 'Lock')"
)
ASLEEP = (
    "select exists (select from pg_stat_activity"
    " where datname = current_database() and wait_event = 'PgSleep')"
)


def while_blocked(
    watcher: Hand, blocked: Callable[[], T], release: Callable[[], object], at: str = AT_A_LOCK
) -> T:
    """Begin a call, release what it waits for as soon as it stands at a lock, return its answer."""
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(blocked)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not watcher.value(at):
            assert not call.done(), f"it waits for nothing: {call.result()}"
            assert time.monotonic() < deadline, "it does not come to wait"
            time.sleep(0.005)
        release()
        return call.result(DEADLINE_SECONDS)
