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
from collections.abc import Mapping, Sequence
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
    AlreadyRecorded,
    ConnectionKind,
    Connector,
    DataPlace,
    HeldLease,
    NotBegun,
    OpenTransaction,
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
    """The connection was lost at the commit: nothing was committed, or the next try finds it."""


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

    def begin(self, call: Call, *given: Any) -> Attempt:
        """Return an attempt of a transactional step, whose code has its transaction around it."""
        attempt = Attempt(*given)
        function = cast("Transaction[..., object]", attempt.function)
        if function.is_async:
            attempt.code = partial(self._run, attempt, function, call, OnLoop())
            return attempt
        way = InThread()

        def in_thread(*args: Any, **kwargs: Any) -> object:
            return finish(self._run(attempt, function, call, way, *args, **kwargs))

        attempt.code = in_thread
        return attempt

    async def close(self) -> None:
        """Close the connections."""
        for connector in self._connectors.values():
            await connector.close()

    async def _run(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        way: Way,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> object:
        connector, apart, strict = self._connector(function), function.is_apart, function.is_strict
        left, end = LeftEnds(call, attempt.lease_no, attempt.started_at), None

        async def use(transaction: OpenTransaction) -> object:
            # What reads the table and writes there would be in the way of others that are strict.
            if not strict and (end := await left.find(transaction, apart=apart or tries > 1)):
                return attempt.take(function, None, end)
            return await self._use(attempt, function, call, way, transaction, args, kwargs)

        unsure = False  # True once a try may have been committed
        for tries in count(1):
            try:
                if unsure and not apart and (found := await self._end_in_log(call, way)):
                    return attempt.take(function, *found)
                if strict and (tries > 1 or attempt.lease_no > 1):
                    end = await connector.within(partial(left.find, apart=True), None)
                if end is None and call.origins:
                    end = await connector.within(left.close_origins, None)
                if end is not None:
                    return attempt.take(function, None, end)
                result = await connector.within(use, function.isolation)
                if apart or call.origins:
                    await self._clean(connector, way)
                return result
            except asyncio.CancelledError:
                if apart and attempt.lease_no > 1:
                    with suppress(Exception):
                        async with asyncio.timeout(_MARK_SECONDS):
                            await connector.within(left.give_up, None)
                raise
            except Exception as error:
                again = isinstance(error, _AGAIN) or is_transient(error)
                unsure = unsure or isinstance(error, _UNSURE)
                if tries == _MOST_TRIES and isinstance(error, NotBegun):
                    raise DatabaseUnavailable(str(error)) from error  # a name that users know
                if tries == _MOST_TRIES or not again:
                    if apart and attempt.lease_no > 1:
                        end = await connector.within(left.give_up, None)
                    if end is None:
                        raise
                    return attempt.take(function, None, end)
                logger.info("the transaction of %s is repeated: %s", call.id, error)
            await way.pause(_FIRST_PAUSE * 2 ** min(tries - 1, 6) * random.uniform(0.5, 1))
        raise AssertionError("the loop ends by itself")

    async def _use(
        self,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        way: Way,
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
        record = self._record(attempt, call, way, transaction, event, apart=function.is_apart)
        in_log = transaction.in_log and not function.is_apart  # where a look finds it
        if (index := await (record if in_log else way.whole(record))) is not None:
            attempt.recorded, attempt.result = (index, in_transaction(event)), text
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

    async def _record(
        self,
        attempt: Attempt,
        call: Call,
        way: Way,
        transaction: OpenTransaction,
        event: Event,
        *,
        apart: bool,
    ) -> int | None:
        """Record the end and commit, unless the attempt has ended meanwhile."""
        stored = in_transaction(event)
        if self.seals:  # also what is kept apart: the log must take it later
            stored = await way.of_store(self._store.sealed_step(call.run_id, stored))
        if not attempt.gate.acquire(blocking=False):
            raise Abandoned
        ends_at = None
        try:
            ends_at = attempt.suspend_limit()
            if attempt.ended:  # while a try before this one had the gate
                raise Abandoned
            index = None
            try:
                if apart:
                    await transaction.keep(call.run_id, event, attempt.lease_no)
                    await transaction.commit()
                else:
                    number, seconds = attempt.lease_no, self._options.lease_seconds
                    lease = HeldLease(self._worker_id, call.run_id, number, seconds)
                    index = await transaction.record(stored, lease, call.mark)
            except (Exception, asyncio.CancelledError) as error:
                if is_refusal(error) or not transaction.sent:
                    raise
                logger.warning("the commit of %s was not answered (%r)", call.id, error)
                if not apart:  # else the next try finds what is there
                    index = await way.whole(way.of_store(self._find(call)))
                if index is None and isinstance(error, asyncio.CancelledError):
                    raise
                if index is None:
                    raise _NotCommitted(f"its commit was not answered: {error!r}") from error
        except BaseException:
            attempt.gate.release()
            attempt.resume_limit(ends_at)
            raise
        return index

    async def _end_in_log(self, call: Call, way: Way) -> tuple[int, Event] | None:
        """Return the end and its index if a try before was committed after all."""
        if (index := await way.of_store(self._find(call))) is None:
            return None
        logs = await way.of_store(self._store.read_events([(call.run_id, index)]))
        return index, logs[call.run_id][0]

    async def _find(self, call: Call) -> int | None:
        """Look for the record in the log until there is an answer."""
        backoff = Backoff()
        while True:
            try:
                return await self._store.find_step(call.run_id, call.key)
            except (DatabaseUnavailable, TransientDatabaseError) as error:
                logger.warning("the log of run %s cannot be read: %s", call.run_id, error)
            await backoff.wait()
