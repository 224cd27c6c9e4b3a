"""Wait for the answers to updates: one topic serves all callers of a client.

An update is a signal with an id; its answer is an event of the run's log. The worker that answers
notifies the topic. Wake-ups may get lost, so each answer is also looked for, at growing intervals.
The end of a run that has not answered is found as it is for callers that wait for results.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias
from uuid import UUID, uuid4

import msgspec

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
from holdfast.types import ErrorInfo, Event, continued_as
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within

logger = get_logger("holdfast.client")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 4.0


_Ask: TypeAlias = Callable[[], Awaitable["Event | UUID | None"]]


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
        self._answered: dict[str, UUID] = {}  # of updates that are expected, the runs that answered
        self._listening = asyncio.Lock()
        self._stop_listening: Callable[[], Awaitable[None]] | None = None

    async def listen(self) -> None:
        """Listen for answers. Idempotent."""
        async with self._listening:
            if self._stop_listening is None:
                try:
                    self._stop_listening = await self._store.listen(self.topic, self._hear)
                except DatabaseError as error:
                    logger.debug("cannot listen, so answers are found by polling: %s", error)

    async def close(self) -> None:
        """Stop listening."""
        if self._stop_listening is not None:
            stop, self._stop_listening = self._stop_listening, None
            try:
                await stop()
            except DatabaseError as error:
                logger.debug("could not stop to listen for answers: %s", error)

    @contextmanager
    def expect(self, update_id: str) -> Generator[asyncio.Event]:
        """Return an event that is set when an update may have an answer. Enter before sending."""
        woken = asyncio.Event()
        self._expected[update_id].add(woken)
        try:
            yield woken
        finally:
            self._expected[update_id].discard(woken)
            if not self._expected[update_id]:
                del self._expected[update_id]
                self._answered.pop(update_id, None)

    async def find(
        self,
        run_id: UUID,
        update_id: str,
        woken: asyncio.Event,
        limit: asyncio.Timeout,
        *,
        delivered: bool,
        entity: str | None = None,
    ) -> str:
        """Wait for an update's answer and return its result as JSON text.

        A run that continues as new passes the update on, unless its handler has begun; one that is
        retried, or is that of an `entity`, does in any case. Raises UpdateRejected, UpdateFailed,
        RunNotFound, and RunEnded if the run ended without an answer. The `limit` does not end the
        first look for what was not delivered, which says why.
        """
        ask = partial(self._ask, update_id=update_id, of_entity=entity is not None)
        found = None if delivered else await self._look(partial(ask, run_id), woken)
        async with limit:
            while not isinstance(found, Event):
                if found is not None:
                    run_id, delivered = found, False
                look = partial(ask, run_id)
                found = await self._follow(run_id, look, woken, at_once=not delivered)
        return read_reply(run_id, found, entity)

    async def _follow(
        self, run_id: UUID, ask: _Ask, woken: asyncio.Event, *, at_once: bool
    ) -> Event | UUID:
        """Wait for the answer of one run, or for the run that the update was passed on to."""
        if not at_once:
            await set_within(woken, FIRST_PAUSE_SECONDS)
        found = await self._look(ask, woken)
        if found is not None:
            return found
        async with self._ends.expect(run_id) as end:  # it may end and never answer
            self._ends.watch(run_id)
            end.add_done_callback(lambda _: woken.set())
            pause = FIRST_PAUSE_SECONDS
            while found is None:
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                await set_within(woken, pause)
                found = await self._look(ask, woken)
            return found

    @staticmethod
    async def _look(ask: _Ask, woken: asyncio.Event) -> Event | UUID | None:
        """Look once. Return None also if the database cannot be asked now."""
        woken.clear()
        try:
            return await ask()
        except (DatabaseUnavailable, TransientDatabaseError) as error:
            logger.debug("cannot look for an answer now: %s", error)
            return None

    async def _ask(
        self, run_id: UUID, update_id: str, *, of_entity: bool = False
    ) -> Event | UUID | None:
        """Return the answer, or the run that the update was passed on to, or None for neither."""
        if (answered := self._answered.pop(update_id, run_id)) != run_id:
            # The runs between passed it on, unless another run has an update with this id, too.
            # It is asked once: what a worker says that was killed may not have been recorded.
            newest = await self._store.newest_runs([run_id, answered])
            if newest.get(run_id, run_id) == newest.get(answered):
                return answered
        answer = await self._store.find_reply(run_id, update_id)
        if answer is not None:
            return answer
        run = (await self._store.get_runs([run_id])).get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if run.status == "running":
            return None
        # The run may have answered and ended since the look above.
        answer = await self._store.find_reply(run_id, update_id)
        if answer is not None:
            return answer
        next_id = continued_as(run)
        if next_id is None:
            raise RunEnded(run_id, run.status)
        always = of_entity or run.last_failure is not None
        if not always and await self.was_begun(run_id, update_id):
            raise RunEnded(run_id, run.status)
        return next_id

    async def was_begun(self, run_id: UUID, update_id: str) -> bool:
        """Return True if a handler has begun with an update, which is then not passed on."""
        log = (await self._store.read_events([(run_id, 0)])).get(run_id, [])
        return any(event.type == "UpdateAccepted" and event.key == update_id for event in log)

    def _hear(self, payload: str) -> None:
        run_id, _, update_id = payload.partition(" ")
        if update_id:
            wakened = self._expected.get(update_id, set[asyncio.Event]())
            with suppress(ValueError):
                if wakened:
                    self._answered[update_id] = UUID(run_id)
        else:  # the connection was away: wake-ups may have been missed
            wakened = {each for every in self._expected.values() for each in every}
        for each in wakened:
            each.set()


def read_reply(run_id: UUID, event: Event, entity: str | None = None) -> str:
    """Return the result of an answer as JSON text. Raises UpdateRejected and UpdateFailed.

    Of a call, `entity` is the name and the key of the entity that has answered it.
    """
    answer = msgspec.json.decode(event.details or "null", type=_Answer)
    if answer.error is None:
        return bytes(answer.result).decode()
    kind = UpdateRejected if event.type == "UpdateRejected" else UpdateFailed
    raise kind(run_id, answer.update_name, answer.error, entity=entity)
