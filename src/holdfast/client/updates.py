"""Hear and look for the answers to updates: one topic serves every caller of a client.

An update is a signal with an id; its answer is an event of the run's log. Whoever answers tells
the topic, but wake-ups may get lost, so each answer is also looked for, ever more seldom. A run
that ends without an answer is heard of as those are who wait for its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from uuid import UUID, uuid4

import msgspec

from holdfast.client.chains import successor
from holdfast.client.waiting import EndWatcher
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    RunEnded,
    RunNotFound,
    TransientDatabaseError,
    UpdateFailed,
    UpdateRejected,
)
from holdfast.store.port import Store
from holdfast.types import ErrorInfo, Event

logger = logging.getLogger("holdfast.client")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 4.0


class _Answer(msgspec.Struct):
    """The details of UpdateCompleted and UpdateRejected."""

    update_name: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorInfo | None = None


class Replies:
    """Waits for the answers to the updates that a client has sent."""

    def __init__(self, store: Store, ends: EndWatcher) -> None:
        self.topic = f"reply/{uuid4().hex}"
        self._store, self._ends = store, ends
        self._expected: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listening = asyncio.Lock()
        self._stop_listening: Callable[[], Awaitable[None]] | None = None

    async def listen(self) -> None:
        """Hear of answers from now on. Idempotent."""
        async with self._listening:
            if self._stop_listening is None:
                try:
                    self._stop_listening = await self._store.listen(self.topic, self._hear)
                except DatabaseError as error:
                    logger.debug("cannot listen, so answers are found by looking: %s", error)

    async def close(self) -> None:
        """Stop listening."""
        if self._stop_listening is not None:
            stop, self._stop_listening = self._stop_listening, None
            try:
                await stop()
            except DatabaseError as error:
                logger.debug("left a topic behind: %s", error)

    @contextmanager
    def expect(self, update_id: str) -> Generator[asyncio.Event]:
        """Give what is set when an update may have been answered. Enter before it is sent."""
        woken = asyncio.Event()
        self._expected[update_id].add(woken)
        try:
            yield woken
        finally:
            self._expected[update_id].discard(woken)
            if not self._expected[update_id]:
                del self._expected[update_id]

    async def find(
        self, run_id: UUID, update_id: str, woken: asyncio.Event, *, at_once: bool
    ) -> str:
        """Wait for an update's answer and return its result as JSON text.

        A run that continues as new takes the update along, unless it has begun with it. Raises
        UpdateRejected, UpdateFailed, RunEnded for a run that ended without an answer, and
        RunNotFound.
        """
        while True:
            found = await self._follow(run_id, update_id, woken, at_once=at_once)
            if isinstance(found, Event):
                return _result(run_id, found)
            run_id, at_once = found, True

    async def _follow(
        self, run_id: UUID, update_id: str, woken: asyncio.Event, *, at_once: bool
    ) -> Event | UUID:
        """Wait for the answer of one run, or for the run that the update went on to."""
        if not at_once:
            await _wait(woken, FIRST_PAUSE_SECONDS)
        found = await self._look(run_id, update_id, woken)
        if found is not None:
            return found
        async with self._ends.expect(run_id) as end:  # what takes long may end with the run
            self._ends.watch(run_id)
            end.add_done_callback(lambda _: woken.set())
            pause = FIRST_PAUSE_SECONDS
            while found is None:
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                await _wait(woken, pause)
                found = await self._look(run_id, update_id, woken)
            return found

    async def _look(
        self, run_id: UUID, update_id: str, woken: asyncio.Event
    ) -> Event | UUID | None:
        """Look once; None also where the database cannot say now."""
        woken.clear()
        try:
            return await self._ask(run_id, update_id)
        except (DatabaseUnavailable, TransientDatabaseError) as error:
            logger.debug("cannot look for an answer now: %s", error)
            return None

    async def _ask(self, run_id: UUID, update_id: str) -> Event | UUID | None:
        """Return the answer, or the run that the update went on to, or None before either."""
        answer = await self._store.find_reply(run_id, update_id)
        if answer is not None:
            return answer
        run = (await self._store.get_runs([run_id])).get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if run.status == "running":
            return None
        # The answer may have been the last thing that the run did since the look above.
        answer = await self._store.find_reply(run_id, update_id)
        if answer is not None:
            return answer
        next_id = successor(run)
        if next_id is None or await self._was_begun(run_id, update_id):
            raise RunEnded(run_id, run.status)
        return next_id

    async def _was_begun(self, run_id: UUID, update_id: str) -> bool:
        """Say whether a handler was at work on an update, which then does not go along."""
        log = (await self._store.read_events([(run_id, 0)])).get(run_id, [])
        return any(event.type == "UpdateAccepted" and event.key == update_id for event in log)

    def _hear(self, payload: str) -> None:
        _, _, update_id = payload.partition(" ")
        if update_id:
            wakened = self._expected.get(update_id, set[asyncio.Event]())
        else:  # the connection was away: wake-ups may have been missed
            wakened = {each for every in self._expected.values() for each in every}
        for each in wakened:
            each.set()


def _result(run_id: UUID, event: Event) -> str:
    answer = msgspec.json.decode(event.details or "null", type=_Answer)
    if answer.error is None:
        return bytes(answer.result).decode()
    kind = UpdateRejected if event.type == "UpdateRejected" else UpdateFailed
    raise kind(run_id, answer.update_name, answer.error)


async def _wait(woken: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        pass
