"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Never, TypeVar, TypeVarTuple, Unpack, cast, overload

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.naming import RunRef
from holdfast.definitions.app import App
from holdfast.definitions.startable import Startable
from holdfast.definitions.starts import StartAndWaitOptions, StartManyOptions, StartOptions, ToStart
from holdfast.payloads import Codecs, LargePayloads
from holdfast.store.port import Store
from holdfast.sync.base import SyncBase, Target, blocking
from holdfast.sync.groups import (
    SyncActivities,
    SyncAlerts,
    SyncApprovals,
    SyncArchives,
    SyncBuilds,
    SyncEntities,
    SyncFlows,
    SyncLimits,
    SyncRetention,
    SyncSingleMessages,
    SyncWebhooks,
    SyncWorkers,
    SyncWorkflows,
)
from holdfast.sync.handle import SyncRunHandle
from holdfast.sync.queues import SyncQueues
from holdfast.sync.runs import SyncRuns
from holdfast.sync.schedules import SyncSchedules
from holdfast.sync.topics import SyncTopics
from holdfast.values.durations import Duration

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")
E = TypeVar("E")
Ts = TypeVarTuple("Ts")


class SyncClient(SyncBase, of=Client):
    """Starts runs, sends them messages and waits for their results."""

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
        """Say where the runs are; `open`, or an `async with`, connects."""
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
        """Start a run, or find the one that was started with the same key."""
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
    def start_many(self, *args: Any, **options: Any) -> Sequence[SyncRunHandle[object]]:
        """Start a run for each input, a thousand in a transaction."""
        return [
            SyncRunHandle(self._portal, each)
            for each in cast(
                "Sequence[RunHandle[object]]", self._call(self._target.start_many, *args, **options)
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
        """Start a run and return its output, waiting at most `wait`."""
        return self._call(self._target.run, workflow, *args, input=input, **options)

    @overload
    def handle(self, run: tuple[Startable[Never, Out], str]) -> SyncRunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: Startable[Never, Out]) -> SyncRunHandle[Out]: ...
    @overload
    def handle(self, run: RunRef, workflow: None = None) -> SyncRunHandle[object]: ...
    def handle(self, *args: Any, **options: Any) -> SyncRunHandle[object]:
        """Return a handle of a run, without asking the database whether it exists."""
        return SyncRunHandle(self._portal, self._target.handle(*args, **options))

    @overload
    def result(
        self, run: tuple[Startable[Never, Out], str], *, timeout: Duration | None = None
    ) -> Out: ...
    @overload
    def result(
        self, run: RunRef, workflow: Startable[Never, Out], *, timeout: Duration | None = None
    ) -> Out: ...
    @overload
    def result(
        self, run: RunRef, workflow: None = None, *, timeout: Duration | None = None
    ) -> object: ...
    def result(self, *args: Any, **options: Any) -> object:
        """Wait for a run's end and return its output; see `RunHandle.result`."""
        return self._call(self._target.result, *args, **options)

    signal = blocking(Client.signal)
    """Send a signal; the run's code gets it when it waits for that name, now or later."""
    signal_many = blocking(Client.signal_many)
    """Send signals together, and return the outcome of each; none of them raises."""

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
    def update(self, *args: Any, **options: Any) -> object:
        """Ask a run to change something, and return its handler's answer."""
        return self._call(self._target.update, *args, **options)

    why = blocking(Client.why)
    """Return what a run does or waits for, and the actions that would move it."""
    timeline = blocking(Client.timeline)
    """Return what happened in a run as spans: steps, calls, timers, messages."""
