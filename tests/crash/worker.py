"""A worker process of the crash suite: quick leases, and a switch that kills it at a store call.

    python -m tests.crash.worker URL [--queue Q] [--kill-at N]

Odd points lie before a store call, even ones after it, before its answer is seen.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions
from tests.crash.workload import app


class KillSwitch:
    """A store that kills the process at the n-th point between its calls."""

    def __init__(self, store: PostgresStore, kill_at: int) -> None:
        self._store, self._kill_at, self._points = store, kill_at, 0

    def _pass_point(self) -> None:
        self._points += 1
        if self._points == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._pass_point()
            answer = await method(*args, **kwargs)
            self._pass_point()
            return answer

        return call


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--queue", default="default")
    parser.add_argument("--kill-at", type=int, default=0)
    options = parser.parse_args()
    store = PostgresStore(options.url)
    worker = Worker(
        app,
        KillSwitch(store, options.kill_at) if options.kill_at else store,  # type: ignore[arg-type]
        WorkerOptions(
            queues=(options.queue,),
            concurrency=50,
            lease_seconds=1.2,
            heartbeat_seconds=0.3,
            silent_seconds=1.0,
            poll_seconds=0.2,
            maintenance_seconds=0.3,
        ),
        heartbeat_store=lambda: PostgresStore(options.url, connections=1),
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await worker.start()
    print("ready", flush=True)
    await stop.wait()
    await worker.stop(grace="5s")
    await store.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
