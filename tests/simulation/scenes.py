"""What clients do: each scene starts something, meddles with it, and checks what comes of it.

A scene's client reaches the store over a bad network too. It repeats what it got no answer to,
with the same key, and so must have what it asked for exactly once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from holdfast.client import Client, RunHandle
from holdfast.errors import (
    DatabaseUnavailable,
    RunCancelled,
    RunEnded,
    RunTerminated,
    ScheduleExists,
    TransientDatabaseError,
)
from tests.simulation.model import Violation
from tests.simulation.plan import CHAOS_SECONDS
from tests.simulation.programs import RELAYS, Relay

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
UNANSWERED = (DatabaseUnavailable, TransientDatabaseError)


@dataclass
class Scene:
    """A client that plays a scene."""

    world: World
    client: Client
    chance: random.Random

    async def insist(self, call: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        """Make a call until it is answered."""
        while True:
            try:
                return await call(*args, **options)
            except UNANSWERED:
                await asyncio.sleep(self.chance.uniform(0.1, 0.5))

    async def pause(self, most: float = 3.0) -> None:
        """Wait a moment."""
        await asyncio.sleep(self.chance.uniform(0, most))

    async def start(self, name: str, input: object, key: str) -> RunHandle[Any]:
        """Start a run of a workflow."""
        app = self.world.newest
        startable = app.startable(name)
        return await self.insist(self.client.start, startable, input, key=key)

    async def result(self, handle: RunHandle[Any]) -> Any:
        """Wait for a result."""
        return await self.insist(handle.result)

    async def chained(self, handle: RunHandle[Any]) -> None:
        """Wait for the end of a chain, unless two releases have gone different ways in it."""
        world, result = self.world, asyncio.ensure_future(self.result(handle))
        while not (await asyncio.wait([result], timeout=5.0))[0]:
            turn = world.store._tables.tasks.get((handle.run_id, ""))
            stuck = None if turn is None else turn.stuck
            if stuck is not None and world.model.overtook(handle.run_id):
                result.cancel()
                return
            if world.is_calm:  # a pause that had no answer may come after the resume
                with suppress(RunEnded):
                    await self.insist(handle.resume)
        self.own(handle.run_id, await result)

    def equal(self, rule: str, found: object, expected: object) -> None:
        """Break a rule unless two things are equal."""
        if found != expected:
            raise Violation(rule, f"{found} in place of {expected}")

    def own(self, run_id: UUID, tokens: Sequence[str]) -> None:
        """Demand that a run returned what its log has, each once, in any order."""
        self.equal(
            "result and log differ", sorted(tokens), sorted(self.world.model.recorded(run_id))
        )


async def chain(scene: Scene) -> None:
    """Start runs, ask for one of them twice, and follow the log of one."""
    count = scene.chance.randint(1, 3)
    steps = scene.chance.randint(2, 4)
    handles = [await scene.start("chain", steps, f"chain-{n}") for n in range(count)]
    again = await scene.start("chain", steps, "chain-0")
    scene.equal("a key is one run", again.run_id, handles[0].run_id)
    for handle in handles[1:]:
        await scene.chained(handle)
    seen: list[int] = []

    async def follow() -> None:
        async for entry in handles[0].follow_log(len(seen)):
            seen.append(entry.idx)

    following = asyncio.ensure_future(scene.insist(follow))
    await scene.chained(handles[0])
    log = scene.world.store._tables.logs[handles[0].run_id]
    if scene.world.store._tables.is_running(handles[0].run_id):
        following.cancel()
        return
    await following
    scene.equal("a follower sees each entry once", seen, list(range(len(log))))


async def signals(scene: Scene) -> None:
    """Send signals, each until it is accepted; some twice."""
    count = scene.chance.randint(1, 4)
    handle = await scene.start("signals", count, "signals")
    await send_all(scene, handle, count)
    taken = await scene.result(handle)
    scene.equal("signals are taken once, in order", [n for n, _ in taken], list(range(count)))
    scene.own(handle.run_id, [token for _, token in taken])


async def send_all(scene: Scene, handle: RunHandle[Any], count: int) -> None:
    """Send signals from 0 on, in order."""
    for n in range(count):
        await scene.pause()
        for _ in range(scene.chance.choice((1, 1, 2))):
            await scene.insist(handle.signal, "go", n, f"signal-{n}")


async def relay(scene: Scene) -> None:
    """Send all signals at once to a run that continues as new after each."""
    first = Relay(number=0, seen=[], tokens=[])
    handle = await scene.start("relay", first, "relay")
    await send_all(scene, handle, RELAYS)
    last = await scene.result(handle)
    scene.equal("signals are carried over", last["seen"], list(range(RELAYS)))
    scene.equal("each run has an effect", len(set(last["tokens"])), RELAYS)


async def parent(scene: Scene) -> None:
    """Start a run with children."""
    count = scene.chance.randint(1, 3)
    handle = await scene.start("parent", count, "parent")
    tokens = await scene.result(handle)
    tables = scene.world.store._tables
    runs = [handle.run_id, *tables.children[handle.run_id]]
    scene.equal("a child for each call", len(runs), count + 1)
    found = [token for run_id in runs for token in scene.world.model.recorded(run_id)]
    scene.equal("result and log differ", sorted(tokens), sorted(found))


async def race(scene: Scene) -> None:
    """Send a signal about when its run stops waiting for it."""
    seconds = scene.chance.randint(1, 4)
    handle = await scene.start("race", seconds, "race")
    await asyncio.sleep(seconds * scene.chance.uniform(0.8, 1.2))
    with suppress(RunEnded):
        await scene.insist(handle.signal, "go", 7, "signal")
    payload, token = await scene.result(handle)
    scene.equal("the signal or none", payload in (7, None), True)
    scene.own(handle.run_id, [token])


async def limited(scene: Scene) -> None:
    """Start more than there may be at once."""
    handles = [
        await scene.start("alone", n, f"alone-{n}") for n in range(scene.chance.randint(2, 3))
    ]
    handles.append(await scene.start("crowd", scene.chance.randint(3, 5), "crowd"))
    for handle in handles:
        scene.own(handle.run_id, await scene.result(handle))


async def queue(scene: Scene) -> None:
    """Send messages, some twice."""
    count = scene.chance.randint(2, 8)
    for n in range(count):
        await scene.pause(1.0)
        send, times = scene.client.queues.send, scene.chance.choice((1, 1, 2))
        ids = [await scene.insist(send, "parcels", n, dedup_id=str(n)) for _ in range(times)]
        scene.equal("a message for each deduplication id", len(set(ids)), 1)
    row = scene.world.store._tables.queues.rows["parcels"]
    while row.waiting or row.deliveries:
        await asyncio.sleep(1.0)
    consumed = scene.world.model.consumed
    scene.equal("all messages are consumed", sorted(consumed), list(range(count)))
    scene.equal("one message each", [len(consumed[n]) for n in range(count)], [1] * count)


async def events(scene: Scene) -> None:
    """Publish events, some twice; each starts a run."""
    count = scene.chance.randint(1, 4)
    while not scene.world.store._tables.subscriptions:
        await asyncio.sleep(0.5)
    for n in range(count):
        await scene.pause()
        for _ in range(scene.chance.choice((1, 1, 2))):
            publish = scene.client.topics.publish
            await scene.insist(publish, f"sim.{n}.sent", n, event_id=str(n))
    await runs_of(scene, "noted", list(range(count)))


async def runs_of(scene: Scene, name: str, inputs: Sequence[object]) -> None:
    """Wait for the runs of a workflow, and demand one for each input."""
    tables = scene.world.store._tables
    known = {str(each) for each in inputs}
    runs = [
        run_id
        for run_id, run in tables.runs.items()
        if run.new.name == f"sim/{name}" and run.new.input in known
    ]
    results: list[Any] = []
    for run_id in runs:
        handle = scene.client.handle(run_id, scene.world.newest.startable(name))
        results.append(await scene.result(handle))
        scene.own(run_id, [results[-1][1]])
    found = sorted(each[0] for each in results)
    scene.equal("a run for each", found, sorted(cast("Sequence[Any]", inputs)))


async def updates(scene: Scene) -> None:
    """Ask for changes until each is answered."""
    count = scene.chance.randint(1, 3)
    handle = await scene.start("desk", count, "desk")
    answers: list[str] = []
    for n in range(count):
        await scene.pause()
        update: Any = handle.update
        answers.append(await scene.insist(update, "add", n, update_id=f"u{n}", type=str))
    done = await scene.result(handle)
    scene.equal(
        "each update is answered with its result", done, [[n, a] for n, a in enumerate(answers)]
    )
    scene.own(handle.run_id, answers)


async def flow(scene: Scene) -> None:
    """Start a flow with a map."""
    rows = scene.chance.randint(1, 4)
    flow = scene.world.newest.startable("sheet")
    while not scene.world.store._tables.shapes:  # a worker compiles it
        await asyncio.sleep(0.5)
    handle = await scene.insist(scene.client.start, flow, {"rows": rows}, key="sheet")
    output = await scene.result(handle)
    tokens = output["joined"]
    places = [scene.world.model.tokens[token] for token in tokens]
    expected = [(handle.run_id, f"first:{n}") for n in range(rows)] + [(handle.run_id, "beside")]
    own, runs = places[: len(expected)], scene.world.store._tables.runs
    scene.equal("each element once, in its place", own, expected)
    inputs = [(runs[run_id].new.input, key) for run_id, key in places[len(expected) :]]
    steps = [(str(n), "act") for n in range(rows + 1)]
    scene.equal("each step that is a run once, in its place", inputs, steps)
    scene.equal("as many runs", [r.new.name for r in runs.values()].count("sim/row"), rows + 1)


async def replaced(scene: Scene) -> None:
    """Start a flow again if another release replaces its shape, which terminates the run."""
    rows, tokens = scene.chance.randint(1, 4), list[str]()
    flow = scene.world.newest.startable("draft")
    while "sim/draft@1" not in scene.world.store._tables.shapes:  # a worker compiles it
        await asyncio.sleep(0.5)
    for number in itertools.count():
        key = f"draft{number}"
        handle = await scene.insist(scene.client.start, flow, rows, key=key)
        with suppress(RunTerminated):
            tokens = (await scene.result(handle))["done"]
            break
    places = [scene.world.model.tokens[token] for token in tokens]
    keys = [*(f"drawn:{n}" for n in range(rows)), "done"]
    scene.equal("each step once, in its place", places, [(handle.run_id, key) for key in keys])
    releases = scene.world.model.releases_of(handle.run_id)
    scene.equal("one release has done all of a run", len(releases), 1)


async def ticks(scene: Scene) -> None:
    """Create a schedule; each of its ticks starts one run."""
    schedules, every = scene.client.schedules, scene.chance.choice((2, 3, 5))
    options: Any = {"overlap": "allow", "every": every, "max_missed": 1000}
    noted = scene.world.newest.startable("noted")
    with suppress(ScheduleExists):
        await scene.insist(schedules.create, "tick", workflow=noted, input=-1, **options)
    loop = scene.world.loop
    await asyncio.sleep(CHAOS_SECONDS + 12 - loop.time())
    row = scene.world.store._tables.schedules["sim/tick"]
    now = scene.world.store.time()
    fired = sorted(scene.world.store._tables.buckets["sim/tick"])
    expected = list(range(fired[0], fired[-1] + 1, every * 1_000_000))
    scene.equal("each tick fires", fired, expected)
    if now - fired[-1] > (every + 8) * 1_000_000:
        raise Violation("ticks are late", f"the last was {(now - fired[-1]) / 1e6} s ago: {row}")
    await scene.insist(schedules.pause, "tick")
    fired = sorted(scene.world.store._tables.buckets["sim/tick"])
    await runs_of(scene, "noted", [-1] * len(fired))


async def paused(scene: Scene) -> None:
    """Pause a run, and resume it."""
    handle = await scene.start("chain", 3, "paused")
    await scene.pause(2.0)
    with suppress(RunEnded):
        await scene.insist(handle.pause)
        await scene.pause(6.0)
        await scene.insist(handle.resume)
    await scene.chained(handle)


async def cancelled(scene: Scene) -> None:
    """Cancel a run that cleans up."""
    handle = await scene.start("patient", 0, "patient")
    await scene.pause(6.0)
    await scene.insist(handle.cancel)
    with suppress(RunCancelled):
        await scene.result(handle)
        raise Violation("a confirmed cancel ends the run", "it completed")
    begun = scene.world.store._tables.runs[handle.run_id].started_at is not None
    if begun and not scene.world.model.recorded(handle.run_id):
        raise Violation("a cancelled run cleans up", str(handle.run_id))
