"""The tables, and the changes that several transitions share: append, wake, end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final, Protocol
from uuid import UUID

import msgspec
from msgspec import field

from holdfast.store.memory.queue_rows import QueueTable
from holdfast.store.memory.rows import (
    TURN,
    AlertRow,
    BuildRow,
    DeliveryRow,
    EventRow,
    LimitPlace,
    LimitRow,
    ParentClose,
    PayloadOwnerRow,
    RouteRow,
    RunRow,
    ShapeRow,
    StartKey,
    StepRow,
    StreamRow,
    SubscriptionRow,
    SweeperRow,
    TaskRow,
    WaitingRun,
    WebhookRow,
    of_each,
)
from holdfast.store.memory.schedules.rows import BackfillRow, ScheduleRow, ScheduleSet
from holdfast.store.port import WORK_TOPIC, end_payload, worker_topic
from holdfast.types import (
    ANY_END,
    ANY_UPDATE,
    AppInfo,
    Bucket,
    CatalogueEntry,
    DeclaredOptions,
    DeclaredRules,
    EndStatus,
    Event,
    Forward,
    Notice,
    Pause,
    RuleKind,
    Scope,
    ShardState,
    WorkerInfo,
)

SILENCE: Final = 90_000_000  # µs: after that, code that no worker has declared is gone


class Nesting(Protocol):
    """What follows for runs of flows from runs that are steps of theirs, and the reverse.

    Runs end, flows advance and start runs, which may end at once: each calls the next.
    """

    def tell(self, tables: Tables, now: int, run_id: UUID, ended: list[UUID]) -> list[Notice]:
        """Tell a run of a flow of the ends of runs that are steps of it."""
        ...

    def start(self, tables: Tables, now: int, tasks: list[tuple[UUID, str]]) -> list[Notice]:
        """Start the runs that tasks of steps stand for."""
        ...

    def resume(self, tables: Tables, now: int, run_ids: list[UUID]) -> list[Notice]:
        """Start the runs that were not started because their flows' runs were paused."""
        ...

    def cancel(self, tables: Tables, now: int, run_ids: list[UUID]) -> list[Notice]:
        """Stop all steps of runs but those that always run at the end."""
        ...


def is_heard(heard_at: int, now: int, within: int) -> bool:
    """Return True if a worker was heard at about this time, before or after: clocks get set."""
    return abs(now - heard_at) <= within


class Tasks(dict[tuple[UUID, str], TaskRow]):
    """Tasks by run and key. It knows those of each run: a look at all for one run takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_of_run: defaultdict[UUID, set[str]] = defaultdict(set)

    def __setitem__(self, place: tuple[UUID, str], task: TaskRow) -> None:
        super().__setitem__(place, task)
        self.keys_of_run[place[0]].add(place[1])

    def __delitem__(self, place: tuple[UUID, str]) -> None:
        super().__delitem__(place)
        run_id, key = place
        self.keys_of_run[run_id].discard(key)
        if not self.keys_of_run[run_id]:
            del self.keys_of_run[run_id]


class Tables(msgspec.Struct):
    """Everything that the store holds. Logs are lists: an event's index is its place."""

    nesting: Nesting

    runs: dict[UUID, RunRow] = {}
    logs: dict[UUID, list[EventRow]] = {}
    tasks: Tasks = msgspec.field(default_factory=Tasks)
    workers: dict[str, WorkerInfo] = {}
    # Since when each worker was heard without a gap.
    heard_since: dict[str, int] = {}
    # When those that are sweeps will have ended; also of some that are gone.
    sweeps_end: dict[str, int] = {}
    shard: ShardState | None = None
    forwards: list[Forward] = []
    forwarded: int = 0  # the number of the newest forward
    forwarder: tuple[str, int] = ("", 0)  # who may send them, and until when
    traced_until: int = 0
    ends_to_trace: set[UUID] = set()
    waiters: defaultdict[UUID, set[str]] = of_each(set)
    children: defaultdict[UUID, list[UUID]] = of_each(list)
    apps: dict[str, AppInfo] = {}
    builds: dict[tuple[str, str], BuildRow] = {}  # by app and name
    build_routes: dict[str, RouteRow] = {}  # by app
    pauses: dict[tuple[Scope, str], Pause] = {}
    limits: dict[LimitPlace, LimitRow] = {}
    limits_made: int = 0
    # The group of tasks that was last in turn, by queue and handler.
    limit_turns: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
    shapes: dict[str, ShapeRow] = {}  # by handler
    steps: defaultdict[UUID, dict[str, StepRow]] = of_each(dict)
    declared_options: dict[str, DeclaredOptions] = {}
    catalogue: dict[str, CatalogueEntry] = {}
    sweeper: SweeperRow = field(default_factory=SweeperRow)
    # Outputs of a map's elements, by index.
    elements: defaultdict[tuple[UUID, str], dict[int, str]] = of_each(dict)
    # Errors of a map's elements that failed; their outputs are null.
    failed: defaultdict[tuple[UUID, str], dict[int, str]] = of_each(dict)
    start_rules: dict[str, DeclaredRules] = {}
    # By rule, name and key.
    start_keys: dict[tuple[RuleKind, str, str], StartKey] = {}
    # Moments of the starts of a throttle's key, by name and key.
    throttle_slots: defaultdict[tuple[str, str], list[int]] = of_each(list)
    # Runs that wait for the end of a singleton, by name and key.
    singleton_waits: defaultdict[tuple[str, str], list[WaitingRun]] = of_each(list)
    queues: QueueTable = field(default_factory=QueueTable)
    schedules: dict[str, ScheduleRow] = {}
    buckets: defaultdict[str, dict[int, Bucket]] = of_each(dict)  # by schedule and tick
    backfills: dict[UUID, BackfillRow] = {}
    schedule_sets: dict[tuple[str, str], ScheduleSet] = {}  # by app and digest

    payload_owners: dict[tuple[UUID, str], PayloadOwnerRow] = {}  # by owner and URL
    # Runs, and the owners of the objects that they use.
    payload_users: set[tuple[UUID, UUID]] = set()
    streams: defaultdict[UUID, dict[str, StreamRow]] = of_each(dict)
    stream_readers: dict[tuple[UUID, str], int] = {}  # until when readers of a stream are woken
    subscriptions: dict[int, SubscriptionRow] = {}
    subscriptions_made: int = 0
    deliveries: dict[int, DeliveryRow] = {}
    deliveries_made: int = 0
    webhooks: dict[str, WebhookRow] = {}  # by digest
    published: dict[str, int] = {}  # ids: when they expire
    alerts: dict[tuple[str, str], AlertRow] = {}  # by app and name

    # By minute, its seconds, name and writer.
    samples: dict[tuple[int, int, str, str], list[int]] = {}
    stats: dict[tuple[int, int, str, str], list[int]] = {}

    clock_ahead: int = 0  # how far the clock was before it was set back; 0: it was not
    revisions: int = 0  # of schedules, given so far

    def next_revision(self) -> int:
        """Return a number that no definition of a schedule has had."""
        self.revisions += 1
        return self.revisions

    def append(self, run_id: UUID, event: Event, token: UUID | None = None) -> None:
        """Write the next event of a run's log."""
        self.logs[run_id].append(EventRow(event, token))

    def read(self, run_id: UUID, since: int = 0) -> list[Event]:
        """Return a run's events from an index on, filled in from the run's row."""
        return [self.filled(run_id, row.event) for row in self.logs.get(run_id, [])[since:]]

    def filled(self, run_id: UUID, event: Event) -> Event:
        """Return an event with the input, output or error, which only another row stores."""
        run = self.runs[run_id]
        match event.type:
            case "WorkflowStarted":
                details: str | None = run.new.input
            case "WorkflowCompleted":
                details = run.output
            case "WorkflowFailed":
                details = run.error
            case "FlowStepCompleted" if event.key is not None:
                details = _told_by_step(self.steps[run_id][event.key])
            case _:
                return event
        return Event(event.type, event.key, details, event.at)

    def turn(self, run_id: UUID) -> TaskRow:
        """Return the row of a running run's turn."""
        return self.tasks[run_id, TURN]

    def deadlines(self) -> list[tuple[int, UUID]]:
        """Return when runs must have ended, the next first."""
        return sorted(
            (run.deadline_at, run_id)
            for run_id, run in self.runs.items()
            if run.status == "running" and run.deadline_at is not None
        )

    def activity_deadlines(self) -> list[tuple[int, UUID, str]]:
        """Return when activities must have ended, the next first."""
        return sorted(
            (task.deadline_at, task.run_id, task.key)
            for task in self.tasks.values()
            if task.deadline_at is not None
        )

    def is_running(self, run_id: UUID) -> bool:
        """Return True if the run exists and has not ended."""
        return run_id in self.runs and self.runs[run_id].status == "running"

    def open_children(self, run_id: UUID) -> list[UUID]:
        """Return the runs that this one has started and that have not ended, by id."""
        return sorted(filter(self.is_running, self.children[run_id]))

    def close_policy(self, child_id: UUID) -> ParentClose:
        """Return what becomes of a child when its parent ends."""
        parent = self.runs[child_id].parent
        return "abandon" if parent is None else parent.close

    def is_paused(self, task: TaskRow) -> bool:
        """Return True if the task is paused, or its run, its queue or its workflow is."""
        runs_code = task.kind in ("workflow", "step")
        workflow = runs_code and ("workflow", task.name) in self.pauses
        return task.paused or workflow or ("queue", task.queue) in self.pauses

    def tasks_of_run(self, run_id: UUID) -> list[tuple[tuple[UUID, str], TaskRow]]:
        """Return the tasks of a run, by key."""
        keys = sorted(self.tasks.keys_of_run.get(run_id, ()))
        return [((run_id, key), self.tasks[run_id, key]) for key in keys]

    def tasks_of(self, worker_id: str) -> Iterator[TaskRow]:
        """Yield the tasks that a worker has leased."""
        return (task for task in self.tasks.values() if task.worker == worker_id)

    def hears(self, worker_id: str | None, now: int, span: int) -> bool:
        """Return True if a worker is heard now and was for so long without a gap."""
        info = self.workers.get(worker_id or "")
        return (
            info is not None
            and is_heard(info.heard_at, now, span // 2)
            and self.heard_since[info.worker_id] <= now - span
        )

    def can_tell_gone(self, app: str, now: int, *, starting: bool = False) -> bool:
        """Return True if silence proves that code of an app is gone; see `_can_tell_gone`."""
        since = self.heard_since
        serving = [
            each
            for each in self.workers.values()
            if not each.handlers or any(name.startswith(f"{app}/") for name in each.handlers)
        ]
        if not serving or any(self.hears(each.worker_id, now, SILENCE) for each in serving):
            return True
        believes = starting or any(
            each.worker_id in self.sweeps_end and is_heard(each.heard_at, now, SILENCE // 2)
            for each in serving
        )
        return believes and not any(
            since[each.worker_id] > max(each.started_at, now - SILENCE) for each in serving
        )

    def delete(self, run_ids: Collection[UUID]) -> None:
        """Delete runs that have ended, with all that is theirs."""
        gone = set(run_ids)
        for run_id in gone:
            parent = self.runs.pop(run_id).parent
            if parent is not None and run_id in self.children[parent.run_id]:
                self.children[parent.run_id].remove(run_id)
            self.children.pop(run_id, None)
            self.steps.pop(run_id, None)
            self.streams.pop(run_id, None)
            self.waiters.pop(run_id, None)
            del self.logs[run_id]
        for digest in [digest for digest, row in self.webhooks.items() if row.run_id in gone]:
            del self.webhooks[digest]
        for place in [place for place in self.elements if place[0] in gone]:
            del self.elements[place]
            self.failed.pop(place, None)
        for stream in [stream for stream in self.stream_readers if stream[0] in gone]:
            del self.stream_readers[stream]
        if self.payload_owners:
            self._leave_payloads(gone)

    def _leave_payloads(self, run_ids: Collection[UUID]) -> None:
        """Let the objects be looked at, an hour after the last one, that deleted runs used."""
        left = {(user, owner) for user, owner in self.payload_users if user in run_ids}
        self.payload_users -= left
        owners = {owner for _, owner in left}.union(run_ids)
        for (owner, _), row in self.payload_owners.items():
            if owner in owners and row.removed_until is None:
                row.due_at = row.noted_at + 3600 * 1_000_000

    def wake(self, task: TaskRow, now: int) -> list[Notice]:
        """Make a task due. A leased task is left alone, and its holder is notified instead."""
        if task.worker is not None:
            return [Notice(worker_topic(task.worker), str(task.run_id))]
        task.visible_at = min(task.visible_at, now)
        return [Notice(WORK_TOPIC, task.queue)]

    def wake_for(self, run_id: UUID, topic: str, now: int) -> list[Notice]:
        """Wake a run that awaits the topic; the holder of a leased run is notified in any case."""
        turn = self.turn(run_id)
        awaited = turn.worker is not None or topic in turn.awaiting
        awaited = awaited or (topic.startswith(ANY_UPDATE) and ANY_UPDATE in turn.awaiting)
        return self.wake(turn, now) if awaited else []

    def tell(self, run_id: UUID, event: Event) -> list[Notice]:
        """Append the end of a command to its run's log, and wake the run if it awaits an end."""
        self.append(run_id, event)
        return self.wake_for(run_id, ANY_END, event.at)

    def end(
        self,
        run_id: UUID,
        status: EndStatus,
        now: int,
        *,
        output: str | None = None,
        error: str | None = None,
    ) -> list[Notice]:
        """End a run: delete its tasks, and return the notices for its waiters."""
        run, turn = self.runs[run_id], self.turn(run_id)
        run.status, run.output, run.error = status, output, error
        run.started_at, run.completed_at = turn.started_at, now
        if run.new.retention_seconds is not None:
            run.delete_after = now + round(run.new.retention_seconds * 1_000_000)
        for place, _ in self.tasks_of_run(run_id):
            del self.tasks[place]
        payload = end_payload(run_id, status, output)
        notices = [Notice(topic, payload) for topic in sorted(self.waiters.pop(run_id, ()))]
        if run.singleton_key is not None and status != "continued":
            notices += self._free_singleton(now, run_id, run.new.name, run.singleton_key)
        return notices

    def _free_singleton(self, now: int, run_id: UUID, name: str, key: str) -> list[Notice]:
        """Free the key of a run that has ended, and let the next run with the key begin."""
        waiting = self.singleton_waits.pop((name, key), [])
        waiting = [each for each in waiting if self.is_running(each.run_id)]
        active = self.start_keys.get(("singleton", name, key))  # None: it has ended before
        notices: list[Notice] = []
        if active is not None and active.run_id == run_id and not waiting:
            del self.start_keys["singleton", name, key]
        elif active is not None and active.run_id == run_id:
            following, *waiting = waiting
            turn = self.turn(following.run_id)
            active.run_id = following.run_id
            turn.visible_at, turn.awaiting = max(now, following.visible_at), ()
            if following.timeout is not None:
                self.runs[following.run_id].deadline_at = turn.visible_at + following.timeout
            notices = [Notice(WORK_TOPIC, turn.queue)]
        if waiting:
            self.singleton_waits[name, key] = waiting
        return notices


def distinct(notices: list[Notice]) -> list[Notice]:
    """Return the notices, each once: a listener that looks once sees everything."""
    return list(dict.fromkeys(notices))


def _told_by_step(step: StepRow) -> str:
    """Return what completed a step: its output, of a map how many elements it has."""
    if step.output is None or step.initial_tasks == 0:
        return f'{{"tasks":{step.initial_tasks}}}'
    return f'{{"output":{step.output}}}'
