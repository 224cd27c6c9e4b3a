"""The workers of the simulation: the real one, with its heartbeat as an actor of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any, cast

from holdfast.definitions.app import App
from holdfast.definitions.middleware import Layer
from holdfast.definitions.signatures import Arguments
from holdfast.errors import DatabaseError
from holdfast.store.port import Store
from holdfast.worker import Worker
from holdfast.worker.attempts import Execution, Launcher
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Cancellable, EngineClock
from holdfast.worker.heartbeat import HeartbeatService
from holdfast.worker.threads import ThreadBook
from tests.simulation.edge import Edge
from tests.simulation.loop import ACTOR, Actor

if TYPE_CHECKING:
    from tests.simulation.world import World


class SkewedClock(EngineClock):
    """The clock of a machine that is wrong, and runs a little too fast or too slowly."""

    def call_at(self, at: int, callback: Callable[[], None]) -> Cancellable:
        """Call back at a moment of engine time."""
        return _Alarm(self, at, callback)


class _Alarm:
    def __init__(self, clock: SkewedClock, at: int, callback: Callable[[], None]) -> None:
        self._clock, self._at, self._callback = clock, at, callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_soon(self._look)

    def _look(self) -> None:
        micros = self._at - self._clock.now()
        if micros <= 0:
            self._callback()
        else:
            self._handle = self._loop.call_later(min(micros / 1e6 + 1e-5, 10.0), self._look)

    def cancel(self) -> None:
        self._handle.cancel()


class SimulatedHeartbeat(HeartbeatService):
    """A heartbeat that is a task of the loop, and an actor beside its worker."""

    actor: Actor
    _beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Send heartbeats from now on."""
        self._loop = loop = asyncio.get_running_loop()
        token: Token[Actor | None] = ACTOR.set(self.actor)
        self._beating = loop.create_task(self._beat_on())
        ACTOR.reset(token)

    async def stop(self) -> None:
        """Send none any more."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat_on(self) -> None:
        store, backoff = self._open_store(), Backoff(limit=self._interval)
        while True:
            try:
                await self.run_once(store)
                backoff.reset()
                pause = self._interval
            except DatabaseError:
                self.suspect()
                pause = backoff.take()
            await asyncio.sleep(pause)


class _NoWatchdog:
    def start(self) -> None:
        """Watch nothing: no code blocks."""

    async def stop(self) -> None:
        """Watch nothing any more."""

    def expect_end(self, grace_seconds: float) -> None:
        """Expect nothing."""


class _Launcher(Launcher):
    world: World

    def launch_given(
        self, execution: Execution[Any], given: Arguments, layers: list[Layer]
    ) -> None:
        """Start an attempt, and let the model know."""
        self.world.model.launched(execution)
        super().launch_given(execution, given, layers)


class SimulatedWorker(Worker):
    """A worker as an actor."""

    _launcher_type = _Launcher

    def __init__(self, world: World, app: App, actor: Actor) -> None:
        self.world, self.actor = world, actor
        self.heart = Actor(f"{actor.name}'", actor)
        self.edge, self.heart_edge = Edge(world, actor), Edge(world, self.heart)
        chance = world.plan.chance(f"clock {actor.name}")
        offset = chance.uniform(-3600, 3600) if world.plan.skews else 0.0
        rate = 1 + (chance.uniform(-2e-4, 2e-4) if world.plan.skews else 0.0)
        loop = world.loop
        clock = SkewedClock(lambda: int((loop.time() * rate + offset + 1e4) * 1e9))
        super().__init__(
            app,
            cast("Store", self.edge),
            world.plan.options,
            heartbeat_store=lambda: cast("Store", self.heart_edge),
            clock=clock,
        )

    def _make_launcher(self, app: App, book: ThreadBook) -> Launcher:
        launcher = super()._make_launcher(app, book)
        assert isinstance(launcher, _Launcher)
        launcher.world = self.world
        return launcher

    def _make_heartbeat(
        self, make_store: Callable[[], Store], book: ThreadBook
    ) -> HeartbeatService:
        made = super()._make_heartbeat(make_store, book)
        made.__class__ = SimulatedHeartbeat
        assert isinstance(made, SimulatedHeartbeat)
        made.actor = self.heart
        return made

    def _make_watchdog(self, *_: object) -> Any:
        return _NoWatchdog()

    def cut(self, seconds: float) -> None:
        """Let nothing through to the store for so long."""
        self.edge.cut(seconds)
        self.heart_edge.cut(seconds)

    def abandon(self) -> None:
        """Close the code of what it had in memory: otherwise the collector does, at any time."""
        runs = self._workload._runs
        for driver in list(runs._drivers.values()):
            driver.close()
        runs._cache.clear()
        self._threads.shutdown(wait=False)
