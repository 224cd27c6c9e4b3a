"""Look at runs: one, its log, all of them, and who works on them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Self, Unpack
from uuid import UUID

from holdfast.client.filters import RunFilters, run_filter
from holdfast.client.outcomes import decode_plain
from holdfast.client.references import RunRef, given_workflow
from holdfast.client.runs import Run, RunPage, read_page, read_run
from holdfast.client.session import Session
from holdfast.client.watching import watch_value
from holdfast.database.resolve import Connecting
from holdfast.definitions.app import AnyWorkflow, App
from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError, RunNotFound
from holdfast.insight.approvals import OpenApproval, read_approval
from holdfast.insight.spans import Timeline
from holdfast.insight.timeline import read_timeline
from holdfast.insight.why import Explanation, explain_run
from holdfast.store.opening import resolved_store
from holdfast.store.port import Store
from holdfast.types import JSON, LoggedEvent, Pause, RunRecord, WorkerInfo


class Observer:
    """The half of a client that changes nothing."""

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str = "holdfast",
        app: App | None = None,
        store: Store | None = None,
        prepare: bool | None = None,
        listen_database: str | None = None,
    ) -> None:
        """Say where the runs are; `open`, or an `async with`, connects.

        A `store` is used as it is, and is not closed with the client. Statements are prepared
        by name unless a connection pooler is seen in between; `prepare` decides it. Behind a
        pooler in transaction mode `listen_database` is the server's own address, for
        notifications; without it ends are found by looking, within seconds.
        """
        self._connecting = Connecting(prepare, listen_database)
        self._database, self._schema, self._app = database, schema, app
        self._given = store
        self._opened: AsyncExitStack | None = None
        self._session: Session | None = None

    async def open(self) -> Self:
        """Connect, and check the schema. Idempotent.

        Raises DatabaseError: its subclasses say what is wrong with the database or its schema.

        ```python
        client = await Client("postgresql:///shop").open()
        ```
        """
        if self._session is None:
            async with AsyncExitStack() as stack:
                store = self._given
                if store is None:
                    store = await stack.enter_async_context(
                        resolved_store(self._database, self._schema, self._connecting)
                    )
                self._session = Session(store, None if self._app is None else self._app.name)
                stack.push_async_callback(self._session.close)
                self._opened = stack.pop_all()
        return self

    async def close(self) -> None:
        """Finish what is under way, send the last wake-ups and disconnect. Idempotent.

        ```python
        await client.close()
        ```
        """
        self._session = None
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def get(self, run: RunRef, workflow: AnyWorkflow | None = None) -> Run:
        """Return a run by its id, or the newest run of a workflow and key.

        The newest is what the run that was started with the key was continued as, or retried as;
        `continued_as` and the ids lead to each. It is the one meant wherever a key is given.

        Its values are of the types that its workflow declares, where that is given here or with
        the key, or is in the client's app; else they are plain JSON values. Raises RunNotFound.

        ```python
        run = await client.get((checkout, "order-7"))
        print(run.state, run.input)
        ```
        """
        known = workflow or given_workflow(run)
        return read_run(await self._get(await self._live.newest_of(run)), self._app, known)

    async def wait(self, run: RunRef, timeout: Duration | None = None) -> Run:
        """Return a run once it has ended, however it did.

        Of a run that continued as new it is the newest. Raises RunNotFound, and ResultTimeout
        when `timeout` is up first.

        ```python
        run = await client.wait(run_id, timeout="1m")
        print(run.status)
        ```
        """
        limit = None if timeout is None else seconds(timeout)
        run_id = await self._live.newest_of(run)
        ended = await self._live.wait(run_id, limit)
        return await self.get(ended.run_id, given_workflow(run))

    async def log(self, run: RunRef, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return a run's log from an index on. Raises RunNotFound.

        ```python
        for entry in await client.log(run_id):
            print(entry.idx, entry.event.type)
        ```
        """
        run_id = await self._live.newest_of(run)
        entries = await self._live.read_log(run_id, from_index)
        if not entries:
            await self._get(run_id)
        return entries

    async def follow_log(self, run: RunRef, from_index: int = 0) -> AsyncGenerator[LoggedEvent]:
        """Iterate over a run's log as it grows, until the run has ended; drives nothing.

        Raises RunNotFound.

        ```python
        async for entry in client.follow_log(run_id):
            print(entry.event.type)
        ```
        """
        run_id = await self._live.newest_of(run)
        async with aclosing(self._live.read_batches(run_id, from_index)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def why(self, run: RunRef) -> Explanation:
        """Return what a run does or waits for, and the actions that would move it.

        Each activity, child and approval that it waits for is explained. Raises RunNotFound.

        ```python
        found = await client.why(run_id)
        print(found.because, [action.do for action in found.actions])
        ```
        """
        record = await self._get(await self._live.newest_of(run))
        return await explain_run(self._live.store, record)

    async def timeline(self, run: RunRef) -> Timeline:
        """Return what happened in a run as spans: steps, calls, timers, messages.

        Raises RunNotFound.

        ```python
        for span in (await client.timeline(run_id)).spans:
            print(span.kind, span.label, span.outcome)
        ```
        """
        record = await self._get(await self._live.newest_of(run))
        return await read_timeline(self._live.store, record)

    async def values(self, run: RunRef) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set; empty if it has set none.

        Raises RunNotFound.

        ```python
        values = await client.values(run_id)
        print(values.get("progress"))
        ```
        """
        run_id = await self._live.newest_of(run)
        found = await self._live.store.get_values([run_id])
        if run_id not in found:
            raise RunNotFound(run_id)
        return {name: decode_plain(text) for name, text in found[run_id].items()}

    async def watch_value(self, run: RunRef, name: str) -> AsyncGenerator[JSON]:
        """Iterate over a value that the run sets: what it is now, then each change, to the end.

        Goes on with the runs that it continues as. Raises RunNotFound.

        ```python
        async for progress in client.watch_value(run_id, "progress"):
            print(progress)
        ```
        """
        run_id = await self._live.newest_of(run)
        async with aclosing(watch_value(self._live, run_id, name)) as values:
            async for value in values:
                yield value

    async def approvals(
        self, run: RunRef | None = None, limit: int = 100
    ) -> builtins.list[OpenApproval]:
        """Return the approvals that wait for a decision, of one run or of all, oldest first.

        ```python
        for approval in await client.approvals():
            print(approval.run_id, approval.key, approval.title)
        ```
        """
        run_id = None if run is None else await self._live.newest_of(run)
        found = await self._live.store.list_approvals(run_id=run_id, limit=limit)
        return [read_approval(each) for each in found]

    # All runs

    async def list(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of runs, newest first. `filters` are those of `RunFilters`.

        ```python
        page = await client.list(states="waiting", names="checkout", limit=20)
        ```
        """
        where = await run_filter(filters, self._live.names)
        return read_page(await self._live.store.list_runs(where), self._app)

    async def runs(self, **filters: Unpack[RunFilters]) -> AsyncGenerator[Run]:
        """Iterate over all runs that `list` would page through; `limit` is a page's size.

        ```python
        async for run in client.runs(states=["failed"], since=yesterday):
            print(run.run_id, run.error)
        ```
        """
        while True:
            page = await self.list(**filters)
            for run in page.runs:
                yield run
            if page.cursor is None:
                return
            filters["cursor"] = page.cursor

    async def ids(self, beginning: str, limit: int = 10) -> builtins.list[UUID]:
        """Return the ids of runs that begin with these hexadecimal digits, in order.

        Raises ConfigurationError for another text than digits and hyphens of an id.

        ```python
        for run_id in await client.ids("0198c0de"):
            print(run_id)
        ```
        """
        digits = beginning.lower().replace("-", "")
        if not 1 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
            raise ConfigurationError(
                f"{beginning!r} is not the beginning of a run's id: write 1 to 32 of its digits"
            )
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        return await self._live.store.runs_between(first, last, limit)

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Return the workers that are signed on.

        ```python
        print([worker.hostname for worker in await client.workers()])
        ```
        """
        return await self._live.store.list_workers()

    async def pauses(self) -> builtins.list[Pause]:
        """Return the queues and the workflows that are paused.

        ```python
        print([pause.name for pause in await client.pauses() if pause.scope == "queue"])
        ```
        """
        return await self._live.store.list_pauses()

    async def _get(self, run_id: UUID) -> RunRecord:
        found = await self._live.store.get_runs([run_id])
        if run_id not in found:
            raise RunNotFound(run_id)
        return found[run_id]

    @property
    def _live(self) -> Session:
        if self._session is None:
            raise ConfigurationError("the client is not open: use `async with Client() as client`")
        return self._session
