"""An open client: its store, and what its callers share."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from holdfast.client.chains import newest_of_key
from holdfast.client.naming import Names, RunRef
from holdfast.client.replies import Replies
from holdfast.client.waiting import EndWatcher
from holdfast.database.resolve import Connecting
from holdfast.definitions.app import App
from holdfast.definitions.caller import refuse_in_workflow
from holdfast.errors import ConfigurationError
from holdfast.payloads import Payloads, outside_of, payload_store, with_payloads
from holdfast.store.opening import resolved_store
from holdfast.store.port import Store
from holdfast.store.receiver import Receiver, Receivers
from holdfast.store.shared_calls import LOCKED_CALLS, Coalescer, Notifier, persist
from holdfast.tracing import client_tracer
from holdfast.tracing.requests import continue_runs, link_signals, request_trace
from holdfast.types import (
    Delivered,
    Delivery,
    NewMessage,
    NewRun,
    NewSignal,
    Notice,
    RunKind,
    StartedRun,
    StreamPart,
    StreamRead,
)
from holdfast.values.numbers import is_a
from holdfast.values.waits import to_the_end

if TYPE_CHECKING:
    from holdfast.retention import Archive, ArchivedRun
    from holdfast.tracing.client import ClientTracer

T = TypeVar("T")

_LEAST_READ: Final = 64 * 1024  # bytes of one stream in a call that reads many
_MOST_READ: Final = 512 * 1024
_READ: Final = 8 * 1024 * 1024  # of all streams of a call, unless each has the least

Start: TypeAlias = Callable[[Sequence[NewRun]], Awaitable[tuple[list[StartedRun], list[Notice]]]]
"""Starts runs of one kind in the store."""


class ArchiveNarrowing(Protocol):
    """What a session sees of the archive that shows less of the database than there is."""

    async def archive(self) -> Archive | None:
        """Return the archive with the runs that are seen; None if runs are not archived."""
        ...

    async def run(self, run: ArchivedRun) -> ArchivedRun:
        """Return an archived run as it is shown."""
        ...

    def store(self, store: Store) -> Store:
        """Return a store of an archived run as it is shown."""
        ...


class Session:
    """Holds a client's store while it is open, and what its callers share.

    The client, its groups and its handles are made over one session, before it is opened. Closed,
    it can be opened again.
    """

    def __init__(
        self,
        database: str | None,
        schema: str,
        app: App | None,
        store: Store | None,
        connecting: Connecting,
        payloads: Payloads | None = None,
    ) -> None:
        """`app` completes the names of workflows that have no app; `payloads` are by default its.

        The store is given values whose payloads are not encoded, and answers with such.
        """
        own = None if app is None else is_a(App, app, "app").payloads
        self.payloads = payloads = own if payloads is None else payloads
        self.app = app
        self.narrowing: ArchiveNarrowing | None = None  # None: all of the archive is seen
        self.whole: Session | None = None  # one that sees all of the database, if this does not
        self._database, self._schema, self._connecting = database, schema, connecting
        self._given_store = store
        self._tracer: ClientTracer | None = None
        self._parts: _Parts | None = None
        self._opened: AsyncExitStack | None = None

    async def open(self) -> None:
        """Connect to the database, or use the given store. Idempotent."""
        if self._parts is None:
            self._tracer = client_tracer(None if self.app is None else self.app.name)
            async with AsyncExitStack() as stack:
                store = self._given_store
                if store is None:
                    store = await stack.enter_async_context(
                        resolved_store(self._database, self._schema, self._connecting)
                    )
                if self._parts is not None:  # another caller was faster
                    return
                store = with_payloads(store, self.payloads)
                self._parts = _Parts(store, self.app)
                stack.push_async_callback(self._parts.close)
                self._opened = stack.pop_all()

    async def close(self) -> None:
        """Finish the calls under way, send the last wake-ups, and disconnect. Idempotent."""
        self._parts = None
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await to_the_end(opened.aclose())

    def abandon(self) -> object:
        """Forget the connections, which are another process's; return them.

        Raises ConfigurationError if a store was given: only its maker can make another.
        """
        if self._given_store is not None:
            raise ConfigurationError(
                "this client was opened with a store before the process was forked: make a store "
                "and a client in the child"
            )
        left = self._parts, self._opened
        self._parts = self._opened = None
        return left

    @property
    def store(self) -> Store:
        """The store. Raises ConfigurationError if the client is not open."""
        return self._live.store

    @property
    def reads(self) -> Store:
        """The store for lists, which may be a replica's. Nothing is decided by what it answers."""
        return self._live.store.reads

    @property
    def schema(self) -> str:
        """The schema that calls within a caller's transaction are about: that of the store.

        Raises ConfigurationError if the store is not in a database.
        """
        schema = self.store.schema
        if schema is None:
            raise ConfigurationError(
                "this client's store is in memory, and a connection is one to a database: what is "
                "written there would not be found here. Leave connection= out, or use "
                "`local(app, database)` in place of `Environment` in this test"
            )
        return schema

    @property
    def names(self) -> Names:
        """Finds the workflows and runs that callers name."""
        return self._live.names

    @property
    def ends(self) -> EndWatcher:
        """Waits for ends of runs."""
        return self._live.ends

    @property
    def replies(self) -> Replies:
        """Waits for answers to updates."""
        return self._live.replies

    def starts(self, kind: RunKind) -> Coalescer[NewRun, StartedRun]:
        """Return the starter of runs of a kind. Starts of the same moment share a transaction."""
        return self._live.starts[kind]

    def sends(self, queue: str) -> Coalescer[NewMessage, int]:
        """Return the sender of a message queue. Sends of the same moment share a transaction."""
        return self._live.sends_to(queue)

    def receives(self, queue: str) -> Receiver:
        """Return what receives from a message queue for all callers."""
        return self._live.receives.of(queue)

    def traced_starts(self, runs: Sequence[NewRun]) -> AbstractContextManager[Sequence[NewRun]]:
        """Enter the spans of starts, if tracing is on; the value is the runs to start."""
        if self._tracer is not None:
            return self._tracer.starts(runs)
        carrier = request_trace.get()
        return nullcontext(runs if carrier is None else continue_runs(runs, carrier))

    def traced_signals(
        self, signals: Sequence[NewSignal]
    ) -> AbstractContextManager[Sequence[NewSignal]]:
        """Enter the spans of signals, if tracing is on; the value is the signals to send."""
        if self._tracer is not None:
            return self._tracer.signals(signals)
        carrier = request_trace.get()
        return nullcontext(signals if carrier is None else link_signals(signals, carrier))

    @property
    def signals(self) -> Coalescer[NewSignal, Delivery]:
        """Sends signals; signals of the same moment share a transaction."""
        return self._live.signals

    @property
    def stream_reads(self) -> Coalescer[StreamRead, StreamPart]:
        """Reads streams; what readers ask at the same moment is one call."""
        return self._live.stream_reads

    async def sealed(self, runs: Sequence[NewRun]) -> Sequence[NewRun]:
        """Return runs as they are to be stored, for a start without the session's store."""
        store = payload_store(self.store)
        return runs if store is None else await store.sealed_runs(runs)

    def sealed_messages(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        """Return messages to send within a caller's transaction, with encoded payloads."""
        store = payload_store(self.store)
        return messages if store is None else store.sealed_messages(queue, messages)

    async def archive(self) -> Archive | None:
        """Return the archive: the app's, that of the environment, or the one that workers use.

        Raises ConfigurationError if its URL cannot be used.
        """
        if self.narrowing is not None:
            return await self.narrowing.archive()
        from holdfast.retention import open_archive

        parts = self._live
        if parts.archive is None:
            parts.archive = open_archive(None if self.app is None else self.app.archive)
        if parts.archive is None:
            parts.archive = open_archive((await parts.store.get_sweeper(limit=0)).archive)
        return parts.archive

    async def archived(self, run_id: UUID) -> ArchivedRun | None:
        """Return a run that was archived; None if it was not. Raises ObjectsUnavailable."""
        archive = await self.archive()
        found = None if archive is None else (await archive.find([run_id])).get(run_id)
        if found is None:
            return None
        if self.narrowing is not None:
            return await self.narrowing.run(found)
        return self.opened(found)

    def opened(self, archived: ArchivedRun) -> ArchivedRun:
        """Return an archived run with payloads as this session's store gives them."""
        if (own := payload_store(self.store)) is None:
            return archived
        record, events = own.opened_run(archived.record, archived.events)
        return msgspec.structs.replace(archived, record=record, events=events)

    def viewed(self, store: Store) -> Store:
        """Return a store that has an archived run as one that shows what this session's shows."""
        if self.narrowing is not None:
            return self.narrowing.store(store)
        own = payload_store(self.store)
        return with_payloads(store, None if own is None else own.payloads)

    @property
    def busy(self) -> bool:
        """True while wake-ups wait to be sent."""
        return self._parts is not None and not self._parts.notifier.idle

    async def id_of(self, run: RunRef) -> UUID:
        """Return the id of a run: of a key, the run that was started with it.

        Raises what `Names.run` raises.
        """
        return run if isinstance(run, UUID) else await self._live.names.run(run)

    async def newest_of(self, run: RunRef) -> UUID:
        """Return the id of a run: of a key, the newest run.

        Raises what `Names.run` raises.
        """
        run_id = await self.id_of(run)
        return await newest_of_key(self.store, run_id) if isinstance(run, tuple) else run_id

    def tell(self, notices: Iterable[Notice]) -> None:
        """Send the wake-ups of a change soon; drop them if the client was closed meanwhile."""
        if self._parts is not None:
            self._parts.notifier.submit(notices)

    async def change(self, call: Callable[[], Awaitable[tuple[T, Iterable[Notice]]]]) -> T:
        """Make a call that changes something, as `persist` does, and send its wake-ups."""
        answer, notices = await persist(call)
        self.tell(notices)
        return answer

    async def deliver(self, call: Callable[[], Awaitable[Delivered]]) -> list[Delivery]:
        """Make a call that changes runs, and send its wake-ups. Return an outcome for each run."""
        delivered = await persist(call)
        self.tell(delivered.notices)
        return delivered.outcomes

    @property
    def _live(self) -> _Parts:
        parts = self._parts
        if parts is None:
            raise ConfigurationError(
                "the client is not open: use `async with Client() as client`, or, in a process "
                "that keeps it, `client = await Client().open()`"
            )
        if (running := _get_running_loop()) is not parts.loop and running is not None:
            refuse_in_workflow("a call of a client")
            raise ConfigurationError(
                "the client was opened on another event loop, and its connections belong to that: "
                "open a client on the event loop that uses it, or use holdfast.sync"
            )
        return parts


class Group:
    """The base of a client's groups, such as `client.runs`: their methods use its session."""

    def __init__(self, session: Session) -> None:
        self._session = session


class _Parts:
    """The parts of an open session."""

    def __init__(self, store: Store, app: App | None) -> None:
        self.store = store
        self.loop = _get_running_loop()
        self.names = Names(store, app)
        self.ends = EndWatcher(store)
        self.replies = Replies(store, self.ends)
        self.notifier = Notifier(store.notify)
        self.archive: Archive | None = None  # until it is asked for
        self._room = asyncio.Semaphore(LOCKED_CALLS)
        is_slow: Callable[[NewRun], bool] | None = outside_of(store, attrgetter("input"))
        self.starts: Mapping[RunKind, Coalescer[NewRun, StartedRun]] = {
            "workflow": Coalescer(partial(self._start, store.start_runs), self._room, is_slow),
            "flow": Coalescer(partial(self._start, store.start_flows), self._room, is_slow),
        }
        self.signals: Coalescer[NewSignal, Delivery] = Coalescer(
            self._signal, self._room, outside_of(store, attrgetter("payload"))
        )
        self.stream_reads: Coalescer[StreamRead, StreamPart] = Coalescer(self._read_streams)
        self.receives = Receivers(store)
        # By queue: a sender is kept while it is used.
        self._sends = WeakValueDictionary[str, Coalescer[NewMessage, int]]()

    def sends_to(self, queue: str) -> Coalescer[NewMessage, int]:
        """Return the sender of a message queue."""
        if (sends := self._sends.get(queue)) is None:
            sends = self._sends[queue] = Coalescer(partial(self._send, queue), self._room)
        return sends

    async def close(self) -> None:
        """Finish the calls under way, send the last wake-ups, and stop."""
        for starts in self.starts.values():
            await starts.close()
        for sends in [*self._sends.values()]:
            await sends.close()
        await self.signals.close()
        await self.stream_reads.close()
        await self.receives.close()
        await self.replies.close()
        await self.ends.close()
        await self.notifier.stop()

    async def _start(self, start: Start, runs: Sequence[NewRun]) -> Sequence[StartedRun]:
        started, notices = await start(runs)
        if notices:
            self.notifier.submit(notices)
        return started

    async def _send(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[int]:
        ids, notices = await self.store.send_messages(queue, messages)
        self.notifier.submit(notices)
        return ids

    async def _read_streams(self, reads: Sequence[StreamRead]) -> Sequence[StreamPart]:
        each = max(_LEAST_READ, min(_MOST_READ, _READ // len(reads)))
        return await self.store.read_streams(reads, limit=100, most_bytes=each)

    async def _signal(self, signals: Sequence[NewSignal]) -> Sequence[Delivery]:
        delivered = await self.store.signal_runs(signals)
        if delivered.notices:
            self.notifier.submit(delivered.notices)
        return delivered.outcomes
