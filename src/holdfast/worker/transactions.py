"""Attempts of transactional steps: the code, the record of the step and the commit are one.

Code of synchronous steps runs in its thread, and so does all of its transaction.
"""

from __future__ import annotations

import asyncio
import inspect
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
from holdfast.values.loggers import get_logger
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.left_ends import LeftEnds
from holdfast.worker.options import WorkerOptions
from holdfast.worker.transaction_attempts import Abandoned, Attempt, InThread, OnLoop, Way, finish

T = TypeVar("T")

logger = get_logger("holdfast.run")

_MOST_TRIES: Final = 10  # of one attempt, if others are in the way of its transaction
_LONG_SECONDS: Final = 10.0  # an open transaction holds locks and a connection
_MARK_SECONDS: Final = 2.0  # for the mark of a cancelled attempt
_FIRST_PAUSE: Final = 0.01  # seconds; then twice as long each time, up to 64 times


class _NotCommitted(Exception):
    """The connection was lost at the commit: nothing was committed, or a look finds it."""


_UNSURE: Final = (_NotCommitted, AlreadyRecorded)


class Transactions:
    """Surround the code of transactional steps with their transactions.

    With `seals` results are encoded by the store.
    """

    def __init__(
        self, store: Store, worker_id: str, clock: Clock, options: WorkerOptions, *, seals: bool
    ) -> None:
        self.store, self.worker_id, self.clock, self.options = store, worker_id, clock, options
        self.seals, self.closed = seals, False
        self._connectors: dict[tuple[ConnectionKind, type, DataPlace | None], Connector] = {}
        self._making = threading.Lock()
        self._serials = count(1)  # of tries
        self._since: int | None = None  # see `results_since`

    def begin(self, call: Call, began: int, *given: Any) -> Attempt:
        """Return an attempt of a transactional step, whose code has its transaction around it.

        `began` tells its run from others of the same id.
        """
        attempt = Attempt(*given)
        function = cast("Transaction[..., object]", attempt.function)
        if function.is_async:
            attempt.code = _Tries(self, attempt, function, call, began, OnLoop()).run
            return attempt
        tries = _Tries(self, attempt, function, call, began, InThread())

        def in_thread(*args: Any, **kwargs: Any) -> object:
            return finish(tries.run(*args, **kwargs))

        attempt.code = in_thread
        return attempt

    async def close(self) -> None:
        """Close the connections."""
        self.closed = True
        for connector in self._connectors.values():
            await connector.close()

    def connector(self, function: Transaction[..., object]) -> Connector:
        """Return what lends connections to the code of a transaction."""
        (kind, factory), database = function.connection, function.database
        data = None if database is None else (database.url, database.schema)
        with self._making:
            if (kind, factory, data) not in self._connectors:
                size = self.options.transaction_connections
                made = self.store.connector(kind, factory, size, data)
                self._connectors[kind, factory, data] = made
            return self._connectors[kind, factory, data]

    async def since(self, way: Way) -> int:
        """Return since when results say of which run they are."""
        if self._since is None:
            self._since = await way.of_store(_answered(self.store.results_since))
        return self._since

    def number(self, lease_no: int) -> int:
        """Return a number after those of all tries of this lease and of earlier ones."""
        return lease_no << SERIAL_BITS | next(self._serials)


class _Tries:
    """The tries of an attempt: in each its code, the record of the step and the commit are one."""

    def __init__(
        self,
        owner: Transactions,
        attempt: Attempt,
        function: Transaction[..., object],
        call: Call,
        began: int,
        way: Way,
    ) -> None:
        self._owner, self._store, self._attempt = owner, owner.store, attempt
        self._function, self._call, self._began, self._way = function, call, began, way
        self._apart, self._later = function.is_apart, attempt.lease_no > 1
        self._most = _MOST_TRIES

    async def run(self, /, *args: Any, **kwargs: Any) -> object:
        """Try until the transaction is committed, or the attempt has failed."""
        attempt, function, call = self._attempt, self._function, self._call
        self._connector, since = self._owner.connector(function), await self._owner.since(self._way)
        self._left = LeftEnds(call, self._began, since, attempt.lease_no, attempt.started_at)

        async def use(transaction: OpenTransaction) -> object:
            # What reads the table and writes there would be in the way of others that are strict.
            strict = function.is_strict
            if not strict and (end := await self._left.find(transaction, apart=self._apart)):
                return attempt.take(function, None, end)
            return await self._use(transaction, args, kwargs)

        for tries in count(1):
            self._left.number = self._owner.number(attempt.lease_no)
            try:
                if (found := await self._end_before(tries)) is not None:
                    return attempt.take(function, *found)
                result = await self._connector.within(use, function.isolation)
                if self._apart or call.origins:
                    await self._clean()
                return result
            except (Exception, asyncio.CancelledError) as error:
                if (found := await self._end_after(tries, error)) is not None:
                    return attempt.take(function, *found)
            pause = _FIRST_PAUSE * 2 ** min(tries - 1, 6) * random.uniform(0.5, 1)
            await self._way.pause(pause)
        raise AssertionError("the loop ends by itself")

    async def _end_before(self, tries: int) -> tuple[int | None, Event] | None:
        """Return the end of the step, and its index in the log, if there is one before a try."""
        call, left, within = self._call, self._left, self._connector.within
        unsure = self._attempt.unsure and not self._apart
        if unsure and (found := await self._end_in_log()):
            return found
        end = None
        if self._function.is_strict and (tries > 1 or self._later):
            end = await within(partial(left.find, apart=True), None)
        elif self._later and not self._apart and (call.begun or left.is_old):
            end = await within(left.give_up, None)  # its code had an isolation before
        if end is None and call.origins:
            end = await within(left.close_origins, None)
        return None if end is None else (None, end)

    async def _end_after(self, tries: int, error: BaseException) -> tuple[int | None, Event] | None:
        """Return the end of the step if there is one after a try has failed, None to try again.

        Raises the error if it is the attempt's: then none of its tries commits any more.
        """
        attempt, give_up = self._attempt, self._left.give_up
        if attempt.unanswered:
            if (end := await self._way.whole(self._outcome())) is not None:
                return None, end
            attempt.stop_commit()
        if isinstance(error, asyncio.CancelledError):
            if self._apart and self._later:
                with suppress(Exception):
                    async with asyncio.timeout(_MARK_SECONDS):
                        await self._connector.within(give_up, None)
            raise error
        attempt.unsure = attempt.unsure or isinstance(error, _UNSURE)
        if isinstance(error, NotBegun):
            await self._wait_for_database(tries, error)
            return None
        if tries < self._most and (isinstance(error, _UNSURE) or is_transient(error)):
            logger.info("the transaction of %s is repeated: %s", self._call.id, error)
            return None
        found: tuple[int | None, Event] | None = None
        if self._apart and self._later:
            end = await self._connector.within(give_up, None)
            found = None if end is None else (None, end)
        elif attempt.unsure and not self._apart:
            found = await self._end_in_log()
        if found is None:
            raise error
        return found

    async def _wait_for_database(self, tries: int, error: NotBegun) -> None:
        """Let a transaction be begun again as long as holdfast's database takes no connection.

        Then the log takes no end of an attempt, either. Raises DatabaseUnavailable if it does take
        connections, or if it is the database of the data alone, after some tries; Abandoned in a
        thread whose attempt has ended.
        """
        if self._attempt.ended:
            raise Abandoned from error
        if tries < self._most:
            return
        if not await self._way.of_store(self._connector.log_is_away()):
            raise DatabaseUnavailable(str(error)) from error  # a name that users know
        logger.warning("the transaction of %s waits for the database: %s", self._call.id, error)
        self._most = tries + _MOST_TRIES

    async def _outcome(self) -> Event | None:
        """Return what a commit without an answer has left beside its data, None for nothing.

        It is waited for, or can come no more. It is asked for as long as the worker runs, also
        when the run has given the attempt up: what undoes it waits for the answer.
        """
        left = self._left
        for tries in count():
            left.number = self._owner.number(self._attempt.lease_no)
            try:
                return await self._connector.within(left.give_up, None)
            except Exception as error:
                if self._owner.closed or not (is_away(error) or is_transient(error)):
                    raise
                logger.warning("the result of %s cannot be read: %s", left.key, error)
            await self._way.pause(min(1, _FIRST_PAUSE * 2 ** min(tries, 7)))
        raise AssertionError("the loop ends by itself")

    async def _use(
        self, transaction: OpenTransaction, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> object:
        """Call the code, and commit what it has done with the record."""
        attempt, function, call = self._attempt, self._function, self._call
        if attempt.ended:  # it has waited for a connection, or a pause, in a thread
            raise Abandoned
        began = time.monotonic()
        returned = function.fn(transaction.connection, *args, **kwargs)
        result = await returned if inspect.isawaitable(returned) else returned
        if (took := time.monotonic() - began) > _LONG_SECONDS:
            logger.warning("the code of transaction %s held it open for %.0f s", call.id, took)
        text, restored = function.encode_and_restore(result)
        event = completed_step(call, text, attempt.started_at, self._owner.clock.now())
        index: int | None = None
        if transaction.in_log and not self._apart:
            index = await self._record(transaction, event)
            event = in_transaction(event)
        else:
            await self._way.whole(self._keep(transaction, event))
        attempt.recorded, attempt.result = (index, event), text
        attempt.restored = Restored(restored)
        return result

    async def _clean(self) -> None:
        """Let a connector delete results that the log has; what fails is tried an hour later."""

        async def needless(run_ids: Sequence[UUID], keys: Sequence[str]) -> Sequence[bool | None]:
            return await self._way.of_store(self._store.needless_results(run_ids, keys))

        try:
            await self._connector.clean(needless)
        except Exception as error:
            log = logger.warning if is_away(error) else logger.exception
            log("old results of transactions are deleted later: %r", error)

    async def _sealed(self, event: Event) -> Event:
        stored = in_transaction(event)
        if self._owner.seals:  # also what is kept apart: the log must take it later
            sealed = self._store.sealed_step(self._call.run_id, stored)
            stored = await self._way.of_store(sealed)
        return stored

    async def _keep(self, transaction: OpenTransaction, event: Event) -> None:
        """Keep the end beside the data and commit, unless the attempt has ended meanwhile."""
        attempt, call, left = self._attempt, self._call, self._left
        await self._sealed(event)
        attempt.begin_commit()
        try:
            kept = Event(event.type, left.key, event.details, event.at)
            await transaction.keep(call.run_id, kept, left.number)
            if time.time() - attempt.began_at > self._owner.options.lease_seconds:
                await self._check_kept()
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

    async def _check_kept(self) -> None:
        """Raise RunNotHeld if a result of the step may have been deleted, as it is needless.

        A worker that sleeps may wake after that. Between this and the commit the server lets few
        seconds pass.
        """
        asked = self._store.needless_results([self._call.run_id], [self._left.key])
        [needless] = await self._way.of_store(asked)
        if needless is not False:
            raise RunNotHeld(
                f"another worker has taken over the run of {self._call.id} while this one slept or "
                "worked: the log has the end of the step, or the run is over"
            )

    async def _record(self, transaction: OpenTransaction, event: Event) -> int:
        """Add the end to the log and commit, unless the attempt has ended meanwhile."""
        attempt, call, owner = self._attempt, self._call, self._owner
        stored = await self._sealed(event)
        attempt.begin_commit()
        try:
            seconds = owner.options.lease_seconds
            lease = HeldLease(owner.worker_id, call.run_id, attempt.lease_no, seconds)
            try:
                return await transaction.record(stored, lease, call.mark)
            except (Exception, asyncio.CancelledError) as error:
                if is_refusal(error) or not transaction.sent:
                    raise
                logger.warning("the commit of %s was not answered (%r)", call.id, error)
                index = await self._way.whole(self._way.of_store(self._find()))
                if index is not None:
                    return index
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise _NotCommitted(f"its commit was not answered: {error!r}") from error
        except BaseException:
            attempt.stop_commit()
            raise

    async def _end_in_log(self) -> tuple[int, Event] | None:
        """Return the end and its index if a try before was committed after all."""
        run_id = self._call.run_id
        if (index := await self._way.of_store(self._find())) is None:
            return None
        logs = await self._way.of_store(self._store.read_events([(run_id, index)]))
        return index, logs[run_id][0]

    async def _find(self) -> int | None:
        call = self._call
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
