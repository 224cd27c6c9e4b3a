"""Record in the store, in batches, the parts of turns.

If no call is in flight, an entry is sent at once, together with those of the same moment. While the
highest number of calls is in flight, entries gather, and are sent together. If the answer to a call
is lost, the call is repeated. A commit has a token, so that nothing is applied twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID, uuid4

from holdfast.errors import DatabaseUnavailable, LockTimeout, TransientDatabaseError
from holdfast.store.port import Store
from holdfast.store.shared_calls import lock_millis
from holdfast.types import (
    HEAVY,
    Ahead,
    Committed,
    Finish,
    Notice,
    Refusal,
    TurnCommit,
    count_bearable,
)
from holdfast.values.loggers import get_logger
from holdfast.worker.backoff import Backoff
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_undelivered_signal
from holdfast.worker.observing import Observing
from holdfast.worker.outage import OUTAGE

logger = get_logger("holdfast.committer")

_BUSY_SECONDS: Final = 0.05
_events, _then, _details = attrgetter("events"), attrgetter("then"), attrgetter("details")
_told: Final = attrgetter("output", "error")  # of a run's end
_MOST_ENTRIES: Final = 400  # of a batch
_MANY: Final = 64  # from so many checkpoints on, two calls are faster than one

# Lets other tasks have the places of so many that have ended, in a `with` block.
Lending: TypeAlias = Callable[[int], AbstractContextManager[None]]

_NOTHING_LENT: Final = nullcontext()

T = TypeVar("T")
Send: TypeAlias = Callable[[list[T]], Coroutine[object, object, None]]
CommitAnswer = Callable[[Refusal | Ahead | None], None]
_Entry = tuple[TurnCommit, CommitAnswer]


class _Timed(Protocol):
    """An answer that says when it was given."""

    @property
    def now(self) -> int: ...


Timed = TypeVar("Timed", bound=_Timed)


async def repeated(
    call: Callable[[], Awaitable[Timed]], clock: Clock, what: str, lock_wait: int | None = None
) -> Timed:
    """Make a call; repeat it until there is an answer. `what` names it in the log.

    The clock learns the engine's time from the answer. Raises LockTimeout if the call waits for a
    lock of another transaction for longer than `lock_wait` milliseconds.
    """
    backoff: Backoff | None = None
    while True:
        limit = None if lock_wait is None else lock_millis.set(lock_wait)
        sent = clock.local()
        try:
            answer = await call()
        except LockTimeout:
            raise
        except (TransientDatabaseError, DatabaseUnavailable) as error:
            OUTAGE.tell(logger, f"{what} is repeated", error)
            backoff = backoff or Backoff()
            await backoff.wait()
        else:
            clock.observe(sent, clock.local(), answer.now)
            return answer
        finally:
            if limit is not None:
                lock_millis.reset(limit)


class Batcher(Generic[T]):
    """Send entries in batches, at most `most_calls` at a time.

    With two calls the database is busy while this process works on an answer; more calls would only
    make the batches smaller. If many entries came at once and one call took them all, the database
    and this process would wait for each other: so if `halves` returns True for them, they are sent
    in two calls. `bearable` returns how many of the first entries one call takes (see
    `count_bearable`): a longer one, for the connection or for the server's memory, would fail each
    time it is repeated. It is not asked about a single entry.
    """

    def __init__(
        self,
        send: Send[T],
        *,
        bearable: Callable[[Sequence[T]], int],
        halves: Callable[[list[T]], bool] = lambda _: False,
        most_calls: int = 2,
    ) -> None:
        self._send, self._halves, self._bearable = send, halves, bearable
        self._most_calls = most_calls
        self._waiting: list[T] = []
        self._later: list[T] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._apart: set[asyncio.Task[None]] = set()  # calls that do not count for `most_calls`
        self._scheduled = False  # True if `_send_waiting` is about to be called

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return not (self._waiting or self._calls or self._later or self._apart)

    def add(self, entry: T) -> None:
        """Send an entry as soon as one more call may be made."""
        self._waiting.append(entry)
        if not self._scheduled and len(self._calls) < self._most_calls:
            self._scheduled = True  # entries of the same moment still join
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def add_later(self, entry: T) -> None:
        """Send an entry again after a moment: what it needs is not there yet."""
        self._later.append(entry)
        if len(self._later) == 1:
            asyncio.get_running_loop().call_later(_BUSY_SECONDS, self._add_again)

    def _add_again(self) -> None:
        entries, self._later = self._later, []
        for entry in entries:
            self.add(entry)

    def send_apart(self, entries: list[T], send: Send[T] | None = None) -> None:
        """Send entries again after a moment, in a call of their own beside the others.

        `send` makes that call; by default it is made as the others are.
        """
        call = asyncio.get_running_loop().create_task(_after_a_moment(send or self._send, entries))
        self._apart.add(call)
        call.add_done_callback(self._apart.discard)

    async def flush(self) -> None:
        """Wait until nothing waits and no call is in flight."""
        while not self.idle:
            if under_way := self._calls | self._apart:
                await asyncio.wait(under_way)
            # The next batch is sent, and answers lead to new entries.
            await asyncio.sleep(_BUSY_SECONDS if self._later else 0)

    async def stop(self) -> None:
        """Cancel the calls in flight, and drop what waits."""
        self._waiting.clear()
        self._later.clear()
        while under_way := self._calls | self._apart:  # one that ends may start another
            for call in under_way:
                call.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            await asyncio.sleep(0)  # since Python 3.12 `gather` of what has ended does not suspend

    def _send_waiting(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._calls) < self._most_calls:
            size = _MOST_ENTRIES
            if not self._calls and self._halves(self._waiting):
                size = min(size, -(-len(self._waiting) // 2))
            size = min(size, len(self._waiting))
            if size > 1:  # one entry is sent whatever its weight
                size = self._bearable(self._waiting[:size])
            entries, self._waiting = self._waiting[:size], self._waiting[size:]
            call = asyncio.get_running_loop().create_task(self._send(entries))
            self._calls.add(call)
            call.add_done_callback(self._answered)

    def _answered(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if self._waiting and not self._scheduled:
            self._send_waiting()


class Committer:
    """Send the parts of turns in batches, and give each turn its answer.

    While ends of runs are being recorded, `lending` lets others have their places. While there are
    `suspects`, `committed` is called with the parts of each commit, also if it was refused.
    """

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        lending: Lending,
        observing: Observing | None = None,
        suspects: Collection[tuple[UUID, str]] = (),
        committed: Callable[[Sequence[TurnCommit]], None] = lambda parts: None,
    ) -> None:
        self._store, self._worker_id, self._clock, self._notify = store, worker_id, clock, notify
        self._lending = lending
        self._observing = observing or Observing()
        self._suspects, self._committed = suspects, committed
        self._batcher = Batcher[_Entry](
            lambda entries: self._commit(entries, uuid4()), bearable=_count_bearable, halves=_halves
        )

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return self._batcher.idle

    def submit(self, part: TurnCommit, answer: CommitAnswer) -> None:
        """Commit a turn's part; `answer` is called with the refusal, if there is one.

        It is called with `Ahead` if the part was appended after events that the turn has not seen,
        and with None if all is as the turn expected. It is called from a plain callback of the
        event loop, never inside a task: workflow loops may only be entered from there.
        """
        self._batcher.add((part, answer))

    async def flush(self) -> None:
        """Wait until every part has its answer."""
        await self._batcher.flush()

    async def stop(self) -> None:
        """Cancel the calls in flight. What they committed is in the log, for the next worker."""
        await self._batcher.stop()

    async def _commit(self, entries: list[_Entry], token: UUID) -> None:
        entries = _newest(entries)
        parts, began = [part for part, _ in entries], time.monotonic()
        ended = len([part for part in parts if isinstance(part.then, Finish)])
        try:
            with self._lending(ended) if ended else _NOTHING_LENT:
                committed = await self._persist(parts, token)
        except Exception:
            # It is not known what is durable now: stop driving these runs; their leases expire.
            logger.exception("a commit of %d run(s) failed; their leases run out", len(entries))
            lost = {part.run_id: Refusal("lost", []) for part in parts}
            committed = Committed(self._clock.now(), lost, [])
        if self._suspects:
            self._committed(parts)
        if self._observing.committed is not None:
            self._observing.committed(parts, committed, time.monotonic() - began)
        for signal in committed.undelivered:
            log_undelivered_signal(signal)
        if committed.notices:
            self._notify(committed.notices)
        asyncio.get_running_loop().call_soon(self._answer, entries, token, committed)

    async def _persist(self, parts: list[TurnCommit], token: UUID) -> Committed:
        """Commit; repeat a call whose answer is lost until there is one."""
        whose = f"run {parts[0].run_id}" if len(parts) == 1 else f"{len(parts)} runs"
        return await repeated(
            lambda: self._store.commit(self._worker_id, token, parts),
            self._clock,
            f"a commit of {whose}",
        )

    def _answer(self, entries: list[_Entry], token: UUID, committed: Committed) -> None:
        refused, ahead = committed.refused, committed.ahead
        if not refused and not ahead:
            for _, answer in entries:
                answer(None)
            return
        busy: list[_Entry] = []
        for part, answer in entries:
            refusal = refused.get(part.run_id)
            if refusal is not None and refusal.reason == "busy":
                busy.append((part, answer))
            else:
                answer(refusal or ahead.get(part.run_id))
        if busy:  # with the same token, so that nothing is applied twice
            self._batcher.send_apart(busy, partial(self._commit, token=token))


async def _after_a_moment(send: Send[T], entries: list[T]) -> None:
    await asyncio.sleep(_BUSY_SECONDS)
    await send(entries)


def _count_bearable(entries: Sequence[_Entry]) -> int:
    """Return how many of the first entries one call takes."""
    parts = [part for part, _ in entries]
    events = chain.from_iterable(map(_events, parts))
    ends = [then for then in map(_then, parts) if isinstance(then, Finish)]
    told = chain.from_iterable(map(_told, ends))
    texts: Iterable[str | None] = chain(map(_details, events), told)
    if sum(map(len, filter(None, texts))) <= HEAVY:  # nearly always, and found without a loop
        return len(parts)
    return count_bearable(map(weigh_part, parts))


def weigh_part(part: TurnCommit) -> int:
    """Return the length of the values of a turn's part, as text."""
    events, then = part.events, part.then
    if then is None and len(events) == 1:  # most are the end of one step
        return len(events[0].details or "")
    length = 0
    for event in events:
        length += len(event.details or "")
    if isinstance(then, Finish):
        length += len(then.output or "") + len(then.error or "")
    return length


def _newest(entries: list[_Entry]) -> list[_Entry]:
    """Return only the newest entry of each run.

    A run with two entries was lost and claimed again. A call with two parts of a run is refused.
    """
    if len({part.run_id for part, _ in entries}) == len(entries):
        return entries
    newest = {part.run_id: place for place, (part, _) in enumerate(entries)}
    loop, kept = asyncio.get_running_loop(), list[_Entry]()
    for place, (part, answer) in enumerate(entries):
        if newest[part.run_id] == place:
            kept.append((part, answer))
        else:
            loop.call_soon(answer, Refusal("lost", []))
    return kept


def _halves(entries: list[_Entry]) -> bool:
    """Return True if two calls are faster than one: for many checkpoints, without any ends."""
    return len(entries) >= _MANY and all(part.then is None for part, _ in entries)
