"""The store as one process reaches it: over a network that loses, delays and repeats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import DatabaseUnavailable
from tests.simulation.loop import ACTOR, Actor

if TYPE_CHECKING:
    from tests.simulation.world import World

_LOCAL: Final = frozenset({"open", "close", "now", "listen"})
_IN_ORDER: Final = "ensure_flow"  # of two that replace a shape the last wins, so none comes late
_LATEST: Final = 6.0  # seconds on the way
_GIVE_UP: Final = 4.0  # seconds after which a call has no answer


def run_through(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a call of the store to its end: what others do, they do before or after it."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


class Edge:
    """A store for one process. Each call travels there and back, and both ways are drawn."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor
        self._chance = world.plan.chance(f"edge {actor.name}")
        self._heard: list[Callable[[str], None]] = []
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._cut_until = 0.0

    @property
    def reads(self) -> Edge:
        """This store: there is no replica."""
        return self

    async def fresh_reads(self) -> Edge:
        """Return this store."""
        return self

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Hear nothing any more."""
        for stop in self._stops:
            run_through(stop())  # type: ignore[arg-type]

    def cut(self, seconds: float) -> None:
        """Let no call through for so long, then say that notifications may have been missed."""
        loop = self._world.loop
        self._cut_until = max(self._cut_until, loop.time() + seconds)
        loop.call_later(seconds, self._heal, context=loop.context_of(None))

    def _heal(self) -> None:
        if self._world.loop.time() >= self._cut_until:
            for heard in self._heard:
                heard("")

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Call back with what is sent to a topic: late, twice or not at all, if so drawn."""
        loop = self._world.loop
        context = loop.context_of(ACTOR.get())

        def heard(payload: str) -> None:
            rates, draw = self._world.rates, self._chance.random
            if loop.time() < self._cut_until or draw() < rates["deaf"]:
                return
            for _ in range(2 if draw() < rates["doubled"] else 1):
                loop.call_later(self._way(), callback, payload, context=context)

        self._heard.append(heard)
        stop = await self._world.store.listen(topic, heard)
        self._stops.append(stop)
        return stop

    def _way(self) -> float:
        """Draw how long something is on its way."""
        draw = self._chance.random
        seconds = 0.0002 + 0.003 * draw()
        if draw() < self._world.rates["late"]:
            seconds += _LATEST * draw() ** 3
        return seconds

    def __getattr__(self, name: str) -> Any:
        """Return what the store has; its calls travel."""
        found = getattr(self._world.store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        call = partial(self._travel, name, found)
        self.__dict__[name] = call
        return call

    async def _travel(
        self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        world, loop = self._world, self._world.loop
        args = tuple(list(each) if type(each) is list else each for each in args)  # as sent
        answer: asyncio.Future[Any] = loop.create_future()
        draw, rates, network = self._chance.random, world.rates, world.network
        fate = "fine"
        if loop.time() < self._cut_until:
            fate = "lost"
        else:
            for kind in ("lost", "unanswered", "ghost"):
                if rates[kind] and draw() < rates[kind]:
                    fate = kind
        there, arrive = self._way(), partial(self._arrive, name, method, args, kwargs)
        if name == _IN_ORDER:
            there, fate = 0.0002, "lost" if fate == "ghost" else fate
        world.tell("call", self._actor.name, name, fate)
        if fate == "fine":
            loop.call_later(there, arrive, answer, context=network)
        else:
            give_up = there + _GIVE_UP * draw() ** 2
            loop.call_later(give_up, self._refuse, answer, context=network)
            if fate == "unanswered":
                loop.call_later(there, arrive, None, context=network)
            elif fate == "ghost":  # it is done long after the caller has given up
                loop.call_later(give_up + _LATEST * draw(), arrive, None, context=network)
        return await answer

    def _arrive(
        self,
        name: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        answer: asyncio.Future[Any] | None,
    ) -> None:
        """Do what is asked for, and send the answer on its way."""
        world = self._world
        try:
            with world.model.watching(name, args, kwargs) as watch:
                found = watch.answer = run_through(method(*args, **kwargs))
            error = None
        except Exception as raised:
            found, error = None, raised
        world.tell("done", self._actor.name, name, "" if error is None else repr(error))
        if answer is not None:
            world.loop.call_later(
                self._way(), _deliver, answer, found, error, context=world.network
            )

    def _refuse(self, answer: asyncio.Future[Any]) -> None:
        error = DatabaseUnavailable("no answer")
        error.__cause__ = TimeoutError()
        _deliver(answer, None, error)


def _deliver(answer: asyncio.Future[Any], found: object, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)
