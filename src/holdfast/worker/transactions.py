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
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import UUID

from holdfast.definitions.steps import StepContext
from holdfast.definitions.transactions import Transaction
from holdfast.errors import ConfigurationError, DatabaseUnavailable, TransientDatabaseError
from holdfast.events import in_transaction, read_step_completed
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
    RunNotHeld,
    is_refusal,
    is_transient,
)
from holdfast.types import Event
from holdfast.worker.attempts import Execution, over
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.left_ends import LeftEnds
from holdfast.worker.options import WorkerOptions

T = TypeVar("T")

logger = logging.getLogger("holdfast.run")

_MOST_TRIES: Final = 10  # of one attempt, if others are in the way of its transaction
_LOOK_SECONDS: Final = 0.02  # between looks at a commit under way, when the time is over
_LONG_SECONDS: Final = 10.0  # an open transaction holds locks and a connection
_MARK_SECONDS: Final = 2.0  # for the mark of a cancelled attempt
_FIRST_PAUSE: Final = 0.01  # seconds; then twice as long each time, up to 64 times


class _NotCommitted(Exception):
    """The connection was lost at the commit: nothing was committed, or the next try finds it."""


class _Abandoned(Exception):
    """The attempt has timed out or was cancelled before its commit."""


_UNSURE: Final = (_NotCommitted, AlreadyRecorded)
_AGAIN: Final = (*_UNSURE, NotBegun)


class Attempt(Execution[StepContext]):
    """An attempt of a transactional step.

    Its commit and its end from outside (a time-out, a cancellation) exclude each other: the `gate`
    is for who comes first. A thread cannot be stopped otherwise; code on the event loop is also
    cancelled, before its commit.
    """

    transacts = True
    final = (ConfigurationError,)  # its code has ended its own transaction

    __slots__ = ("gate", "recorded", "unheld")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gate = threading.Lock()
        self.recorded: tuple[int | None, Event] | None = None
        self.unheld = False

    def finished(self, future: asyncio.Future[object]) -> None:
        """Report the end; that of a recorded step stands, whatever middleware made of it."""
        if self.recorded is None or self.ended:
            super().finished(future)
            return
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("%s is recorded; its middleware failed: %r", self.function, error)
        self._end()

    def fail(self, error: BaseException) -> None:
        """Report a failure, and if it is only that the run is not held here."""
        if isinstance(error, RunNotHeld):
            self.unheld = True
            named = ConfigurationError(str(error))  # a name that users know
            error = named.with_traceback(error.__traceback__)
        super().fail(error)

    def expire(self, message: str) -> None:
        """Fail with a time-out, unless the attempt commits at this moment: then look again."""
        if self.gate.acquire(blocking=False):
            super().expire(message)
        else:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(_LOOK_SECONDS, self.expire, message)

    def suspend_limit(self) -> float | None:
        """Let no time-out come while it commits; return the moment of that by the loop's time.

        Raises TimeoutError if the time is over.
        """
        if self.limit is None or (ends_at := self.limit.when()) is None:
            return None
        if self.limit.expired() or ends_at <= asyncio.get_running_loop().time():
            self.timed_out = True
            raise TimeoutError(over(self.limit_seconds or 0))
        self.limit.reschedule(None)
        return ends_at

    def resume_limit(self, ends_at: float | None) -> None:
        """Let the time-out come again, after a commit that has failed."""
        if self.limit is not None and ends_at is not None:
            self.limit.reschedule(ends_at)

    def take(self, function: Transaction[..., object], index: int | None, end: Event) -> object:
        """Return the result of an attempt before, whose end is that of this one, too.

        It has an index if it is in the log. The turn compares what it is the end of with the call.
        """
        self.recorded = index, end
        self.result = bytes(read_step_completed(end.details or "").result).decode()
        return function.decode_result(self.result)

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask it to stop, and report nothing; it commits nothing, unless it does at this moment."""
        self.gate.acquire(blocking=False)
        return super().cancel()


class _Way(Protocol):
    """How an attempt waits: on the event loop, or in its thread."""

    async def pause(self, seconds: float) -> None: ...
    async def of_store(self, call: Coroutine[Any, Any, T]) -> T: ...
    async def whole(self, call: Coroutine[Any, Any, T]) -> T: ...


class _OnLoop:
    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def of_store(self, call: Coroutine[Any, Any, T]) -> T:
        return await call

    async def whole(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call to its end. A cancellation meanwhile is lost if the call succeeds."""
        task = asyncio.ensure_future(call)
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled and task.exception() is not None:
            raise asyncio.CancelledError
        return task.result()


class _InThread:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def of_store(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call of the store, which belongs to the loop."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def whole(self, call: Coroutine[Any, Any, T]) -> T:
        return await call


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
            attempt.code = partial(self._run, attempt, function, call, _OnLoop())
            return attempt
        way = _InThread()

        def in_thread(*args: Any, **kwargs: Any) -> object:
            return _finish(self._run(attempt, function, call, way, *args, **kwargs))

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
        way: _Way,
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
        way: _Way,
        transaction: OpenTransaction,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> object:
        """Call the code, and commit what it has done with the record."""
        if attempt.ended:  # it has waited for a connection, or a pause, in a thread
            raise _Abandoned
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

    async def _clean(self, connector: Connector, way: _Way) -> None:
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
        way: _Way,
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
            raise _Abandoned
        ends_at = None
        try:
            ends_at = attempt.suspend_limit()
            if attempt.ended:  # while a try before this one had the gate
                raise _Abandoned
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

    async def _end_in_log(self, call: Call, way: _Way) -> tuple[int, Event] | None:
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


def _finish(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that does not suspend."""
    try:
        call.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    call.close()
    raise AssertionError("a synchronous connection never suspends")
