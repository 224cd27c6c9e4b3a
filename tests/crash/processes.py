"""Processes that are to be killed: forks of one that has imported everything, as there are many."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from multiprocessing.connection import Connection
from typing import Any

PATIENCE_SECONDS = 120.0

WORK = (
    *("worker", "sweeper", "payload_worker", "publishing", "streaming", "booking"),
    "stale_transactions",
    "test_kills_starting",
    "carts",
)

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([f"{__package__}.{name}" for name in WORK])


def points_of(
    work: Callable[..., Coroutine[Any, Any, int]], *given: object, env: Mapping[str, str] = {}
) -> int:
    """Do work that may kill its process; return how many points it passed, 0 if it died."""
    here, there = processes.Pipe(duplex=False)
    with here:
        process = processes.Process(target=_report, args=(there, dict(env), work, given))
        process.start()
        there.close()
        process.join(PATIENCE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"it has not ended: {work.__name__}{given}")
        assert process.exitcode in (0, -signal.SIGKILL), "it failed: see what it has written"
        points: int = here.recv() if process.exitcode == 0 else 0
        return points


def _report(
    there: Connection,
    env: Mapping[str, str],
    work: Callable[..., Coroutine[Any, Any, int]],
    given: tuple[object, ...],
) -> None:
    os.environ.update(env)
    there.send(asyncio.run(work(*given)))
