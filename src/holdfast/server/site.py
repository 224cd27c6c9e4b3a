"""What all parts of a server share: its clients, its bounds, and whether it is closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import msgspec

from holdfast.client import Client
from holdfast.client.waiting import EndWatcher
from holdfast.database.resolve import Database, resolve_database
from holdfast.definitions.app import App
from holdfast.payloads import READABLE, with_payloads
from holdfast.server.access import Access, Principal
from holdfast.server.catalogue import AppCatalogue, Catalogue, NarrowCatalogue
from holdfast.server.guard import MAX_BODY, RequestGate, StreamGate
from holdfast.server.hiding import without_payloads
from holdfast.server.hub import Hub
from holdfast.server.narrow_archive import NarrowClient
from holdfast.server.narrow_sites import NarrowSites
from holdfast.server.narrowing import narrow
from holdfast.server.problems import Problem
from holdfast.store.opening import opened_store
from holdfast.store.port import Store
from holdfast.telemetry.sending import CountedSignals
from holdfast.telemetry.server import ServerMetrics
from holdfast.types import HintUse
from holdfast.values.numbers import true_or_false, whole_number

T = TypeVar("T")

WRITERS: Final = 4  # connections
READERS: Final = 8
READ_SECONDS: Final = 5.0  # of one query


class Site:
    """A server's clients, which open when they are first needed, and its bounds.

    `client` makes changes; `reader` and `store` read, over connections of their own, so that no
    list holds up a start. Their lists may come from a replica, those of `client` never. `closing`
    is set when the server stops: streams and waits end then. `is_open` is True while the clients
    are connected.
    """

    client: Client
    reader: Client
    store: Store
    ends: EndWatcher
    hub: Hub

    _kept: dict[object, Any]

    def __init__(
        self,
        database: str | Database | None = None,
        *,
        access: Access,
        schema: str = "holdfast",
        app: App | None = None,
        catalogue: Catalogue | None = None,
        store: Store | None = None,
        read_only: bool = False,
        max_body: int = MAX_BODY,
        stream_seconds: float = 20.0,
        streams: StreamGate | None = None,
    ) -> None:
        """Say where the runs are, and who may do what.

        A `store` is used as it is, for reading and for writing, and is not closed.
        """
        self.access, self.app, self.schema = access, app, schema
        self.catalogue = catalogue or AppCatalogue(app)
        self.checks_inputs = catalogue is not None  # of code in another process
        self.read_only = true_or_false(read_only, "read_only")
        self.max_body = whole_number(max_body, "a server", "max_body", 1)
        self.stream_seconds = stream_seconds
        self.requests, self.streams = RequestGate(), streams or StreamGate()
        self.known_names: set[str] = set()  # full names that a worker has had
        self.metrics = ServerMetrics()
        self.closing = asyncio.Event()
        self.notes_reads = True  # False if lists can only come from one database
        self.database: Database | None = None  # known once it is open, unless a store was given
        self._database, self._given_store = database, store
        self._lock = asyncio.Lock()
        self.is_open = False
        self._opened: AsyncExitStack | None = None
        self._narrow = NarrowSites[Site](self._narrowed)
        self._kept = {}

    async def open(self) -> None:
        """Connect, unless that is done. Raises DatabaseError."""
        if self._opened is not None:
            return
        async with self._lock:
            if self._opened is not None:  # pyright: ignore[reportUnnecessaryComparison]
                return
            async with AsyncExitStack() as stack:
                await self._open(stack)
                self._opened, self.is_open = stack.pop_all(), True

    @asynccontextmanager
    async def seen_by(self, principal: Principal) -> AsyncGenerator[Site]:
        """Connect, and return this server as a principal sees it, while the block lasts.

        What outlives the block must ask again. Raises DatabaseError.
        """
        await self.open()
        if principal.sees_all:
            yield self
        else:
            async with self._narrow.use(principal) as site:
                yield site

    def hint_use(self) -> HintUse | None:
        """Return how the server uses hints, for what it starts; see `ListenStore.hint_use`."""
        return self._writes.hint_use()

    def kept(self, make: Callable[[Site], T]) -> T:
        """Return what a part of the server keeps for those who see this; `make` makes it once."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return cast("T", self._kept[make])

    async def close(self) -> None:
        """End streams and waits, finish the calls under way, and disconnect. Idempotent."""
        self.closing.set()
        opened, self._opened, self.is_open = self._opened, None, False
        if opened is not None:
            await opened.aclose()
        self.closing = asyncio.Event()

    async def _open(self, stack: AsyncExitStack) -> None:
        reads = writes = self._given_store
        if reads is None or writes is None:
            database = self._database
            if not isinstance(database, Database):
                database = await asyncio.to_thread(resolve_database, database)
                stack.enter_context(database)
            self.database = database
            self.notes_reads = bool(database.shards) or database.connecting.read_url is not None
            connecting = msgspec.structs.replace(database.connecting, read_url=None)
            alone = replace(database, connecting=connecting)
            writes = await stack.enter_async_context(opened_store(alone, self.schema, WRITERS))
            reads = await stack.enter_async_context(
                opened_store(database, self.schema, READERS, query_seconds=READ_SECONDS)
            )
            await reads.check_reads()
        writes = CountedSignals(writes, self.metrics.signals).store
        known = None if self.app is None else self.app.payloads
        readable = None if known else READABLE  # a client takes those of the app itself
        self._payloads = known or READABLE
        self._writes = with_payloads(writes, self._payloads)
        self.client = await stack.enter_async_context(
            Client(store=with_payloads(writes, readable), app=self.app)
        )
        self.reader = await stack.enter_async_context(
            Client(store=with_payloads(reads, readable), app=self.app)
        )
        self.store = with_payloads(reads, self._payloads)
        self.ends = EndWatcher(self.store)
        stack.push_async_callback(self.ends.close)
        self.hub = Hub(self.store)
        stack.push_async_callback(self.hub.close)
        stack.push_async_callback(self._narrow.close)

    async def _narrowed(self, principal: Principal, stack: AsyncExitStack) -> Site:
        """Return a copy of this site that has what a principal may see, and knows no code."""
        if self._opened is None:
            raise Problem(503, "closing", "the server is stopping")
        site = copy(self)
        site._kept = {}  # what is kept for others is not for this caller
        site.app, site.catalogue = None, NarrowCatalogue(self.catalogue, self.app, principal.sees)
        site.checks_inputs = True
        if principal.only:
            site.database = None  # what looks at all of it is not for this caller
        site.store = _seen_by(principal, self.store)
        clients = [
            NarrowClient(store, principal, self.reader, self._payloads)
            for store in (site.store, _seen_by(principal, self._writes))
        ]
        site.reader, site.client = [await stack.enter_async_context(each) for each in clients]
        site.ends, site.hub = EndWatcher(site.store), Hub(site.store)
        stack.push_async_callback(site.ends.close)
        stack.push_async_callback(site.hub.close)
        return site


def _seen_by(principal: Principal, store: Store) -> Store:
    narrowed = narrow(store, principal.sees, principal.only) if principal.only else store
    return narrowed if principal.payloads else without_payloads(narrowed)
