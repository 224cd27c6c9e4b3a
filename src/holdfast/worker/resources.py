"""What a worker opens for its steps and activities, and closes when they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from holdfast.codec import describe
from holdfast.definitions.lifespan import Lifespan, bind_lifespans
from holdfast.errors import ConfigurationError
from holdfast.values.loggers import get_logger
from holdfast.values.waits import to_the_end

logger = get_logger("holdfast.worker")

_CLOSE_SECONDS: Final = 5.0  # for a lifespan to close, once a stop has to end soon


class Resources:
    """Open lifespans in order and close them in reverse, all in one task.

    It is a task of its own because task groups and cancel scopes must be closed in the task that
    opened them.
    """

    def __init__(
        self, lifespans: Sequence[Lifespan[Any]], own: Mapping[Lifespan[Any], object] = {}
    ) -> None:
        """`own` are resources of the worker itself."""
        self.values: dict[Lifespan[Any], object] = dict(own)
        self._lifespans = lifespans
        self._closing, self._grace_ended = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the lifespans. If one fails, close those before it and raise ConfigurationError.

        Idempotent.
        """
        if self._task is None and self._lifespans:
            self._closing.clear()
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(opened), name="holdfast lifespans")
            try:
                await opened
            except BaseException:
                self._task.cancel()
                await to_the_end(self.stop(), self.end_grace)
                raise

    async def stop(self) -> None:
        """Close the lifespans. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing.set()
        grace_ended = asyncio.create_task(self._grace_ended.wait())
        await asyncio.wait({task, grace_ended}, return_when=asyncio.FIRST_COMPLETED)
        while not task.done():
            left = len(self.values)
            await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
            if len(self.values) == left:  # else what closes now began meanwhile
                task.cancel()
        grace_ended.cancel()
        await asyncio.gather(task, grace_ended, return_exceptions=True)

    def end_grace(self) -> None:
        """Cancel each lifespan that takes more than a few seconds to close from now on."""
        self._grace_ended.set()

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        bind_lifespans(self.values)  # each may use those before it
        entered: list[tuple[Lifespan[Any], AbstractAsyncContextManager[object]]] = []
        try:
            for lifespan in self._lifespans:
                if not lifespan.overridden:
                    entered.append((lifespan, await self._enter(lifespan)))
            if not opened.done():
                opened.set_result(None)
            await self._closing.wait()
        except ConfigurationError as error:
            if not opened.done():
                opened.set_exception(error)
        finally:
            opened.cancel()  # if it failed with a BaseException
            for lifespan, manager in reversed(entered):
                await self._leave(lifespan, manager)

    async def _enter(self, lifespan: Lifespan[Any]) -> AbstractAsyncContextManager[object]:
        try:
            manager = lifespan.open()
            self.values[lifespan] = await manager.__aenter__()
        except Exception as error:
            raise ConfigurationError(
                f"the lifespan {lifespan.name}{lifespan.place} cannot be opened, so the worker "
                f"does not start: {describe(error)}"
            ) from error
        return manager

    async def _leave(
        self, lifespan: Lifespan[Any], manager: AbstractAsyncContextManager[object]
    ) -> None:
        del self.values[lifespan]
        try:
            await manager.__aexit__(None, None, None)
        except (Exception, asyncio.CancelledError):  # also of a task that it has cancelled itself
            logger.exception("the lifespan %s failed to close", lifespan.name)
