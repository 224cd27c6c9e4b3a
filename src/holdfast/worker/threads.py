"""Which attempts use the threads of a worker, and which wait for one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final, Protocol

from holdfast.definitions.app import App
from holdfast.definitions.middleware import ThreadLayer
from holdfast.types import ThreadUse
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.worker")

STEP_THREADS: Final = "holdfast-step"  # the prefix of the names of threads of steps and activities

_LONG_SECONDS: Final = 2.0  # a longer wait for a thread is warned of
_SOON_SECONDS: Final = 0.25  # as many as ended within this time are expected to end within it again
_NAMED: Final = 5


class AttemptExit(Exception):
    """The code of an attempt tried to exit the interpreter. It fails, and the worker continues."""


class ThreadUser(Protocol):
    """An attempt that runs in a thread."""

    @property
    def name(self) -> str:
        """The name of the step or activity."""
        ...

    @property
    def kind(self) -> str:
        """What it is an attempt of, in a word."""
        ...

    @property
    def ended(self) -> bool:
        """True if no run waits for its result any more."""
        ...

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start its clock: it has a thread now."""
        ...


class ThreadBook:
    """Count attempts in threads, and call their functions. `size` None means without a limit.

    `layers` are the middleware around each call in its thread, outermost first.

    A thread cannot be stopped: an attempt that has timed out or was cancelled keeps its thread
    until its function returns. The threads write here, and so does the event loop.
    """

    def __init__(self, size: int | None = None, layers: Sequence[ThreadLayer] = ()) -> None:
        self._size, self._layers = size, layers
        self._waiting: dict[ThreadUser, float] = {}  # since when, oldest first
        self._running: dict[ThreadUser, None] = {}
        self._ends: deque[float] = deque(maxlen=1000)  # when the last attempts ended
        self._warned = False
        self._freed: Callable[[], None] | None = None

    def wait(self, execution: ThreadUser) -> None:
        """Count an attempt that waits for a thread."""
        self._waiting[execution] = time.monotonic()

    def forget(self, execution: ThreadUser) -> None:
        """Stop counting an attempt that no longer waits for a thread."""
        self._waiting.pop(execution, None)

    def begin(self, execution: ThreadUser) -> None:
        """Count an attempt that has a thread now."""
        self._running[execution] = None
        self._waiting.pop(execution, None)

    def run(self, call: Callable[[], object]) -> object:
        """Call a function in this thread, with the middleware around it, and return its result."""
        for layer in reversed(self._layers):
            call = partial(layer, call)
        return call()

    def end(self, execution: ThreadUser, loop: asyncio.AbstractEventLoop) -> None:
        """Stop counting an attempt: its thread is free again."""
        del self._running[execution]
        self._ends.append(time.monotonic())
        freed, self._freed = self._freed, None
        if freed is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(freed)

    def execute(
        self, execution: ThreadUser, loop: asyncio.AbstractEventLoop, call: Callable[[], object]
    ) -> object:
        """Call the function of an attempt in this thread, unless it has ended meanwhile."""
        self.begin(execution)
        try:
            execution.begin(loop)
            return None if execution.ended else self.run(call)
        except (SystemExit, KeyboardInterrupt, StopIteration) as error:
            raise AttemptExit(f"the {execution.kind} raised {error!r}") from error
        finally:
            self.end(execution, loop)

    def free(self, most: int) -> int:
        """Return how many more attempts could begin immediately or soon, at most `most`.

        Where attempts are short, some wait at hand, so that no thread waits for the database.
        """
        if self._size is None:
            return most
        threads = self._size + self._expected()
        return max(0, min(most, threads - len(self._running) - len(self._waiting)))

    def _expected(self) -> int:
        """Return how many attempts will end soon, if they take as long as those before."""
        since = time.monotonic() - _SOON_SECONDS
        while self._ends and self._ends[0] < since:
            self._ends.popleft()
        return len(self._ends)

    def late(self, seconds: float) -> list[ThreadUser]:
        """Return the attempts that have waited for a thread for so long."""
        since = time.monotonic() - seconds
        return [each for each, begun in list(self._waiting.items()) if begun <= since]

    def tell_when_free(self, freed: Callable[[], None]) -> None:
        """Call `freed` once, on the event loop, when a thread is free again."""
        self._freed = freed

    def look(self) -> ThreadUse | None:
        """Warn of attempts that wait for a thread; return `use()`. Safe from any thread."""
        self.warn()
        return self.use()

    @property
    def busy(self) -> bool:
        """True if an attempt has a thread, or waits for one."""
        return bool(self._running or self._waiting)

    def use(self) -> ThreadUse | None:
        """Return how the threads are used, None without a limit. Safe from any thread."""
        if self._size is None:
            return None
        running = list(self._running)
        abandoned = sum(execution.ended for execution in running)
        return ThreadUse(self._size, len(running), abandoned, len(self._waiting))

    def warn(self) -> None:
        """Warn once if attempts wait long for a thread. Safe from any thread; call it often."""
        waiting = list(self._waiting.items())
        longest = time.monotonic() - waiting[0][1] if waiting else 0.0
        if longest < _LONG_SECONDS:
            self._warned = self._warned and bool(waiting)
            return
        if self._warned:
            return
        self._warned = True
        running = list(self._running)
        abandoned = [execution for execution in running if execution.ended]
        logger.warning(
            "all %d threads for steps and activities are in use, by %s; %d attempt(s) wait, the "
            "first for %.0f s: %s.%s Start the worker with more --threads, or make the functions "
            "that wait async",
            len(running),
            _names(running),
            len(waiting),
            longest,
            _names([execution for execution, _ in waiting]),
            f" {len(abandoned)} of the threads run attempts that have timed out or were cancelled "
            f"({_names(abandoned)}): give their calls a time-out of their own."
            if abandoned
            else "",
        )


def _names(executions: list[ThreadUser]) -> str:
    names = dict.fromkeys(execution.name for execution in executions)
    shown = ", ".join(list(names)[:_NAMED])
    return f"{shown}, …" if len(names) > _NAMED else shown


def claimable_by_threads(
    book: ThreadBook, handlers: Sequence[str], in_threads: Set[str]
) -> Callable[[int, Callable[[], None]], tuple[int, Sequence[str]]] | None:
    """Return a function that limits claims to what threads can begin.

    Handlers `in_threads`, of sync activities and of flows with sync steps, are claimed only if a
    thread is free for them: while they wait here, another worker could execute them. The function
    gets the room of the worker, and returns how many tasks to claim, and of which handlers. Its
    second argument is called when a thread is free after there was none. Return None if there are
    no such handlers.
    """
    if not in_threads:
        return None
    others = tuple(each for each in handlers if each not in in_threads)

    def claimable(room: int, freed: Callable[[], None]) -> tuple[int, Sequence[str]]:
        free = book.free(room)
        if not free:
            book.tell_when_free(freed)
            free = book.free(room)  # a thread may have ended in between
        if free:
            return free, handlers
        return (room if others else 0), others

    return claimable


def handlers_in_threads(app: App) -> set[str]:
    """Return the handlers of activities that need a thread, and of flows with such steps."""
    activities = {each.handler for each in app.activities.values() if not each.is_async}
    return activities | {
        flow.handler
        for flow in app.flows.values()
        if not all(step.is_async for step in flow.steps.values())
    }
