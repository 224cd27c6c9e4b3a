"""The client: start runs, send them messages, and wait for their results; groups for the rest."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Never, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.client.activities import Activities
from holdfast.client.alerts import Alerts
from holdfast.client.approvals import Approvals
from holdfast.client.archive import Archives
from holdfast.client.builds import Builds
from holdfast.client.entities import Entities, bind
from holdfast.client.flows import Flows
from holdfast.client.handle import RunHandle
from holdfast.client.limits import Limits
from holdfast.client.messaging import Signal, send_signal, send_signals, send_update
from holdfast.client.naming import RunRef, check_workflow, given_workflow, reference, reference_of
from holdfast.client.outcomes import Restorer
from holdfast.client.queues import Queues
from holdfast.client.reading import get_record
from holdfast.client.retention import Retention
from holdfast.client.runs import Runs
from holdfast.client.schedules import Schedules
from holdfast.client.session import Session
from holdfast.client.single_messages import SingleMessages
from holdfast.client.submitting import prepare_start, start_and_wait, submit
from holdfast.client.topics import Topics
from holdfast.client.webhooks import Webhooks
from holdfast.client.workers import Workers
from holdfast.client.workflows import Workflows
from holdfast.database.resolve import Connecting
from holdfast.definitions.app import App
from holdfast.definitions.jobs import input_of
from holdfast.definitions.startable import AnyStartable, Startable
from holdfast.definitions.starts import (
    PreparedStart,
    StartAndWaitOptions,
    StartManyOptions,
    StartOptions,
    ToStart,
    TransactionOptions,
)
from holdfast.insight.spans import Timeline
from holdfast.payloads import Codecs, LargePayloads, large_payloads_of, payloads_of
from holdfast.store.port import Store, refusal
from holdfast.types import Delivery, NewRun, StartedRun
from holdfast.values.durations import Duration, seconds
from holdfast.values.suggestions import missing_attribute

if TYPE_CHECKING:
    from holdfast.insight.why import Explanation

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")
E = TypeVar("E")
Ts = TypeVarTuple("Ts")


class Client:
    """Starts runs, sends them messages and waits for their results.

    Safe to share between the tasks of one event loop. The database is `database`, else
    `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the embedded one. Several, separated by
    spaces, are the shards of one engine. With an `app`, a workflow may be given by its name and is
    still checked, and results have their types.

    What is needed less often is in groups, named as on the command line: `runs`, `approvals`,
    `activities`, `alerts`, `archive`, `builds`, `entities`, `flows`, `limits`, `messages`,
    `queues`, `retention`, `schedules`, `topics`, `webhooks`, `workflows` and `workers`.

    ```python
    async with Client() as client:
        handle = await client.start(checkout, Order(7), key="order-7")
        print(await handle.result())
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
        """Say where the runs are; `open`, or an `async with`, connects.

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
        connecting = Connecting(prepare, listen_database, redis, read_database)
        if app is None and store is None:
            large_payloads = large_payloads_of(large_payloads)
        payloads = payloads_of(payload_codec, large=large_payloads)
        self._session = session = Session(database, schema, app, store, connecting, payloads)
        self.activities: Activities = Activities(session)
        self.approvals: Approvals = Approvals(session)
        self.alerts: Alerts = Alerts(session)
        self.archive: Archives = Archives(session)
        self.builds: Builds = Builds(session)
        self.entities: Entities = Entities(session)
        self.flows: Flows = Flows(session)
        self.limits: Limits = Limits(session)
        self.messages: SingleMessages = SingleMessages(session)
        self.queues: Queues = Queues(session)
        self.retention: Retention = Retention(session)
        self.runs: Runs = Runs(session)
        self.schedules: Schedules = Schedules(session)
        self.topics: Topics = Topics(session)
        self.webhooks: Webhooks = Webhooks(session)
        self.workers: Workers = Workers(session)
        self.workflows: Workflows = Workflows(session)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, which suggests a name that exists."""
            raise missing_attribute(self, name, vars(self))

    async def open(self) -> Self:
        """Connect, and check the schema. Idempotent.

        Raises DatabaseError: its subclasses say what is wrong with the database or its schema.

        ```python
        client = await Client("postgresql:///shop").open()
        ```
        """
        await self._session.open()
        return self

    async def close(self) -> None:
        """Finish the calls that are under way, send the last wake-ups and disconnect. Idempotent.

        ```python
        await client.close()
        ```
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Starting

    @overload
    async def start(
        self, workflow: Startable[None, Out], input: None = None, **options: Unpack[StartOptions]
    ) -> RunHandle[Out]: ...
    @overload
    async def start(
        self, workflow: Startable[In, Out], input: In, **options: Unpack[StartOptions]
    ) -> RunHandle[Out]: ...
    @overload
    async def start(
        self, workflow: str, input: object = None, **options: Unpack[StartOptions]
    ) -> RunHandle[object]: ...
    @overload
    async def start(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> RunHandle[Out]: ...
    async def start(
        self,
        workflow: ToStart,
        *args: *tuple[object, ...],
        input: object = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[object]:
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
        handle = await client.start(checkout, Order(7), key="order-7", delay="5m")
        if handle.already_existed:
            print("already", handle.status_at_start)
        ```
        """
        known, connection = StartOptions.__optional_keys__, options.get("connection")
        given = input_of(workflow, args, input) if args else input
        prepared = await prepare_start(self._session, workflow, options, known, connection)
        run = prepared.run(given, key=options.get("key"), run_id=options.get("run_id"))
        answers = await submit(self._session, [run], options)
        return self._handles(prepared, [run], answers, options)[0]

    @overload
    async def start_many(
        self,
        workflow: Startable[In, Out],
        inputs: Iterable[In],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[RunHandle[Out]]: ...
    @overload
    async def start_many(
        self, workflow: str, inputs: Iterable[object], **options: Unpack[StartManyOptions]
    ) -> builtins.list[RunHandle[object]]: ...
    @overload
    async def start_many(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        inputs: Iterable[tuple[*Ts]],
        **options: Unpack[StartManyOptions],
    ) -> builtins.list[RunHandle[Out]]: ...
    async def start_many(
        self, workflow: ToStart, inputs: Iterable[object], **options: Unpack[StartManyOptions]
    ) -> Sequence[RunHandle[object]]:
        """Start a run for each input, a thousand in a transaction.

        Each input of a job is a tuple of its arguments, or has them by name.
        Every input is checked before the first run is started. An error of the database may
        leave some of the runs started: with `keys`, the same call again completes them.
        `options` are those of `StartManyOptions`. Raises what `start` raises.

        ```python
        handles = await client.start_many(thumbnail, paths, keys=map(str, paths))
        ```
        """
        known, connection = StartManyOptions.__optional_keys__, options.get("connection")
        prepared = await prepare_start(self._session, workflow, options, known, connection)
        runs = prepared.runs(inputs, options.get("keys"))
        answers = await submit(self._session, runs, options)
        return self._handles(prepared, runs, answers, options)

    @overload
    async def run(
        self,
        workflow: Startable[None, Out],
        input: None = None,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    @overload
    async def run(
        self, workflow: Startable[In, Out], input: In, **options: Unpack[StartAndWaitOptions]
    ) -> Out: ...
    @overload
    async def run(
        self, workflow: str, input: object = None, **options: Unpack[StartAndWaitOptions]
    ) -> object: ...
    @overload
    async def run(
        self,
        workflow: Callable[[*Ts], Coroutine[object, None, Out]],
        *args: *Ts,
        **options: Unpack[StartAndWaitOptions],
    ) -> Out: ...
    async def run(
        self,
        workflow: ToStart,
        *args: *tuple[object, ...],
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
        session, known = self._session, StartAndWaitOptions.__optional_keys__
        given = input_of(workflow, args, input) if args else input
        prepared = await prepare_start(session, workflow, options, known)
        key, run_id, wait = options.get("key"), options.get("run_id"), options.get("wait")
        run = prepared.run(given, key=key, run_id=run_id, waiter=session.ends.topic)
        limit, if_ended = None if wait is None else seconds(wait), options.get("if_ended", "return")
        ended = await start_and_wait(session, run, limit, if_ended)
        return Restorer(prepared.workflow, session.app)(ended)

    # One run

    @overload
    def handle(self, run: tuple[Startable[Never, Out], str]) -> RunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: Startable[Never, Out]) -> RunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: None = None) -> RunHandle[object]: ...
    def handle(self, run: RunRef, workflow: AnyStartable | None = None) -> RunHandle[object]:
        """Return a handle of a run, without asking the database whether it exists.

        With its workflow, here or with the key, or an app that has it, the result comes back as
        the declared type. If the workflow is given by its name alone, its app is looked up when
        the handle is used. Raises InvalidInput for a text that is not an id.

        ```python
        handle = client.handle((checkout, "order-7"))
        ```
        """
        workflow = given_workflow(run) if workflow is None else check_workflow(workflow)
        app = self._session.app
        meant = reference(run, workflow, None if app is None else app.name)
        return RunHandle(self._session, meant, workflow=workflow)

    @overload
    async def result(
        self, run: tuple[Startable[Never, Out], str], *, timeout: Duration | None = None
    ) -> Out: ...
    @overload
    async def result(
        self, run: RunRef, workflow: Startable[Never, Out], *, timeout: Duration | None = None
    ) -> Out: ...
    @overload
    async def result(
        self, run: RunRef, workflow: None = None, *, timeout: Duration | None = None
    ) -> object: ...
    async def result(
        self, run: RunRef, workflow: AnyStartable | None = None, *, timeout: Duration | None = None
    ) -> object:
        """Wait for a run's end and return its output; see `RunHandle.result`.

        The output is of the type that the workflow declares if the workflow is given here or with
        the key, or is in the client's app; else it is plain JSON values.

        ```python
        print(await client.result(run_id, checkout, timeout="1m"))
        ```
        """
        return await self.handle(run, workflow).result(timeout)

    async def signal(
        self, run: RunRef, name: str, payload: object = None, signal_id: str | None = None
    ) -> bool:
        """Send a signal; the run's code gets it when it waits for that name, now or later.

        With a `signal_id` it is delivered once, however often it is sent: returns False if it was
        sent before. If the run continued as new, the newest run gets it. Raises RunNotFound,
        RunEnded and PayloadError.

        ```python
        await client.signal(("checkout", "order-7"), "packed", {"boxes": 2})
        ```
        """
        return await send_signal(self._session, Signal(run, name, payload, signal_id))

    async def signal_many(self, signals: Iterable[Signal]) -> builtins.list[Delivery]:
        """Send signals together, and return the outcome of each; none of them raises.

        ```python
        outcomes = await client.signal_many(Signal(run, "stop") for run in run_ids)
        ```
        """
        return await send_signals(self._session, signals)

    @overload
    async def update(
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
    async def update(
        self,
        run: RunRef,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    async def update(
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
            total = await client.update(run_id, "add-item", {"sku": "A7"}, timeout="5s")
        except RunEnded:
            print("too late")
        ```
        """
        update = Signal(run, name, payload, update_id)
        return await send_update(self._session, update, timeout, type)

    def entity(
        self, cls: type[E], key: str, *, call_id: str | None = None, timeout: Duration | None = None
    ) -> E:
        """Return the entity of a key, to await its methods; the first call makes it.

        Changes are made one after another, reads wake nothing. With a `call_id`, a change is made
        once, however often it is sent, and each caller gets the answer. `timeout` limits how long
        a call waits for it; after ResultTimeout the entity has the call all the same.

        Awaiting a method raises UpdateFailed for what the method raised, which changed nothing;
        UpdateRejected for a call that was not begun; RunEnded if the entity was terminated.

        ```python
        cart = client.entity(Cart, "ann")
        await cart.add("lamp")
        ```
        """
        return bind(self.entities, cls, key, call_id, timeout)

    async def why(self, run: RunRef) -> Explanation:
        """Return what a run does or waits for, and the actions that would move it.

        Each activity, child and approval that it waits for is explained. Raises RunNotFound.

        ```python
        found = await client.why(run_id)
        print(found.because, [action.do for action in found.actions])
        ```
        """
        from holdfast.insight.why import explain_run  # many modules, which few programs need

        record = await get_record(self._session, await self._session.newest_of(run))
        return await explain_run(self._session.store, record)

    async def timeline(self, run: RunRef) -> Timeline:
        """Return what happened in a run as spans: steps, calls, timers, messages.

        Raises RunNotFound.

        ```python
        timeline = await client.timeline(run_id)
        for span in timeline.spans:
            print(span.kind, span.label, span.outcome)
        ```
        """
        from holdfast.insight.timeline import read_timeline

        record = await get_record(self._session, await self._session.newest_of(run))
        return await read_timeline(self._session.store, record)

    def _handles(
        self,
        prepared: PreparedStart,
        runs: Sequence[NewRun],
        started: Sequence[StartedRun],
        options: TransactionOptions,
    ) -> builtins.list[RunHandle[object]]:
        within = options.get("connection") is not None
        handles: builtins.list[RunHandle[object]] = []
        for run, each in zip(runs, started, strict=True):
            if each.refused is not None:
                raise refusal(prepared.template.name, each)
            handle = RunHandle(
                self._session,
                reference_of(run, each),
                first=each.run_id,
                workflow=prepared.workflow,
                already_existed=not each.created,
                status_at_start=each.status,
                within=within,
            )
            handles.append(handle)
        return handles
