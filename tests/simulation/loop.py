"""An event loop on virtual time, whose actors can be frozen and killed.

An actor is a process of the simulation: a worker, its heartbeat, a client. What it does is found by
a context variable, which all that it starts inherits. A frozen actor's callbacks wait until it is
thawed. A killed one's wait for ever: nothing of it runs any more, not even what cleans up.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, Literal
from unittest import mock

from holdfast.values.ids import counted_ids

_LIVELOCK = 20_000  # rounds without time passing


class Actor:
    """A process. `parent` is that of a thread of it, which is killed with it."""

    def __init__(self, name: str, parent: Actor | None = None) -> None:
        self.name, self.parent = name, parent
        self.state: Literal["alive", "frozen", "dead"] = "alive"
        self.parked: list[asyncio.Handle] = []


ACTOR: ContextVar[Actor | None] = ContextVar("actor", default=None)


class Stalled(Exception):
    """Nothing is due any more, or no time passes."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Jumps from one due moment to the next. Nothing in it waits for the outside."""

    def __init__(self) -> None:
        super().__init__()
        self._actors: list[Actor] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._virtual, self._rounds = 0.0, 0
        self.draining = False  # True: dead actors run again, so that their tasks can end
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        """Return virtual time in seconds."""
        return self._virtual

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Make a task of the actor that calls, also if it has a context of its own."""
        if context is not None:
            context.run(ACTOR.set, ACTOR.get())
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a moment; what is due at the same one comes in the order of the calls."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back as the process itself, not as the thread of it that calls."""
        actor = ACTOR.get()
        if context is None and actor is not None and actor.parent is not None:
            context = self.context_of(actor.parent)
        return self.call_soon(callback, *args, context=context)

    def context_of(self, actor: Actor | None) -> Context:
        """Return a context in which an actor's callbacks run."""
        context = Context()
        context.run(ACTOR.set, actor)
        return context

    def thaw(self, actor: Actor) -> None:
        """Let a frozen actor continue with all that came due meanwhile."""
        if actor.state == "frozen":
            actor.state = "alive"
            self._ready.extend(actor.parked)
            actor.parked = []

    def _run_once(self) -> None:
        ready = self._ready
        if ready:
            self._rounds += 1
            if self._rounds > _LIVELOCK:
                raise Stalled("no time passes: something is called again and again at once")
        else:
            self._rounds = 0
            self._jump()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            actor = handle._context.get(ACTOR)
            if actor is not None and actor.state != "alive" and not self.draining:
                if not actor.parked:
                    self._actors.append(actor)
                actor.parked.append(handle)
                continue
            handle._run()

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][-1]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stalled("nothing is due any more")
        now = self._virtual = max(self._virtual, timers[0][0])
        while timers and timers[0][0] <= now:
            self._ready.append(heapq.heappop(timers)[-1])

    def end_all(self) -> None:
        """Cancel every task, those of killed actors too, and let them end as far as they do."""
        self.draining = True
        for _ in range(20):
            tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
            if not tasks:
                break
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.cancel()
            for actor in self._actors:
                self._ready.extend(actor.parked)
                actor.parked = []
            for _ in range(20):
                if self._ready:
                    self._run_once()


@contextmanager
def virtual(seed: int) -> Generator[VirtualLoop]:
    """Let a block run on a loop of its own, with clocks and chance that follow from the seed."""
    loop, disabled = VirtualLoop(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    chance = random.Random(f"{seed}:entropy")
    state = random.getstate()
    random.seed(f"{seed}:module")
    clocks = {
        "monotonic": loop.time,
        "monotonic_ns": lambda: int(loop.time() * 1e9),
        "time": lambda: 1_767_225_600 + loop.time(),
        "time_ns": lambda: 1_767_225_600_000_000_000 + int(loop.time() * 1e9),
    }
    try:
        with (
            mock.patch.multiple(time, **clocks),
            mock.patch.multiple(os, urandom=chance.randbytes, getpid=lambda: 1),
            mock.patch.object(socket, "gethostname", return_value="sim"),
            counted_ids(),
        ):
            try:
                yield loop
            finally:
                asyncio.events._set_running_loop(loop)
                try:
                    loop.end_all()
                finally:
                    asyncio.events._set_running_loop(None)
    finally:
        random.setstate(state)
        logging.disable(disabled)
        loop.close()
