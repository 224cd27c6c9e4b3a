"""Start runs, signal them, wait for their results, and look at them."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from functools import partial
from typing import Never, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.client.bulk import BulkController
from holdfast.client.chains import newest
from holdfast.client.forking import ForkOptions, fork_run, prepare_fork, prepare_retry
from holdfast.client.handle import RunHandle
from holdfast.client.naming import find_full_name, reference
from holdfast.client.outcomes import Restorer
from holdfast.client.references import RunRef
from holdfast.client.starting import (
    Launch,
    RunOptions,
    StartAndWaitOptions,
    StartManyOptions,
    StartOptions,
    TransactionOptions,
    prepare,
)
from holdfast.client.transactions import apps_within, start_within
from holdfast.definitions.app import AnyWorkflow
from holdfast.definitions.workflows import Workflow
from holdfast.durations import Duration, seconds
from holdfast.errors import ConfigurationError
from holdfast.names import check_workflow_name
from holdfast.types import Fork, NewRun, StartedRun

In = TypeVar("In")
Out = TypeVar("Out")


class Client(BulkController):
    """Starts runs and talks to them. Safe to share between the tasks of one event loop.

    The database is `database`, else `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the
    embedded one. An `app` lets workflows be named by text and still be checked and restored.

    ```python
    async with Client() as client:
        handle = await client.start(checkout, Order(7), key="order-7")
        print(await handle.result())
    ```
    """

    # Starting

    @overload
    async def start(
        self,
        workflow: Workflow[None, Out],
        input: None = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[Out]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[In, Out],
        input: In,
        **options: Unpack[StartOptions],
    ) -> RunHandle[Out]: ...
    @overload
    async def start(
        self,
        workflow: str,
        input: object = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[object]: ...
    async def start(
        self,
        workflow: AnyWorkflow | str,
        input: object = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[object]:
        """Start a run, or find the one that was started with the same key.

        By name, the client's app's workflow is meant; without an app the one that a worker of
        this database has ever signed on with. `app/name` names the app as well. Of a workflow
        whose code is not here the input is stored as it is, for version 1 unless `version` says
        otherwise. Calls made at the same moment share
        one transaction. `options` are those of `StartOptions`.

        With a `connection` the start is part of the caller's open transaction there: rolled
        back, there is no run. It may be an asyncpg connection, a psycopg one, or a connection or
        session of SQLAlchemy. Workers find such a run at their next look, within a second or
        so, or at once with `notify`, which costs that PostgreSQL makes the commits of all
        notifying transactions wait for each other.

        Raises InvalidInput or PayloadError for an input that does not fit, before a run exists;
        UnknownWorkflow, AmbiguousWorkflow and ConfigurationError. After DatabaseUnavailable it is
        not known whether the run was started: starting it again with the same `key` or `run_id`
        is safe.

        ```python
        handle = await client.start(checkout, Order(7), key="order-7", delay="5m")
        if handle.already_existed:
            print("already", handle.status_at_start)
        ```
        """
        known, connection = StartOptions.__optional_keys__, options.get("connection")
        launch = await self._prepare(workflow, options, known, connection)
        run = launch.run(input, key=options.get("key"), run_id=options.get("run_id"))
        return self._handles(launch, await self._submit([run], options))[0]

    @overload
    async def start_many(
        self,
        workflow: Workflow[In, Out],
        inputs: Iterable[In],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[RunHandle[Out]]: ...
    @overload
    async def start_many(
        self,
        workflow: str,
        inputs: Iterable[object],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[RunHandle[object]]: ...
    async def start_many(
        self,
        workflow: AnyWorkflow | str,
        inputs: Iterable[object],
        **options: Unpack[StartManyOptions],
    ) -> Sequence[RunHandle[object]]:
        """Start a run for each input, a thousand in a transaction.

        Every input is checked before the first run is started. An error of the database may
        leave some of the runs started: with `keys`, the same call again completes them.
        `options` are those of `StartManyOptions`. Raises what `start` raises.

        ```python
        handles = await client.start_many(thumbnail, paths, keys=map(str, paths))
        ```
        """
        known, connection = StartManyOptions.__optional_keys__, options.get("connection")
        launch = await self._prepare(workflow, options, known, connection)
        runs = launch.runs(inputs, options.get("keys"))
        return self._handles(launch, await self._submit(runs, options))

    @overload
    async def run(
        self,
        workflow: Workflow[None, Out],
        input: None = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    @overload
    async def run(
        self,
        workflow: Workflow[In, Out],
        input: In,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    @overload
    async def run(
        self,
        workflow: str,
        input: object = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> object: ...
    async def run(
        self,
        workflow: AnyWorkflow | str,
        input: object = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> object:
        """Start a run and return its output, waiting at most `wait`.

        `options` are those of `StartAndWaitOptions`.

        Raises what `start` and `RunHandle.result` raise.

        ```python
        receipt = await client.run(checkout, Order(7), wait="1m")
        ```
        """
        launch = await self._prepare(workflow, options, StartAndWaitOptions.__optional_keys__)
        session, wait = self._live, options.get("wait")
        key, run_id = options.get("key"), options.get("run_id")
        run = launch.run(input, key=key, run_id=run_id, waiter=session.ends.topic)
        ended = await session.start_and_wait(run, None if wait is None else seconds(wait))
        return Restorer(launch.workflow, self._app)(ended)

    # One run

    @overload
    def handle(self, run: RunRef, workflow: Workflow[Never, Out]) -> RunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: None = None) -> RunHandle[object]: ...
    def handle(self, run: RunRef, workflow: AnyWorkflow | None = None) -> RunHandle[object]:
        """Return a handle of a run, without asking whether there is such a run.

        With its workflow, or an app that has it, the result comes back as the declared type.
        Whose a workflow is that is given by its name alone is looked up when the handle is used.
        Raises InvalidInput for what is no id.

        ```python
        handle = client.handle(("checkout", "order-7"), checkout)
        ```
        """
        meant = reference(run, workflow, None if self._app is None else self._app.name)
        wait = self._waiting(Restorer(workflow, self._app))
        return RunHandle(self, meant, wait, workflow=workflow)

    async def fork(self, run: RunRef, **options: Unpack[ForkOptions]) -> RunHandle[object]:
        """Start a run that goes on from somewhere in another's log.

        What had come about there is kept: those steps are not executed again. What was asked
        for and not answered by then is asked for anew. The other run is not touched. `options`
        are those of `ForkOptions`; with a `run_id` the same call again finds the same run.

        Raises ForkRefused for a place that the log does not have, InvalidInput, PayloadError,
        ConfigurationError and RunNotFound.

        ```python
        forked = await client.fork(("checkout", "order-7"), index=1, input=Order(8))
        ```
        """
        origin = await self._get(await self._live.newest_of(run))
        known = ForkOptions.__optional_keys__
        fork = await prepare_fork(self._live, origin, self._app, options, known)
        return await self._fork(fork)

    async def retry(self, run: RunRef) -> RunHandle[object]:
        """Start a run that goes on where another failed, with all that had come about in it.

        For a run that failed, timed out, was cancelled or terminated; of one that continued as
        new, the newest. A run is retried once: the same call again finds the retry, and where
        that failed too, it is the one to retry. By a key, the newest run is meant: it is retried
        if it failed, and found if it is a retry that did not. Raises ForkRefused and RunNotFound.

        ```python
        try:
            retried = await client.retry(run_id)
        except ForkRefused as refusal:
            print(refusal.reason)
        ```
        """
        run_id = await newest(self._live.store, await self._live.names.run(run))
        last = await self._live.newest_of(run) if isinstance(run, tuple) else run_id
        if last != run_id and (found := await self._get(last)).status in ("running", "completed"):
            wait = self._waiting(Restorer[object](None, self._app))
            return RunHandle(self, last, wait, already_existed=True, status_at_start=found.status)
        return await self._fork(await prepare_retry(self._live.store, last))

    async def _fork(self, fork: Fork) -> RunHandle[object]:
        created, status = await fork_run(self._live, fork)
        wait = self._waiting(Restorer[object](None, self._app))
        return RunHandle(
            self, fork.new_run_id, wait, already_existed=not created, status_at_start=status
        )

    async def _prepare(
        self,
        workflow: AnyWorkflow | str,
        options: RunOptions,
        known: Set[str],
        connection: object = None,
    ) -> Launch:
        """Check a start's options; look up whose workflow it is where only a name is given."""
        if isinstance(workflow, str) and self._app is None and "/" not in workflow:
            within = connection is not None
            lookup = partial(apps_within, connection, self._schema) if within else None
            name = check_workflow_name(workflow)
            workflow = await find_full_name(name, self._live.store, lookup)
        return prepare(workflow, self._app, options, known)

    async def _submit(
        self, runs: Sequence[NewRun], options: TransactionOptions
    ) -> Sequence[StartedRun]:
        connection, notify = options.get("connection"), options.get("notify", False)
        if connection is not None:
            return await start_within(connection, runs, schema=self._schema, notify=notify)
        if notify:
            raise ConfigurationError("notify is for a start within a connection's transaction")
        return await self._live.start(runs)

    def _handles(
        self, launch: Launch, started: Iterable[StartedRun]
    ) -> builtins.list[RunHandle[object]]:
        wait = self._waiting(Restorer(launch.workflow, self._app))
        return [
            RunHandle(
                self,
                each.run_id,
                wait,
                workflow=launch.workflow,
                already_existed=not each.created,
                status_at_start=each.status,
            )
            for each in started
        ]

    def _waiting(
        self, restore: Restorer[Out]
    ) -> Callable[[UUID | tuple[str, str], Duration | None], Awaitable[Out]]:
        """Return what a handle waits with."""

        async def wait(run: UUID | tuple[str, str], timeout: Duration | None) -> Out:
            limit = None if timeout is None else seconds(timeout)
            end = await self._live.wait(await self._live.newest_of(run), limit)
            return restore(end, await self._get(end.run_id) if restore.needs_run else None)

        return wait
