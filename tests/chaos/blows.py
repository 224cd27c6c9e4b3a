"""What is done to the processes of the chaos, at random moments; each blow undoes itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

from holdfast.database.embedded import EmbeddedServer
from tests.chaos.world import World, backends_of

Blow = Callable[[World, random.Random], Coroutine[Any, Any, None]]

LONGEST_SECONDS = 4.0  # for which something is away
SHUTDOWN_SECONDS = 20.0
LONGEST_BURST_SECONDS = 0.5  # between two blows
BETWEEN_SECONDS = (LONGEST_BURST_SECONDS, 3.0)  # at most: in a burst, and in a calm
PATIENCE_SECONDS = 20.0  # for progress in a calm: a busy machine needs more than 3 s


async def kill_worker(world: World, choose: random.Random) -> None:
    """SIGKILL of a worker; another one begins at once, or later."""
    if workers := world.fleet.workers:
        begin_another = world.fleet.kill(choose.choice(workers))
        try:
            await asyncio.sleep(choose.choice((0.0, choose.uniform(0, LONGEST_SECONDS / 2))))
        finally:
            begin_another()


async def stop_worker(world: World, choose: random.Random) -> None:
    """SIGTERM of a worker, which gives back what it has; its supervisor starts another one."""
    if workers := world.fleet.workers:
        worker = choose.choice(workers)
        if worker.pid is not None:
            world.stopped.add(worker.pid)
        worker.terminate()


async def freeze_worker(world: World, choose: random.Random) -> None:
    """A worker that stands still until others have taken its work, and then continues."""
    if workers := [each for each in world.fleet.workers if each.exitcode is None]:
        worker = choose.choice(workers)
        world.fleet.freeze(worker)
        try:
            await asyncio.sleep(choose.uniform(0, LONGEST_SECONDS))
        finally:
            with suppress(ProcessLookupError):  # killed meanwhile
                world.fleet.thaw(worker)


async def kill_server(world: World, choose: random.Random) -> None:
    """SIGKILL of `holdfast server`, once it serves."""
    if await world.is_serving():
        world.send_server(signal.SIGKILL)


async def stop_server(world: World, choose: random.Random) -> None:
    """SIGTERM of `holdfast server`, once it serves."""
    if await world.is_serving():
        world.send_server(signal.SIGTERM)


async def kill_reader(world: World, choose: random.Random) -> None:
    """SIGKILL of a reader of streams."""
    world.readers[choose.choice(sorted(world.readers))].kill()


async def kill_postgres(world: World, choose: random.Random) -> None:
    """SIGKILL of the database's first process, which is started again at once, or later."""
    await _away(choose.choice(world.servers), choose, signal.SIGKILL)


async def restart_postgres(world: World, choose: random.Random) -> None:
    """A fast shutdown of the database, and a start."""
    server = choose.choice(world.servers)
    stopped = server.postmaster_pid
    try:
        async with asyncio.timeout(SHUTDOWN_SECONDS):
            await _away(server, choose, signal.SIGINT)
    except TimeoutError:  # PostgreSQL 18 may not end if it is told to while it recovers
        if server.postmaster_pid == stopped:
            await _away(server, choose, signal.SIGQUIT)


async def _away(server: EmbeddedServer, choose: random.Random, number: signal.Signals) -> None:
    if (pid := server.postmaster_pid) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    try:
        await asyncio.sleep(choose.choice((0.0, choose.uniform(0, LONGEST_SECONDS / 2))))
    finally:
        await asyncio.to_thread(server.ensure_running)


async def kill_backend(world: World, choose: random.Random) -> None:
    """SIGKILL of one session's process, after which the database recovers from a crash."""
    server = choose.choice(world.servers)
    if backends := backends_of(server):
        with suppress(ProcessLookupError):
            os.kill(choose.choice(backends), signal.SIGKILL)
        await asyncio.to_thread(server.ensure_running)


async def end_sessions(world: World, choose: random.Random) -> None:
    """All sessions of a database end, as when a pooler is restarted."""
    for backend in backends_of(choose.choice(world.servers)):
        with suppress(ProcessLookupError):
            os.kill(backend, signal.SIGTERM)


async def flush_redis(world: World, choose: random.Random) -> None:
    """Redis loses all it holds."""
    if world.redis is not None:
        with suppress(OSError):  # away, or mute
            await asyncio.wait_for(asyncio.to_thread(world.redis.flush), 1.0)


async def kill_redis(world: World, choose: random.Random) -> None:
    """Redis is killed, and away for a while."""
    if world.redis is not None:
        world.redis.kill()
        try:
            await asyncio.sleep(choose.uniform(0, LONGEST_SECONDS))
        finally:
            await asyncio.to_thread(world.redis.start)


async def mute_redis(world: World, choose: random.Random) -> None:
    """Redis answers nothing for a while."""
    if world.redis is not None:
        world.redis.pause()
        try:
            await asyncio.sleep(choose.uniform(0, LONGEST_SECONDS))
        finally:
            world.redis.resume()


async def part_redis(world: World, choose: random.Random) -> None:
    """Workers do not reach Redis; clients and the server do."""
    if world.way is not None:
        world.way.refuse()
        choose.choice((world.way.cut, world.way.mute))()
        try:
            await asyncio.sleep(choose.uniform(0, LONGEST_SECONDS))
        finally:
            world.way.cut()
            world.way.refuse(False)


ON_ALL: tuple[tuple[Blow, int], ...] = (  # with how often it is done, beside the others
    (kill_worker, 6),
    (stop_worker, 2),
    (freeze_worker, 3),
    (kill_server, 3),
    (stop_server, 1),
    (kill_reader, 4),
    (kill_postgres, 2),
    (restart_postgres, 1),
    (kill_backend, 1),
    (end_sessions, 1),
)
ON_REDIS: tuple[tuple[Blow, int], ...] = (
    (flush_redis, 3),
    (kill_redis, 2),
    (mute_redis, 2),
    (part_redis, 2),
)
ALONE = (
    {kill_postgres, restart_postgres, kill_backend},
    {kill_redis, mute_redis, flush_redis},
    {part_redis},
)


async def strike(
    world: World,
    choose: random.Random,
    done: Counter[str],
    most: int | None = None,
    between: Sequence[float] = BETWEEN_SECONDS,
) -> None:
    """Strike at random moments, so often; what is away comes back, also when it is cancelled.

    Blows overlap, but nothing is taken away that is away already. In a calm something has to be
    done: else a slow machine would never do anything.
    """
    blows = [*ON_ALL, *(ON_REDIS if world.redis is not None else ())]
    under_way: dict[asyncio.Task[None], Blow] = {}
    try:
        for _ in islice(count(), most):
            longest = choose.choice(between)
            await asyncio.sleep(choose.uniform(0, longest))
            if longest > LONGEST_BURST_SECONDS:
                await world.await_progress(PATIENCE_SECONDS)
            [blow] = choose.choices([each for each, _ in blows], [often for _, often in blows])
            own = random.Random(choose.random())  # what a blow draws must not depend on the time
            for task in [each for each in under_way if each.done()]:
                del under_way[task]
                task.result()
            if any(blow in each and each & set(under_way.values()) for each in ALONE):
                continue
            done[blow.__name__] += 1
            under_way[asyncio.create_task(blow(world, own))] = blow
        await asyncio.gather(*under_way)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
