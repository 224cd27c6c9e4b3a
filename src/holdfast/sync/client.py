"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Never, TypeVar, TypeVarTuple, Unpack, cast, overload

from holdfast.client.handle import RunHandle
from holdfast.client.messaging import Signal
from holdfast.client.naming import RunRef
from holdfast.definitions.app import App
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.definitions.starts import StartAndWaitOptions, StartManyOptions, StartOptions, ToStart
from holdfast.insight.spans import Timeline
from holdfast.insight.why import Explanation
from holdfast.payloads import Codecs, LargePayloads
from holdfast.store.port import Store
from holdfast.sync.activities import SyncActivities
from holdfast.sync.alerts import SyncAlerts
from holdfast.sync.approvals import SyncApprovals
from holdfast.sync.archive import SyncArchives
from holdfast.sync.base import SyncBase, Target
from holdfast.sync.builds import SyncBuilds
from holdfast.sync.entities import SyncEntities
from holdfast.sync.flows import SyncFlows
from holdfast.sync.handle import SyncRunHandle
from holdfast.sync.limits import SyncLimits
from holdfast.sync.queues import SyncQueues
from holdfast.sync.retention import SyncRetention
from holdfast.sync.runs import SyncRuns
from holdfast.sync.schedules import SyncSchedules
from holdfast.sync.single_messages import SyncSingleMessages
from holdfast.sync.topics import SyncTopics
from holdfast.sync.webhooks import SyncWebhooks
from holdfast.sync.workers import SyncWorkers
from holdfast.sync.workflows import SyncWorkflows
from holdfast.types import Delivery
from holdfast.values.durations import Duration

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")
E = TypeVar("E")
Ts = TypeVarTuple("Ts")


class SyncClient(SyncBase):
    """Starts runs, sends them messages and waits for their results.

    Safe to share between threads. The database is `database`, else
    `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the embedded one. Several, separated by
    spaces, are the shards of one engine. With an `app`, a workflow may be given by its name and is
    still checked, and results have their types.

    What is needed less often is in groups, named as on the command line: `runs`, `approvals`,
    `activities`, `alerts`, `archive`, `builds`, `entities`, `flows`, `limits`, `messages`,
    `queues`, `retention`, `schedules`, `topics`, `webhooks`, `workflows` and `workers`.

    ```python
    with SyncClient() as client:
        handle = client.start(checkout, Order(7), key="order-7")
        print(handle.result())
    ```
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str = "holdfast",
        app: App | None = None,
        store: Store | None = None,
        prepare: bool | None = None,
        listen_database: str | None = None,
        redis: str | None = None,
        read_database: str | None = None,
        payload_codec: Codecs | None = None,
        large_payloads: LargePayloads | None = None,
    ) -> None:
        """Say where the runs are; `open`, or a `with`, connects.

        A `store` is used as it is, and is not closed with the client. Statements are prepared by
        name unless a connection pooler is found in between; `prepare` decides it instead. With a
        pooler in transaction mode, `listen_database` is the server's own address, for
        notifications; without it the client polls for ends, and finds them within seconds.
        `redis` is the URL of the Redis that wakes workers for the runs that this client starts.
        Lists come from `read_database`, a streaming replica, while it can be reached; a run that
        is given by its id or its key is always read from the database itself.
        Payloads are encoded and decoded by `payload_codec`, by default by that of the app.
        With `large_payloads`, large ones are objects outside of the database; by default as the app
        says, without an app as `$HOLDFAST_LARGE_PAYLOADS` does.
        """
        super().__init__(
            Target(
                database,
                schema=schema,
                app=app,
                store=store,
                prepare=prepare,
                listen_database=listen_database,
                redis=redis,
                read_database=read_database,
                payload_codec=payload_codec,
                large_payloads=large_payloads,
            )
        )
        self.activities: SyncActivities = SyncActivities(self._portal, self._target.activities)
        self.approvals: SyncApprovals = SyncApprovals(self._portal, self._target.approvals)
        self.alerts: SyncAlerts = SyncAlerts(self._portal, self._target.alerts)
        self.archive: SyncArchives = SyncArchives(self._portal, self._target.archive)
        self.builds: SyncBuilds = SyncBuilds(self._portal, self._target.builds)
        self.entities: SyncEntities = SyncEntities(self._portal, self._target.entities)
        self.flows: SyncFlows = SyncFlows(self._portal, self._target.flows)
        self.limits: SyncLimits = SyncLimits(self._portal, self._target.limits)
        self.messages: SyncSingleMessages = SyncSingleMessages(self._portal, self._target.messages)
        self.queues: SyncQueues = SyncQueues(self._portal, self._target.queues)
        self.retention: SyncRetention = SyncRetention(self._portal, self._target.retention)
        self.runs: SyncRuns = SyncRuns(self._portal, self._target.runs)
        self.schedules: SyncSchedules = SyncSchedules(self._portal, self._target.schedules)
        self.topics: SyncTopics = SyncTopics(self._portal, self._target.topics)
        self.webhooks: SyncWebhooks = SyncWebhooks(self._portal, self._target.webhooks)
        self.workers: SyncWorkers = SyncWorkers(self._portal, self._target.workers)
        self.workflows: SyncWorkflows = SyncWorkflows(self._portal, self._target.workflows)

    @overload
    def start(
        self, workflow: Startable[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Out]: ...
    @overload
    def start(
        self, workflow: Startable[In, Out], input: In, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Out]: ...
    @overload
    def start(
        self, workflow: str, input: object = None, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[object]: ...
    @overload
    def start(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[Out]: ...
    def start(
        self,
        workflow: ToStart,
        *args: *tuple[object, ...],
        input: object = None,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[object]:
        """Start a run, or find the one that was started with the same key.

        A job takes the arguments of its function in their order, or, as `input`, by name.
        A workflow's name means the workflow of the client's app; if the client has no app, the
        one workflow of this name that any worker of this database has ever served. `app/name`
        names the app too. If the workflow's code is not here, the input is stored as it is, for
        version 1 unless `version` says otherwise. Calls made at the same moment share one
        transaction. `options` are those of `StartOptions`.

        With a `connection` the start is part of the caller's open transaction there: if it is
        rolled back, the run does not exist. The connection is one of asyncpg or psycopg, or a
        connection or session of SQLAlchemy. Workers find such a run when they next poll, within
        about a second; with `notify` they find it at once, but PostgreSQL then makes the commits
        of all transactions that notify wait for each other.

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
            cast(
                "RunHandle[object]",
                self._call(self._target.start, workflow, *args, input=input, **options),
            ),
        )

    @overload
    def start_many(
        self,
        workflow: Startable[In, Out],
        inputs: Iterable[In],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[SyncRunHandle[Out]]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Iterable[object], **options: Unpack[StartManyOptions]
    ) -> builtins.list[SyncRunHandle[object]]: ...
    @overload
    def start_many(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        inputs: Iterable[tuple[*Ts,]],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[SyncRunHandle[Out]]: ...
    def start_many(
        self, workflow: ToStart, inputs: Iterable[object], **options: Unpack[StartManyOptions]
    ) -> Sequence[SyncRunHandle[object]]:
        """Start a run for each input, a thousand in a transaction.

        Each input of a job is a tuple of its arguments, or has them by name.
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
        workflow: Startable[None, Out],
        input: None = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    @overload
    def run(
        self, workflow: Startable[In, Out], input: In, **options: Unpack[StartAndWaitOptions]
    ) -> Out: ...
    @overload
    def run(
        self, workflow: str, input: object = None, **options: Unpack[StartAndWaitOptions]
    ) -> object: ...
    @overload
    def run(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        *args: *Ts,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    def run(
        self,
        workflow: ToStart,
        *args: *tuple[object, ...],
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
        return self._call(self._target.run, workflow, *args, input=input, **options)

    @overload
    def handle(self, run: RunRef, workflow: Startable[Never, Out]) -> SyncRunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: None = None) -> SyncRunHandle[object]: ...
    def handle(self, run: RunRef, workflow: AnyStartable | None = None) -> SyncRunHandle[object]:
        """Return a handle of a run, without asking the database whether it exists.

        With its workflow, or an app that has it, the result comes back as the declared type. If
        the workflow is given by its name alone, its app is looked up when the handle is used.
        Raises InvalidInput for a text that is not an id.

        ```python
        handle = client.handle(("checkout", "order-7"), checkout)
        ```
        """
        return SyncRunHandle(self._portal, self._target.handle(run, workflow))

    @overload
    def result(
        self, run: RunRef, workflow: Startable[Never, Out], *, timeout: Duration | None = None
    ) -> Out: ...
    @overload
    def result(
        self, run: RunRef, workflow: None = None, *, timeout: Duration | None = None
    ) -> object: ...
    def result(
        self, run: RunRef, workflow: AnyStartable | None = None, *, timeout: Duration | None = None
    ) -> object:
        """Wait for a run's end and return its output; see `SyncRunHandle.result`.

        The output is of the type that the workflow declares if the workflow is given here or with
        the key, or is in the client's app; else it is plain JSON values.

        ```python
        print(client.result(run_id, checkout, timeout="1m"))
        ```
        """
        return self._call(self._target.result, run, workflow, timeout=timeout)

    def signal(
        self, run: RunRef, name: str, payload: object = None, signal_id: str | None = None
    ) -> bool:
        """Send a signal; the run's code gets it when it waits for that name, now or later.

        With a `signal_id` it is delivered once, however often it is sent: returns False if it was
        sent before. If the run continued as new, the newest run gets it. Raises RunNotFound,
        RunEnded and PayloadError.

        ```python
        client.signal(("checkout", "order-7"), "packed", {"boxes": 2})
        ```
        """
        return self._call(self._target.signal, run, name, payload, signal_id)

    def signal_many(self, signals: Iterable[Signal]) -> builtins.list[Delivery]:
        """Send signals together, and return the outcome of each; none of them raises.

        ```python
        outcomes = client.signal_many(Signal(run, "stop") for run in run_ids)
        ```
        """
        return self._call(self._target.signal_many, signals)

    @overload
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[T],
    ) -> T: ...
    @overload
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[object] | None = None,
    ) -> object:
        """Ask a run to change something, and return its handler's answer.

        The run may refuse the update, and then nothing of it happens. The answer comes back as a
        `type`, else as plain JSON values. With an `update_id` it is carried out once, however
        often it is sent, and each caller gets the answer. After a ResultTimeout the run has the
        update; call again with the same id to wait again. If the run continued as new, the newest
        run gets it.

        Raises UpdateRejected, UpdateFailed, ResultTimeout if there is no answer `timeout` after it
        was sent, RunEnded, RunNotFound and PayloadError.

        ```python
        try:
            total = client.update(run_id, "add-item", {"sku": "A7"}, timeout="5s")
        except RunEnded:
            print("too late")
        ```
        """
        return self._call(
            self._target.update, run, name, payload, update_id=update_id, timeout=timeout, type=type
        )

    def why(self, run: RunRef) -> Explanation:
        """Return what a run does or waits for, and the actions that would move it.

        Each activity, child and approval that it waits for is explained. Raises RunNotFound.

        ```python
        found = client.why(run_id)
        print(found.because, [action.do for action in found.actions])
        ```
        """
        return self._call(self._target.why, run)

    def timeline(self, run: RunRef) -> Timeline:
        """Return what happened in a run as spans: steps, calls, timers, messages.

        Raises RunNotFound.

        ```python
        timeline = client.timeline(run_id)
        for span in timeline.spans:
            print(span.kind, span.label, span.outcome)
        ```
        """
        return self._call(self._target.timeline, run)
