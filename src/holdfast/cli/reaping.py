"""Have the runs of a dead worker process go on elsewhere at once."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable

from holdfast.errors import DatabaseError
from holdfast.store.port import Store

logger = logging.getLogger("holdfast.supervisor")


async def workers_of(store: Store, pid: int) -> list[str]:
    """Return the ids of the workers that a process of this machine has signed on."""
    host = socket.gethostname()
    workers = await store.list_workers()
    return [each.worker_id for each in workers if each.pid == pid and each.hostname == host]


async def reap_process(store: Store, pid: int) -> list[str]:
    """Sign off the workers of a process of this machine that has died; return their ids."""
    named = await workers_of(store, pid)
    if not named:
        return []
    reaped, notices = await store.reap_workers(worker_ids=named)
    await store.notify(notices)
    return reaped


def reaper(store: Store) -> Callable[[int], Awaitable[None]]:
    """Return what a supervisor calls when a process died; without a database, silence decides."""

    async def reap(pid: int) -> None:
        try:
            await reap_process(store, pid)
        except DatabaseError as error:
            logger.warning("the runs of process %d wait for its silence: %s", pid, error)

    return reap
