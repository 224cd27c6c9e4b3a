"""Attempts of transactional steps: the code, the record of the step and the commit are one.

Code of synchronous steps runs in its thread, and so does all of its transaction.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from holdfast.definitions.transactions import Transaction
from holdfast.errors import DatabaseUnavailable, TransientDatabaseError
from holdfast.events import in_transaction
from holdfast.runtime.code.steps import Call, Restored, completed_step
from holdfast.store.port import Store
from holdfast.store.port.transactions import (
    SERIAL_BITS,
    AlreadyRecorded,
    ConnectionKind,
    Connector,
    DataPlace,
    HeldLease,
    NotBegun,
    OpenTransaction,
    RunNotHeld,
    is_away,
    is_refusal,
    is_transient,
)
from holdfast.types import Event
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.left_ends import LeftEnds
from holdfast.worker.options import WorkerOptions
from holdfast.worker.transaction_attempts import Abandoned, Attempt, InThread, OnLoop, Way, finish

T = TypeVar("T")

logger = logging.getLogger("holdfast.run")

_MOST_TRIES: Final = 10  # of one attempt, if others are in the way of its transaction
_LONG_SECONDS: Final = 10.0  # an open transaction holds locks and a connection
_MARK_SECONDS: Final = 2.0  # for the mark of a cancelled attempt
_FIRST_PAUSE: Final = 0.01  # seconds; then twice as long each time, up to 64 times


class _NotCommitted(Exception):
    """The connection was lost at the commit: nothing was committed, or a look finds it."""


_UNSURE: Final = (_NotCommitted, AlreadyRecorded)
_AGAIN: Final = (*_UNSURE, NotBegun)


class Transactions:
    """Surround the code of transactional steps with their transactions.

    With `seals` results are encoded by the store.
    """

    def __init__(
        self, store: Store, worker_id: str, clock: Clock, options: WorkerOptions, *, seals: bool
    ) -> None:
        self._store, self._worker_id, self._clock, self._options = store, worker_id, clock, options
        self.seals = seals
        self._connectors: dict[tuple[ConnectionKind, type, DataPlace | None], Connector] = {}
        self._making = threading.Lock()
        self._serials = count(1)  # of tries
        self._since: int | None = None  # see `results_since`
        self._closed = False

    def begin(self, call: Call, began: int, *given: Any) -> Attempt:
        """Return an attempt of a transactional step, whose code has its transaction around it.

        `began` tells its run from others of the same id.
        """
        attempt = Attempt(*given)
        function = cast("Transaction[..., object]", attempt.function)
        if function.is_async:
            attempt.code = partial(self._run, attempt, function, call, began, OnLoop())
            return attempt
        way = InThread()

        def in_thread(*args: Any, **kwargs: Any) -> object:
            return finish(self._run(attempt, function, call, began, way, *args, **kwargs))

        attempt.code = in_thread
        return attempt

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        for connector in self._connectors.values():
            await connector.close()

    async def _run(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        began: int,
        way: Way,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> object:
        connector, apart, strict = self._connector(function), function.is_apart, function.is_strict
        if self._since is None:
            self._since = await way.of_store(_answered(self._store.results_since))
        left = LeftEnds(call, began, self._since, attempt.lease_no, attempt.started_at)

        async def use(transaction: OpenTransaction) -> object:
            # What reads the table and writes there would be in the way of others that are strict.
            if not strict and (end := await left.find(transaction, apart=apart)):
                return attempt.take(function, None, end)
            return await self._use(attempt, function, call, way, left, transaction, args, kwargs)

        for tries in count(1):
            left.number = self._number(attempt)
            try:
                found = await self._end_before(attempt, function, call, way, left, tries)
                if found is not None:
                    return attempt.take(function, *found)
                result = await connector.within(use, function.isolation)
                if apart or call.origins:
                    await self._clean(connector, way)
                return result
            except (Exception, asyncio.CancelledError) as error:
                found = await self._end_after(attempt, function, call, way, left, tries, error)
                if found is not None:
                    return attempt.take(function, *found)
            await way.pause(_FIRST_PAUSE * 2 ** min(tries - 1, 6) * random.uniform(0.5, 1))
        raise AssertionError("the loop ends by itself")

    def _number(self, attempt: Attempt) -> int:
        """Return a number after those of all tries of this lease and of earlier ones."""
        return attempt.lease_no << SERIAL_BITS | next(self._serials)

    async def _end_before(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        way: Way,
        left: LeftEnds,
        tries: int,
    ) -> tuple[int | None, Event] | None:
        """Return the end of the step, and its index in the log, if there is one before a try."""
        connector, apart = self._connector(function), function.is_apart
        if attempt.unsure and not apart and (found := await self._end_in_log(call, way)):
            return found
        end, taken_over = None, left.lease_no > 1
        if function.is_strict and (tries > 1 or taken_over):
            end = await connector.within(partial(left.find, apart=True), None)
        elif taken_over and not apart and (call.begun or left.is_old):
            end = await connector.within(left.give_up, None)  # its code had an isolation before
        if end is None and call.origins:
            end = await connector.within(left.close_origins, None)
        return None if end is None else (None, end)

    async def _end_after(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        way: Way,
        left: LeftEnds,
        tries: int,
        error: BaseException,
    ) -> tuple[int | None, Event] | None:
        """Return the end of the step if there is one after a try has failed, None to try again.

        Raises the error if it is the attempt's: then none of its tries commits any more.
        """
        connector, apart = self._connector(function), function.is_apart
        if attempt.unanswered:
            if (end := await way.whole(self._outcome(attempt, connector, way, left))) is not None:
                return None, end
            attempt.stop_commit()
        if isinstance(error, asyncio.CancelledError):
            if apart and left.lease_no > 1:
                with suppress(Exception):
                    async with asyncio.timeout(_MARK_SECONDS):
                        await connector.within(left.give_up, None)
            raise error
        attempt.unsure = attempt.unsure or isinstance(error, _UNSURE)
        if tries < _MOST_TRIES and (isinstance(error, _AGAIN) or is_transient(error)):
            logger.info("the transaction of %s is repeated: %s", call.id, error)
            return None
        if isinstance(error, NotBegun):
            raise DatabaseUnavailable(str(error)) from error  # a name that users know
        found: tuple[int | None, Event] | None = None
        if apart and left.lease_no > 1:
            end = await connector.within(left.give_up, None)
            found = None if end is None else (None, end)
        elif attempt.unsure and not apart:
            found = await self._end_in_log(call, way)
        if found is None:
            raise error
        return found

    async def _outcome(
        self, attempt: Attempt, connector: Connector, way: Way, left: LeftEnds
    ) -> Event | None:
        """Return what a commit without an answer has left beside its data, None for nothing.

        It is waited for, or can come no more. It is asked for as long as the worker runs, also
        when the run has given the attempt up: what undoes it waits for the answer.
        """
        for tries in count():
            left.number = self._number(attempt)
            try:
                return await connector.within(left.give_up, None)
            except Exception as error:
                if self._closed or not (is_away(error) or is_transient(error)):
                    raise
                logger.warning("the result of %s cannot be read: %s", left.key, error)
            await way.pause(min(1, _FIRST_PAUSE * 2 ** min(tries, 7)))
        raise AssertionError("the loop ends by itself")

    async def _use(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        way: Way,
        left: LeftEnds,
        transaction: OpenTransaction,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> object:
        """Call the code, and commit what it has done with the record."""
        if attempt.ended:  # it has waited for a connection, or a pause, in a thread
            raise Abandoned
        began = time.monotonic()
        returned = function.fn(transaction.connection, *args, **kwargs)
        result = await returned if inspect.isawaitable(returned) else returned
        if (took := time.monotonic() - began) > _LONG_SECONDS:
            logger.warning("the code of transaction %s held it open for %.0f s", call.id, took)
        text, restored = function.encode_and_restore(result)
        event = completed_step(call, text, attempt.started_at, self._clock.now())
        index: int | None = None
        if transaction.in_log and not function.is_apart:
            index = await self._record(attempt, call, way, transaction, event)
            event = in_transaction(event)
        else:
            await way.whole(self._keep(attempt, call, way, transaction, event, left))
        attempt.recorded, attempt.result = (index, event), text
        attempt.restored = Restored(restored)
        return result

    def _connector(self, function: Transaction[..., object]) -> Connector:
        (kind, factory), database = function.connection, function.database
        data = None if database is None else (database.url, database.schema)
        with self._making:
            if (kind, factory, data) not in self._connectors:
                size = self._options.transaction_connections
                made = self._store.connector(kind, factory, size, data)
                self._connectors[kind, factory, data] = made
            return self._connectors[kind, factory, data]

    async def _clean(self, connector: Connector, way: Way) -> None:
        """Let a connector delete results that the log has; what fails is tried an hour later."""

        async def needless(run_ids: Sequence[UUID], keys: Sequence[str]) -> Sequence[bool | None]:
            return await way.of_store(self._store.needless_results(run_ids, keys))

        try:
            await connector.clean(needless)
        except Exception:
            logger.exception("old results of transactions are not deleted")

    async def _sealed(self, call: Call, way: Way, event: Event) -> Event:
        stored = in_transaction(event)
        if self.seals:  # also what is kept apart: the log must take it later
            stored = await way.of_store(self._store.sealed_step(call.run_id, stored))
        return stored

    async def _keep(
        self,
        attempt: Attempt,
        call: Call,
        way: Way,
        transaction: OpenTransaction,
        event: Event,
        left: LeftEnds,
    ) -> None:
        """Keep the end beside the data and commit, unless the attempt has ended meanwhile."""
        await self._sealed(call, way, event)
        attempt.begin_commit()
        try:
            kept = Event(event.type, left.key, event.details, event.at)
            await transaction.keep(call.run_id, kept, left.number)
            if time.time() - attempt.began_at > self._options.lease_seconds:
                await self._check_kept(call, way, left)
            try:
                await transaction.commit()
            except (Exception, asyncio.CancelledError) as error:
                if is_refusal(error):
                    raise
                logger.warning("the commit of %s was not answered (%r)", call.id, error)
                attempt.unanswered = True
                raise _NotCommitted(f"its commit was not answered: {error!r}") from error
        except BaseException:
            if not attempt.unanswered:
                attempt.stop_commit()
            raise

    async def _check_kept(self, call: Call, way: Way, left: LeftEnds) -> None:
        """Raise RunNotHeld if a result of the step may have been deleted, as it is needless.

        A worker that sleeps may wake after that. Between this and the commit the server lets few
        seconds pass.
        """
        [needless] = await way.of_store(self._store.needless_results([call.run_id], [left.key]))
        if needless is not False:
            raise RunNotHeld(
                f"another worker has taken over the run of {call.id} while this one slept or "
                "worked: the log has the end of the step, or the run is over"
            )

    async def _record(
        self, attempt: Attempt, call: Call, way: Way, transaction: OpenTransaction, event: Event
    ) -> int:
        """Add the end to the log and commit, unless the attempt has ended meanwhile."""
        stored = await self._sealed(call, way, event)
        attempt.begin_commit()
        try:
            number, seconds = attempt.lease_no, self._options.lease_seconds
            lease = HeldLease(self._worker_id, call.run_id, number, seconds)
            try:
                return await transaction.record(stored, lease, call.mark)
            except (Exception, asyncio.CancelledError) as error:
                if is_refusal(error) or not transaction.sent:
                    raise
                logger.warning("the commit of %s was not answered (%r)", call.id, error)
                index = await way.whole(way.of_store(self._find(call)))
                if index is not None:
                    return index
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise _NotCommitted(f"its commit was not answered: {error!r}") from error
        except BaseException:
            attempt.stop_commit()
            raise

    async def _end_in_log(self, call: Call, way: Way) -> tuple[int, Event] | None:
        """Return the end and its index if a try before was committed after all."""
        if (index := await way.of_store(self._find(call))) is None:
            return None
        logs = await way.of_store(self._store.read_events([(call.run_id, index)]))
        return index, logs[call.run_id][0]

    async def _find(self, call: Call) -> int | None:
        return await _answered(partial(self._store.find_step, call.run_id, call.key))


async def _answered(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask the store until there is an answer."""
    backoff = Backoff()
    while True:
        try:
            return await ask()
        except (DatabaseUnavailable, TransientDatabaseError) as error:
            logger.warning("what was committed cannot be read: %s", error)
        await backoff.wait()
