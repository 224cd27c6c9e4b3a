"""A claimer that is also woken by hints, each of which one worker of several gets.

A worker reads hints only while it could take more. A worker that reads one and cannot take all of
the work passes the hint on to two others: so one hint soon wakes as many workers as the work needs,
and few more. A worker that has no thread for some handlers could take the work of the others. It
passes nothing on, because the next one like it would do the same: it has all workers notified.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.store.port import WORK_TOPIC
from holdfast.store.port.listening import HintReader
from holdfast.types import Notice
from holdfast.values.loggers import get_logger
from holdfast.worker.claimer import Accept, Claimer

logger = get_logger("holdfast.worker")

_CANCEL_SECONDS: Final = 1.0
_BETWEEN_SECONDS: Final = 0.25  # at least, between two times that hints are passed on
_SELDOM: Final = 2.5  # times as long between two polls as without hints: a statement less a second


class HintedClaimer(Claimer):
    """Claims for one worker when hints come, besides all that wakes a `Claimer`."""

    def __init__(self, reader: HintReader, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reader = reader
        self._looked = asyncio.Event()  # a claim was made after all that woke the claimer
        self._hints: Sequence[Notice] = ()  # for which no claim was made yet
        self._passed_on = -math.inf  # when hints were passed on last, on the event loop's clock
        self._reading: asyncio.Task[None] | None = None

    async def start(self, takers: Mapping[str, Accept]) -> None:
        """Claim from now on, and read hints. Idempotent."""
        await super().start(takers)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="holdfast hints")

    async def stop(self) -> None:
        """Stop reading hints, then claiming. Others are told of hints that were read in vain."""
        reading, self._reading = self._reading, None
        if reading is not None:
            while not reading.done():  # a client library may swallow the first request
                reading.cancel()
                await asyncio.wait([reading], timeout=_CANCEL_SECONDS)
            told, self._hints = self._hints, ()
            self._notify(list(told))
            left = await self._reader.close()
            self._notify([hint for hint in left if hint not in told])
        await super().stop()

    @property
    def _longest_pause(self) -> float:
        seldom = _SELDOM if self._reader.suffices else 1.0
        return seldom * self._poll_seconds

    async def _wait(self) -> None:
        if not self._asked:
            self._looked.set()
        await super()._wait()

    async def _read(self) -> None:
        while True:
            try:
                await self._read_once()
            except Exception:
                logger.exception("reading hints failed")
                await asyncio.sleep(1)

    async def _read_once(self) -> None:
        while self._short and not self._choosy:
            await self._claim_made()
        self._hints = await self._reader.read()
        self._looked.clear()
        for hint in self._hints:
            self.notified(hint.payload)
        await self._looked.wait()
        loop = asyncio.get_running_loop()
        if self._short:  # while all workers are, each hint that is passed on costs a claim
            await asyncio.sleep(self._passed_on + _BETWEEN_SECONDS - loop.time())
        if self._short:
            self._passed_on = loop.time()
            if self._choosy:
                self._notify([Notice(WORK_TOPIC, hint.payload) for hint in self._hints])
            elif not await self._reader.pass_on(self._hints):
                self._notify(list(self._hints))
        self._hints = ()
        await self._reader.done()

    async def _claim_made(self) -> None:
        self._looked.clear()
        await self._looked.wait()
