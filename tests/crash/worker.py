"""A worker process of the crash suite: quick leases, and a switch that kills it at a store call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, cast

from holdfast import App
from holdfast.database.urls import split_urls
from holdfast.retention.archive import ARCHIVE_VARIABLE
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore, database, listening
from holdfast.store.redis import RedisHintedStore
from holdfast.store.shards import sharded
from holdfast.values.retention import SWEEPER_INTERVAL_VARIABLE
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.shard import SHARD_CONNECTIONS, Shard, until_served
from tests.crash import releases
from tests.crash.flows import app
from tests.crash.workload import LEDGER

DEFAULT = "default"


@dataclass(frozen=True)
class Pace:
    """How soon a worker is taken for gone, in seconds."""

    lease: float
    heartbeat: float
    silent: float


QUICK = Pace(1.2, 0.3, 1.0)
PATIENT = Pace(8.0, 0.5, 6.0)  # a busy machine does not make it look dead
WORK = {
    "commit",
    "end_activities",
    "end_step_tasks",
    "read_events",
    "release_tasks",
    "listen",
    "notify",
}


class KillSwitch:
    """Kills the process at the n-th point between the calls that do its work.

    The calls that only look whether there is work are left out, as how many there are depends
    on the time: to die before a claim is to die after the call before it.
    """

    def __init__(self, kill_at: int) -> None:
        self._kill_at, self._points = kill_at, 0

    def pass_point(self) -> None:
        """Be at the next point."""
        self._points += 1
        if self._points == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before_calls_of(self, store: PostgresStore) -> Store:
        """Return a store whose calls are points."""
        return cast("Store", _Switched(store, self))


class _Switched:
    def __init__(self, store: PostgresStore, switch: KillSwitch) -> None:
        self._store, self._switch = store, switch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        if not iscoroutinefunction(method):
            return cast("Callable[..., Any]", method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name in WORK:
                self._switch.pass_point()
            answer = await method(*args, **kwargs)
            if name in WORK or (name == "claim_tasks" and answer):
                self._switch.pass_point()
            return answer

        return call


def impatient(seconds: float, change: Callable[[object, str, float], None] = setattr) -> None:
    """Have the calls of this process give up after so long, for a test that cannot wait."""
    change(database, "_CALL_SECONDS", seconds)
    change(database, "_ANSWER_SECONDS", seconds)
    change(listening, "_ASK_SECONDS", seconds)
    change(listening, "_ANSWER_SECONDS", seconds)


def session_name(pid: int) -> str:
    """Return how a worker process calls its sessions at the database."""
    return f"worker-{pid}"


def signed(url: str) -> str:
    """Return a URL, or several, over which the sessions of this process have its name."""
    name = f"application_name={session_name(os.getpid())}"
    return " ".join(f"{each}{'&' if '?' in each else '?'}{name}" for each in split_urls(url))


def work(
    url: str,
    queues: tuple[str, ...],
    kill_at: int,
    ledger: Path,
    patience: float | None,
    pace: Pace,
    release: int,
    archive: str,
    redis: str,
    shard: int | None,
) -> None:
    """Be a worker process until it is killed; what it says goes beside the ledger.

    `release` is that of the app, 0 for the usual one. With an archive, it sweeps all the time.
    Of several databases it serves the one with the number `shard`, or all of them.
    """
    if archive:
        os.environ[ARCHIVE_VARIABLE] = archive
        os.environ[SWEEPER_INTERVAL_VARIABLE] = "100ms"
    url = signed(url)
    os.environ[LEDGER] = str(ledger)
    with ledger.with_name("workers.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    served = releases.release(release) if release else app
    asyncio.run(serve(url, served, queues, kill_at, pace, patience, redis, shard))


async def serve(
    url: str,
    served: App,
    queues: tuple[str, ...] = (DEFAULT,),
    kill_at: int = 0,
    pace: Pace = QUICK,
    patience: float | None = None,
    redis: str = "",
    shard: int | None = None,
) -> None:
    """Be a worker of an app until SIGTERM; impatient, if at all, once it has begun.

    Of several databases it is a worker of the one with the number `shard`, or of each.
    """
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    make = partial(partial(RedisHintedStore, redis) if redis else PostgresStore, tells=True)
    kill = KillSwitch(kill_at)
    options = WorkerOptions(
        queues=queues,
        concurrency=50,
        lease_seconds=pace.lease,
        heartbeat_seconds=pace.heartbeat,
        silent_seconds=pace.silent,
        poll_seconds=0.2,
        maintenance_seconds=0.3,
    )
    watch = kill.before_calls_of if kill_at else None
    workers = await workers_of(served, url, options, make=make, watch=watch, shard=shard)
    await asyncio.gather(*(worker.start() for worker in workers))
    if patience is not None:
        impatient(patience)
    await terminated.wait()
    await asyncio.gather(*(worker.stop(grace=0.5) for worker in workers))


async def workers_of(
    served: App,
    url: str,
    options: WorkerOptions,
    *,
    make: Callable[..., Store] = PostgresStore,
    watch: Callable[[Store], Store] | None = None,
    shard: int | None = None,
) -> list[Worker]:
    """Return the worker of a database, or of several one of each or of that with a number.

    `make` makes a store of a URL, and `watch` one around it for the calls of a worker.
    """
    urls = split_urls(url)

    async def make_worker(number: int) -> Worker:
        store, place = make(urls[number]), None
        if len(urls) > 1:
            around = sharded([make(each, connections=SHARD_CONNECTIONS) for each in urls])
            place = Shard(number, around)
            await until_served(store, number)
        return Worker(
            served,
            watch(store) if watch else store,
            options,
            heartbeat_store=lambda: make(urls[number], connections=1),
            shard=place,
        )

    return [await make_worker(each) for each in (range(len(urls)) if shard is None else [shard])]


async def work_on(
    served: App,
    url: str,
    options: WorkerOptions,
    *,
    watch: Callable[[Store], Store] | None = None,
    shard: int | None = None,
) -> list[Worker]:
    """Start the workers of a database, or of several, for as long as the process lives."""
    workers = await workers_of(served, url, options, watch=watch, shard=shard)
    await asyncio.gather(*(worker.start() for worker in workers))
    return workers
