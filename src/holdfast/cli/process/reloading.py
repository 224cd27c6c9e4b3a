"""The development loop: a worker as a child process that is replaced when a file changes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from holdfast.cli import exits
from holdfast.cli.process.supervising import Child, StartWorker, TellOfCrash, describe_exit
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.dev")

_PAUSE_SECONDS = 1.0  # before a crashed worker is replaced


class Reloader:
    """Keeps one worker running, and replaces it after each batch of changes.

    A worker that cannot load its app is not started again before the next change. If the first
    worker cannot load it, the command ends: the app may be misspelled.
    """

    def __init__(
        self,
        start: StartWorker,
        crashed: TellOfCrash,
        changes: AsyncIterator[list[Path]],
        grace_seconds: float,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._start, self._crashed, self._changes = start, crashed, changes
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._loaded = False  # a worker has been able to load the app

    @property
    def child(self) -> Child | None:
        """The process of the worker, None while there is none."""
        return self._child

    def stop(self) -> None:
        """Let the worker drain; a second call ends it at once."""
        self._stopping.set()
        if self._child is not None:
            self._child.terminate(self._grace_seconds)

    async def run(self) -> int:
        """Run until stopped; return the exit code."""
        watching = asyncio.create_task(self._watch(), name="holdfast file watch")
        try:
            while not self._stopping.is_set():
                if await self._once() == exits.USAGE and not self._loaded:
                    return exits.USAGE
            return exits.OK
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _once(self) -> int | None:
        """Start a worker and wait for its end; return its exit code if it ended by itself."""
        self._changed.clear()
        child = self._child = await self._start(0)
        if self._stopping.is_set():
            child.terminate(self._grace_seconds)
        code = await self._until_ended_or_changed(child)
        self._child = None
        if code is None or self._stopping.is_set():
            return None
        if code == exits.USAGE:
            if self._loaded:
                logger.warning("the app could not be loaded; waiting for the next change")
                await self._first_of(self._changed.wait(), self._stopping.wait())
            return code
        self._loaded = True
        logger.warning("the worker %s; another starts", describe_exit(code))
        await self._crashed(child)
        await self._first_of(asyncio.sleep(_PAUSE_SECONDS), self._stopping.wait())
        return code

    async def _until_ended_or_changed(self, child: Child) -> int | None:
        """Return the exit code, or None if the worker was stopped because of a change."""
        await self._first_of(child.ended(), self._changed.wait())
        if not child.alive:
            return await child.ended()
        child.signal(signal.SIGTERM)  # no SIGKILL: a debugger may have stopped it
        self._loaded |= await child.ended() != exits.USAGE
        return None

    async def _watch(self) -> None:
        async for paths in self._changes:
            names = ", ".join(sorted(path.name for path in paths)[:3])
            logger.info("%s changed: the worker starts again", names)
            self._changed.set()

    @staticmethod
    async def _first_of(*waits: Awaitable[object]) -> None:
        tasks = [asyncio.ensure_future(each) for each in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def python_changes(directory: Path) -> AsyncIterator[list[Path]]:
    """Yield each batch of changed Python files below a directory."""
    from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType]

    async for changes in awatch(directory, watch_filter=PythonFilter()):
        yield [Path(path) for _, path in changes]
