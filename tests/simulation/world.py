"""One seed: its workers, its clients, what happens to them, and how it ends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from uuid import UUID

from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import EPOCH
from holdfast.types import QueueSettings
from tests.simulation import programs, scenes
from tests.simulation.edge import Edge, run_through
from tests.simulation.loop import ACTOR, Actor, Stalled, VirtualLoop, virtual
from tests.simulation.model import Model, Violation
from tests.simulation.plan import CALL_FAULTS, CHAOS_SECONDS, Blow, Plan
from tests.simulation.workers import SimulatedWorker

_PATIENCE = 240.0  # virtual seconds after the last fault, within which all must have ended
_NEWEST = 2


class World:
    """What a seed makes: one history."""

    def __init__(self, plan: Plan, loop: VirtualLoop, listen: Callable[[str], None] | None) -> None:
        self.plan, self.loop, self._listen = plan, loop, listen
        self.store = MemoryStore(clock=lambda: EPOCH + int(loop.time() * 1e6))
        self.network = loop.context_of(None)
        self.rates = dict(plan.rates)
        self.errors = plan.errors
        self.over = asyncio.Event()
        self.model = Model(self)
        self.newest: App = programs.release(_NEWEST)
        self._history: list[str] = []
        self._effects = plan.chance("effects")
        self._calls: dict[tuple[UUID, str | None], int] = {}
        self._made = 0
        self._workers: dict[int, SimulatedWorker] = {}
        self._releases = dict.fromkeys(plan.workers, 1 + plan.seed % 2)
        self._all: list[SimulatedWorker] = []

    def tell(self, *what: object) -> None:
        """Add something to the history."""
        line = f"{self.loop.time():.6f} {' '.join(map(str, what))}"
        self._history.append(line)
        if self._listen is not None:
            self._listen(line)

    @property
    def is_calm(self) -> bool:
        """True if nothing goes wrong any more, and what had no answer has arrived."""
        return self.loop.time() > CHAOS_SECONDS + 12

    # What the code of the app does

    async def effect(self, run_id: UUID, key: str | None, what: str, release: int) -> str:
        """Have an effect outside of the engine; take some time, and fail at times."""
        place = run_id, key or ""
        n = self._calls[place] = self._calls.get(place, 0) + 1
        token = f"{run_id}/{key}#{n}"
        self.model.done(token, place, what, release)
        self.tell("effect", token)
        await self._toil()
        return token

    async def consume(self, message_id: int, payload: int) -> None:
        """Take a message."""
        self.tell("consume", message_id, payload)
        await self._toil()
        self.model.consumed[payload].add(message_id)

    async def _toil(self) -> None:
        draw = self._effects.random
        seconds = 0.4 * draw() ** 2 if draw() < 0.8 else 4 * draw()
        await asyncio.sleep(seconds * self.plan.pace)
        if draw() < self.errors:
            raise ConnectionError("no luck")

    # Its course

    async def run(self) -> None:
        """Play all scenes, with what goes wrong meanwhile; then let all come to an end."""
        run_through(self.store.create_queue(QueueSettings(name="parcels", visibility_seconds=8.0)))
        for slot in self.plan.workers:
            self._employ(slot)
        tasks = [self._play(name) for name in self.plan.scenes]
        for blow in self.plan.blows:
            self.loop.call_later(blow.at, self._strike, blow, context=self.network)
        calm = self.loop.create_task(self._calm())
        over = self.loop.create_task(self.over.wait())
        waiting: set[asyncio.Task[None]] = set(tasks)
        until = CHAOS_SECONDS + _PATIENCE
        while waiting and not self.over.is_set():
            left = until - self.loop.time()
            if left <= 0:
                names = sorted(task.get_name() for task in waiting)
                self.model.violate("left waiting", ", ".join(names))
                break
            first = asyncio.FIRST_COMPLETED
            awaited = [each for each in tasks if each in waiting]
            await asyncio.wait([*awaited, over], timeout=left, return_when=first)
            for task in [each for each in awaited if each.done()]:
                waiting.discard(task)
                self._look_at(task)
        calm.cancel()
        self.model.check()

    def _look_at(self, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if isinstance(error, Violation):
            self.model.violate(error.rule, f"{task.get_name()}: {error.text}")
        elif error is not None:
            self.model.violate(
                f"a scene failed with {type(error).__name__}", f"{task.get_name()}: {error}"
            )

    def _play(self, name: str) -> asyncio.Task[None]:
        actor = Actor(name)
        token = ACTOR.set(actor)
        try:
            return self.loop.create_task(self._scene(name, actor), name=name)
        finally:
            ACTOR.reset(token)

    async def _scene(self, name: str, actor: Actor) -> None:
        chance = self.plan.chance(f"scene {name}")
        store = Edge(self, actor)
        async with Client(store=store, app=self.newest) as client:  # type: ignore[arg-type]
            scene = scenes.Scene(self, client, chance)
            await scene.pause(CHAOS_SECONDS / 3)
            await getattr(scenes, name)(scene)

    def _employ(self, slot: int) -> None:
        """Start a worker in a slot."""
        self._made += 1
        actor = Actor(f"w{slot}.{self._made}")
        token = ACTOR.set(actor)
        try:
            worker = SimulatedWorker(self, programs.release(self._releases[slot]), actor)
            self._workers[slot] = worker
            self._all.append(worker)
            self.loop.create_task(self._start(worker))
        finally:
            ACTOR.reset(token)

    async def _start(self, worker: SimulatedWorker) -> None:
        while True:
            try:
                await worker.start()
            except scenes.UNANSWERED:
                await asyncio.sleep(0.5)
            else:
                return

    # What goes wrong

    def _strike(self, blow: Blow) -> None:
        self.tell("blow", blow.name, blow.slot, f"{blow.seconds:.3f}")
        worker = self._workers.get(blow.slot)
        if blow.kind == "outage":
            for each in self._workers.values():
                each.cut(blow.seconds)
        if worker is None:
            return
        if blow.kind == "cut":
            worker.cut(blow.seconds)
        elif blow.kind in ("freeze", "block"):
            actors = [worker.actor] + [worker.heart] * (blow.kind == "freeze")
            for actor in actors:
                actor.state = "frozen"
                self.loop.call_later(blow.seconds, self.loop.thaw, actor, context=self.network)
        elif blow.kind == "kill":
            self._kill(worker)
            self._replace_later(blow)
        else:
            if blow.kind == "deploy":
                self._releases[blow.slot] = 3 - self._releases[blow.slot]
            context = self.loop.context_of(worker.actor)
            self.loop.call_soon(self._begin_stop, worker, context=context)
            self._replace_later(blow)

    def _begin_stop(self, worker: SimulatedWorker) -> None:
        self.loop.create_task(self._stop(worker))

    async def _stop(self, worker: SimulatedWorker) -> None:
        await worker.stop()
        worker.actor.state = worker.heart.state = "dead"

    def _kill(self, worker: SimulatedWorker) -> None:
        worker.actor.state = worker.heart.state = "dead"

    def _replace_later(self, blow: Blow) -> None:
        del self._workers[blow.slot]
        self.loop.call_later(min(blow.seconds, 5.0), self._fill, blow.slot, context=self.network)

    def _fill(self, slot: int) -> None:
        if slot not in self._workers:
            self._employ(slot)

    async def _calm(self) -> None:
        """Let nothing more go wrong, and have workers of the newest release."""
        await asyncio.sleep(CHAOS_SECONDS)
        self.tell("calm")
        self.rates, self.errors = dict.fromkeys(CALL_FAULTS, 0.0), 0.0
        for slot in self.plan.workers:
            worker = self._workers.get(slot)
            if self._releases[slot] != _NEWEST:
                self._releases[slot] = _NEWEST
                if worker is not None:
                    self._kill(worker)
                    del self._workers[slot]
            self._fill(slot)

    # Its end

    def close(self) -> str:
        """Forget all that still runs; return the digest of the history."""
        for worker in self._all:
            worker.abandon()
        for run_id, rows in self.store._tables.logs.items():
            self._history += [f"{run_id} {row.event}" for row in rows]
        return hashlib.blake2b("\n".join(self._history).encode(), digest_size=16).hexdigest()


def run_seed(
    plan: Plan, listen: Callable[[str], None] | None = None
) -> tuple[Violation | None, str]:
    """Let a seed happen; return what was wrong, and the digest of its history."""
    with virtual(plan.seed) as loop:
        world = programs.stage.world = World(plan, loop, listen)
        try:
            loop.run_until_complete(world.run())
        except Stalled as error:
            world.model.violate("stalled", str(error))
        digest = world.close()
    return world.model.broken, digest
