"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Never, TypeVar, Unpack, cast, overload

from holdfast.client.forking import ForkOptions
from holdfast.client.handle import RunHandle
from holdfast.client.references import RunRef
from holdfast.client.starting import (
    StartAndWaitOptions,
    StartManyOptions,
    StartOptions,
)
from holdfast.definitions.app import AnyWorkflow
from holdfast.definitions.workflows import Workflow
from holdfast.sync.bulk import SyncBulkController
from holdfast.sync.handle import SyncRunHandle

In = TypeVar("In")
Out = TypeVar("Out")


class SyncClient(SyncBulkController):
    """Starts runs and talks to them. Safe to share between threads.

    The database is `database`, else `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the
    embedded one. An `app` lets workflows be named by text and still be checked and restored.

    ```python
    with SyncClient() as client:
        handle = client.start(checkout, Order(7), key="order-7")
        print(handle.result())
    ```
    """

    @overload
    def start(
        self, workflow: Workflow[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Out]: ...
    @overload
    def start(
        self, workflow: Workflow[In, Out], input: In, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Out]: ...
    @overload
    def start(
        self, workflow: str, input: object = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[object]: ...
    def start(
        self, workflow: AnyWorkflow | str, input: object = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[object]:
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
        handle = client.start(checkout, Order(7), key="order-7", delay="5m")
        if handle.already_existed:
            print("already", handle.status_at_start)
        ```
        """
        return SyncRunHandle(
            self._portal,
            cast("RunHandle[object]", self._call(self._target.start, workflow, input, **options)),
        )

    @overload
    def start_many(
        self, workflow: Workflow[In, Out], inputs: Iterable[In], **options: Unpack[StartManyOptions]
    ) -> builtins.list[SyncRunHandle[Out]]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Iterable[object], **options: Unpack[StartManyOptions]
    ) -> builtins.list[SyncRunHandle[object]]: ...
    def start_many(
        self,
        workflow: AnyWorkflow | str,
        inputs: Iterable[object],
        **options: Unpack[StartManyOptions],
    ) -> Sequence[SyncRunHandle[object]]:
        """Start a run for each input, a thousand in a transaction.

        Every input is checked before the first run is started. An error of the database may
        leave some of the runs started: with `keys`, the same call again completes them.
        `options` are those of `StartManyOptions`. Raises what `start` raises.

        ```python
        handles = client.start_many(thumbnail, paths, keys=map(str, paths))
        ```
        """
        return [
            SyncRunHandle(self._portal, each)
            for each in cast(
                "Sequence[RunHandle[object]]",
                self._call(self._target.start_many, workflow, inputs, **options),
            )
        ]

    @overload
    def run(
        self,
        workflow: Workflow[None, Out],
        input: None = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    @overload
    def run(
        self, workflow: Workflow[In, Out], input: In, **options: Unpack[StartAndWaitOptions]
    ) -> Out: ...
    @overload
    def run(
        self, workflow: str, input: object = None, **options: Unpack[StartAndWaitOptions]
    ) -> object: ...
    def run(
        self,
        workflow: AnyWorkflow | str,
        input: object = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> object:
        """Start a run and return its output, waiting at most `wait`.

        `options` are those of `StartAndWaitOptions`.

        Raises what `start` and `SyncRunHandle.result` raise.

        ```python
        receipt = client.run(checkout, Order(7), wait="1m")
        ```
        """
        return self._call(self._target.run, workflow, input, **options)

    @overload
    def handle(self, run: RunRef, workflow: Workflow[Never, Out]) -> SyncRunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: None = None) -> SyncRunHandle[object]: ...
    def handle(self, run: RunRef, workflow: AnyWorkflow | None = None) -> SyncRunHandle[object]:
        """Return a handle of a run, without asking whether there is such a run.

        With its workflow, or an app that has it, the result comes back as the declared type.
        Whose a workflow is that is given by its name alone is looked up when the handle is used.
        Raises InvalidInput for what is no id.

        ```python
        handle = client.handle(("checkout", "order-7"), checkout)
        ```
        """
        return SyncRunHandle(self._portal, self._target.handle(run, workflow))

    def fork(self, run: RunRef, **options: Unpack[ForkOptions]) -> SyncRunHandle[object]:
        """Start a run that goes on from somewhere in another's log.

        What had come about there is kept: those steps are not executed again. What was asked
        for and not answered by then is asked for anew. The other run is not touched. `options`
        are those of `ForkOptions`; with a `run_id` the same call again finds the same run.

        Raises ForkRefused for a place that the log does not have, InvalidInput, PayloadError,
        ConfigurationError and RunNotFound.

        ```python
        forked = client.fork(("checkout", "order-7"), index=1, input=Order(8))
        ```
        """
        return SyncRunHandle(self._portal, self._call(self._target.fork, run, **options))

    def retry(self, run: RunRef) -> SyncRunHandle[object]:
        """Start a run that goes on where another failed, with all that had come about in it.

        For a run that failed, timed out, was cancelled or terminated; of one that continued as
        new, the newest. A run is retried once: the same call again finds the retry, and where
        that failed too, it is the one to retry. By a key, the newest run is meant: it is retried
        if it failed, and found if it is a retry that did not. Raises ForkRefused and RunNotFound.

        ```python
        try:
            retried = client.retry(run_id)
        except ForkRefused as refusal:
            print(refusal.reason)
        ```
        """
        return SyncRunHandle(self._portal, self._call(self._target.retry, run))
