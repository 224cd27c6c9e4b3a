"""A store that keeps payloads encoded: it encodes what is written, and decodes what is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

import msgspec

from holdfast.codec import REFERENCE_MARK, is_sealed
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.payloads.details import open_event, seal_event
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.fetching import FetchingStore
from holdfast.payloads.outgoing import Outgoing, seal_run, spread
from holdfast.payloads.shelf import Put, Shelf
from holdfast.store.port import Store
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    Ahead,
    ClaimedTask,
    Claims,
    ClippedEvent,
    Committed,
    Delivered,
    Event,
    Finish,
    FlowFork,
    FlowForking,
    FlowStepState,
    Fork,
    Forking,
    Heartbeat,
    KeptMessage,
    Lease,
    LimitRule,
    ListedMessage,
    LoggedEvent,
    MessagePage,
    MinuteCounts,
    NewMessage,
    NewRun,
    NewSignal,
    Notice,
    OpenActivity,
    OpenStepTasks,
    Receipt,
    Receive,
    Received,
    RecordPage,
    Refusal,
    RunFilter,
    RunRecord,
    StartedRun,
    StepTaskEnd,
    StepTasksEnded,
    Taker,
    TurnCommit,
    Value,
    WorkerInfo,
)

V = TypeVar("V", bound=Value)
D = TypeVar("D", Lease, ActivityEnd)
E = TypeVar("E", Finish, ActivityEnd, StepTaskEnd)
F = TypeVar("F", Fork, FlowFork)


def with_payloads(store: Store, payloads: Payloads | None) -> Store:
    """Return a store that keeps payloads encoded; without codecs the store itself."""
    return store if payloads is None else cast("Store", PayloadStore(store, payloads))


def _named(signal: NewSignal) -> str:
    return f"{'update' if signal.update else 'signal'} {signal.name}"


_SEALED_SHOWS = 4096  # characters of details, which have the mark of what is sealed among them


class PayloadStore:
    """Passes every call on to a store, with payloads encoded, and answers with them decoded.

    What is null stays null. Methods without payloads are those of the store.
    """

    def __init__(self, store: Store, payloads: Payloads) -> None:
        self._store, self.payloads = store, payloads
        self._shelf: Shelf | None = None
        if payloads.large is not None:
            self._shelf = Shelf(store, payloads.large)
            self._store = cast("Store", FetchingStore(store, self._shelf))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Pass on what has no payloads."""
            return getattr(self._store, name)

    # Values

    def _outgoing(self) -> Outgoing:
        return Outgoing(self.payloads, self._shelf)

    @staticmethod
    def _sealed(outgoing: Outgoing, value: V, owner: UUID, **fields: str) -> V:
        """Return a value with these fields encoded, which errors name so; see `_sealed_error`.

        Raises PayloadError for one that is too large.
        """
        changes: dict[str, str] = {}
        for name, what in fields.items():
            text: str | None = getattr(value, name)
            if text is not None:
                changes[name] = outgoing.seal(text, what, owner)
        return msgspec.structs.replace(value, **changes) if changes else value

    def _sealed_error(self, value: E) -> E:
        """Return a value whose `error`, an encoded ErrorInfo, is encoded."""
        if value.error is None:
            return value
        return msgspec.structs.replace(value, error=self.payloads.seal_error(value.error))

    def _hidden(self, value: D) -> D:
        """Return a value whose details are encoded, of any size: a heartbeat says them."""
        if value.details is None:
            return value
        return msgspec.structs.replace(value, details=self.payloads.seal_details(value.details))

    def _sealed_results(self, outgoing: Outgoing, fork: F) -> F:
        owner = fork.new_run_id
        results = {
            key: outgoing.seal(text, f"the result of {key}", owner)
            for key, text in fork.results.items()
        }
        fork = msgspec.structs.replace(fork, results=results)
        of = f"the input of a fork of run {fork.run_id}"
        return self._sealed(outgoing, fork, owner, input=of)

    def _opened(self, value: V, *fields: str) -> V:
        changes: dict[str, str] = {}
        for name in fields:
            text: str | None = getattr(value, name)
            if text is not None and is_sealed(text):
                changes[name] = self.payloads.open(text)
        return msgspec.structs.replace(value, **changes) if changes else value

    def _open_events(self, events: Sequence[Event]) -> list[Event]:
        return [open_event(self.payloads, event) for event in events]

    def _open_record(self, run: RunRecord) -> RunRecord:
        return self._opened(run, "input", "output", "error")

    def _open_task(self, task: ClaimedTask) -> ClaimedTask:
        task = self._opened(task, "input", "payload", "heartbeat")
        if any(event.details is not None and is_sealed(event.details) for event in task.tail):
            task = msgspec.structs.replace(task, tail=self._open_events(task.tail))
        return task

    # Starts, and messages from outside

    async def sealed_runs(self, runs: Sequence[NewRun]) -> list[NewRun]:
        """Return runs to start whose inputs are encoded; those that are large are objects then."""
        outgoing = self._outgoing()
        sealed = [seal_run(outgoing, run) for run in runs]
        await outgoing.put()
        return sealed

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`."""
        return await self._store.start_runs(await self.sealed_runs(runs))

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs of flows; see `FlowStore.start_flows`."""
        return await self._store.start_flows(await self.sealed_runs(runs))

    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Send signals; see `ExternalStore.signal_runs`."""
        outgoing = self._outgoing()
        sealed = [
            self._sealed(
                outgoing,
                each,
                each.run_id,
                payload=f"the payload of {_named(each)} to run {each.run_id}",
            )
            for each in signals
        ]
        await outgoing.put()
        return await self._store.signal_runs(sealed)

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Fork a run; see `ForkStore.fork_run`."""
        outgoing = self._outgoing()
        sealed = self._sealed_results(outgoing, fork)
        await outgoing.put()
        return await self._store.fork_run(sealed)

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        """Fork a flow's run; see `FlowStore.fork_flow`."""
        outgoing = self._outgoing()
        sealed = self._sealed_results(outgoing, fork)
        await outgoing.put()
        return await self._store.fork_flow(sealed)

    async def set_limit(self, rule: LimitRule) -> bool:
        """Set a limit; see `LimitStore.set_limit`. Raises ConfigurationError for one with a key."""
        self.payloads.check_keys(f"{rule.scope} {rule.name}", rule.key)
        return await self._store.set_limit(rule)

    # What goes through message queues

    async def send_messages(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> tuple[list[int], list[Notice]]:
        """Send messages; see `MessageStore.send_messages`. Their payloads stay in the database."""
        return await self._store.send_messages(queue, self.sealed_messages(queue, messages))

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        """Acknowledge messages and start runs; see `MessageStore.ack_and_start`."""
        return await self._store.ack_and_start(receipts, await self.sealed_runs(runs))

    def sealed_messages(self, queue: str, messages: Sequence[NewMessage]) -> list[NewMessage]:
        """Return messages to send whose payloads are encoded.

        Raises PayloadError for one that is too large.
        """
        what = f"the payload of a message to queue {queue}"
        return [
            each
            if each.payload == "null"
            else msgspec.structs.replace(each, payload=self.payloads.seal(each.payload, what))
            for each in messages
        ]

    async def receive_messages(self, receive: Receive) -> Received:
        """Hand messages out; see `MessageStore.receive_messages`.

        Raises ConfigurationError for a condition on encoded payloads.
        """
        if receive.contains is not None and self.payloads.hides:
            raise ConfigurationError(
                f"queue {receive.queue}: a receive cannot have a condition: the payloads are "
                "encoded by a payload_codec, and the database cannot look into them"
            )
        received = await self._store.receive_messages(receive)
        if not received.deliveries:
            return received
        opened = [
            msgspec.structs.replace(
                each, messages=[self._opened(message, "payload") for message in each.messages]
            )
            for each in received.deliveries
        ]
        return msgspec.structs.replace(received, deliveries=opened)

    async def list_messages(
        self, queue: str, *, limit: int = 100, clip: int | None = None
    ) -> list[ListedMessage]:
        """Return messages; see `MessageStore.list_messages`. What is sealed is read whole."""
        shown = max(clip, _SEALED_SHOWS) if clip else clip
        found = await self._store.list_messages(queue, limit=limit, clip=shown)
        if shown and any(len(each.payload) == shown and is_sealed(each.payload) for each in found):
            found = await self._store.list_messages(queue, limit=limit)
        opened = [self._opened(each, "payload") for each in found]
        if clip is None:
            return opened
        return [msgspec.structs.replace(each, payload=each.payload[:clip]) for each in opened]

    async def message_page(
        self,
        queue: str,
        *,
        limit: int,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        """Return messages; see `MessageStore.message_page`. What is sealed is read whole."""
        shown = max(clip, _SEALED_SHOWS) if clip else clip
        read = partial(self._store.message_page, queue, limit=limit, cursor=cursor, origin=origin)
        page = await read(clip=shown)
        if shown and any(
            len(each.payload) == shown and is_sealed(each.payload) for each in page.messages
        ):
            page = await read(clip=None)
        opened = [self._opened(each, "payload") for each in page.messages]
        if clip is not None:
            opened = [msgspec.structs.replace(each, payload=each.payload[:clip]) for each in opened]
        return MessagePage(opened, page.cursor)

    async def list_kept(self, queue: str, *, limit: int = 100) -> list[KeptMessage]:
        """Return messages that are kept; see `MessageStore.list_kept`."""
        found = await self._store.list_kept(queue, limit=limit)
        return [self._opened(each, "payload") for each in found]

    # What workers do

    async def claim_tasks(self, *arguments: Any, **options: Any) -> Claims:
        """Claim; see `ClaimStore.claim_tasks`."""
        claims = await self._store.claim_tasks(*arguments, **options)
        return msgspec.structs.replace(
            claims, tasks=[self._open_task(task) for task in claims.tasks]
        )

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Commit; see `CommitStore.commit`. Parts with values that are too large are refused.

        A part is `busy` while an object that it refers to is not there yet.
        """
        outgoing, puts = self._outgoing(), dict[UUID, list[Put]]()
        sealed, refused = list[TurnCommit](), dict[UUID, Refusal]()
        for turn in turns:
            count = len(outgoing.puts)
            try:
                sealed.append(self._seal_turn(outgoing, turn))
            except PayloadError as error:
                refused[turn.run_id] = Refusal("invalid", [], str(error))
                del outgoing.puts[count:]
            if len(outgoing.puts) > count:
                puts[turn.run_id] = [put for put, _ in outgoing.puts[count:]]
        if outgoing.puts:
            missing = await outgoing.put_soon()
            busy = {run_id for run_id, its in puts.items() if not missing.isdisjoint(its)}
            refused.update({run_id: Refusal("busy", []) for run_id in busy})
            sealed = [turn for turn in sealed if turn.run_id not in busy]
        committed = await self._store.commit(worker_id, token, sealed)
        for run_id, each in committed.refused.items():
            refused[run_id] = msgspec.structs.replace(each, tail=self._open_events(each.tail))
        ahead = {
            run_id: Ahead(self._open_events(each.tail)) for run_id, each in committed.ahead.items()
        }
        return msgspec.structs.replace(committed, refused=refused, ahead=ahead)

    def _seal_turn(self, outgoing: Outgoing, turn: TurnCommit) -> TurnCommit:
        then = turn.then
        if isinstance(then, Finish) and then.status != "continued":
            then = self._sealed(outgoing, then, turn.run_id, output="its output")
            then = self._sealed_error(then)
        events = tuple(seal_event(outgoing, event, turn.run_id) for event in turn.events)
        return msgspec.structs.replace(turn, events=events, then=then)

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
        stats: Sequence[MinuteCounts] = (),
    ) -> Heartbeat:
        """Renew leases; see `WorkerStore.heartbeat`."""
        return await self._store.heartbeat(
            info,
            [self._hidden(lease) for lease in leases],
            lease_seconds=lease_seconds,
            interval_seconds=interval_seconds,
            stats=stats,
        )

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Report activities; see `ActivityStore.end_activities`.

        An end is `busy` while the object of its result is not there yet: to be reported again.
        """
        outgoing = self._outgoing()
        sealed = [
            self._sealed_error(
                self._sealed(
                    outgoing,
                    self._hidden(end),
                    end.run_id,
                    result=f"the result of activity {end.key}",
                )
            )
            for end in ends
        ]
        if worker_id is None:
            await outgoing.put()
        busy = await outgoing.missing([end.result for end in sealed])
        given = [end for end, is_busy in zip(sealed, busy, strict=True) if not is_busy]
        ended = await self._store.end_activities(worker_id, given)
        outcomes = spread(ended.outcomes, busy)
        return msgspec.structs.replace(ended, outcomes=outcomes)

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        """Report steps of flows; see `FlowStore.end_step_tasks`. An end may be `busy` as there."""
        outgoing = self._outgoing()
        sealed = [
            self._sealed_error(
                self._sealed(outgoing, end, end.run_id, output=f"the result of step {end.key}")
            )
            for end in ends
        ]
        busy = await outgoing.missing([end.output for end in sealed])
        given = [end for end, is_busy in zip(sealed, busy, strict=True) if not is_busy]
        ended = await self._store.end_step_tasks(worker_id, given, taker, patience=patience)
        return msgspec.structs.replace(
            ended,
            outcomes=spread(ended.outcomes, busy),
            tasks=[self._open_task(each) for each in ended.tasks],
        )

    # What is read

    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        """Return runs; see `QueryStore.get_runs`."""
        runs = await self._store.get_runs(run_ids, payloads=payloads)
        return {run_id: self._open_record(run) for run_id, run in runs.items()}

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """List runs; see `QueryStore.list_runs`. Raises ConfigurationError for `input_contains`."""
        if where.input_contains is not None and self.payloads.hides:
            raise ConfigurationError(
                f"runs cannot be listed by input_contains: their inputs {self.payloads.hiding}, "
                "and the database cannot look into them. Start runs with tags, and list by these"
            )
        page = await self._store.list_runs(where)
        return msgspec.structs.replace(page, runs=[self._open_record(run) for run in page.runs])

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        """Read logs; see `QueryStore.read_events`."""
        logs = await self._store.read_events(ranges, patience=patience)
        return {run_id: self._open_events(events) for run_id, events in logs.items()}

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        """Read a page of a log; see `QueryStore.read_log`. What is sealed is read whole."""
        shown = max(clip, _SEALED_SHOWS)
        found = await self._store.read_log(run_id, since, limit=limit, clip=shown)
        return [await self._whole(run_id, each, shown, clip) for each in found]

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        """Read the next events; see `QueryStore.read_tails`. What is sealed is read whole."""
        shown = max(clip, _SEALED_SHOWS)
        tails = await self._store.read_tails(ranges, limit=limit, clip=shown, most_bytes=most_bytes)
        return [
            [await self._whole(run_id, each, shown, clip) for each in tail]
            for (run_id, _), tail in zip(ranges, tails, strict=True)
        ]

    async def _whole(
        self, run_id: UUID, entry: ClippedEvent, shown: int, clip: int
    ) -> ClippedEvent:
        """Return an entry opened and cut; one that is sealed and was cut is read again, whole."""
        text = entry.event.details or ""
        if len(text) == shown and is_sealed(text):
            [entry] = await self._store.read_log(run_id, entry.idx, limit=1, clip=entry.size)
        return self._open_clipped(entry, clip)

    def _open_clipped(self, entry: ClippedEvent, clip: int) -> ClippedEvent:
        opened = open_event(self.payloads, entry.event)
        if opened is entry.event:
            cut = None if opened.details is None else opened.details[:clip]
            return msgspec.structs.replace(
                entry, event=msgspec.structs.replace(opened, details=cut)
            )
        return ClippedEvent.of(entry.idx, opened, clip)

    async def recent_events(self, *, since: int, limit: int = 1000) -> list[LoggedEvent]:
        """Read the newest entries; see `QueryStore.recent_events`."""
        found = await self._store.recent_events(since=since, limit=limit)
        return [
            LoggedEvent(each.run_id, each.idx, open_event(self.payloads, each.event))
            for each in found
        ]

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        """Read the newest entries; see `QueryStore.recent_log`. What is sealed is read whole."""
        shown = max(clip, _SEALED_SHOWS)
        found = await self._store.recent_log(since=since, limit=limit, clip=shown)
        return [(run_id, await self._whole(run_id, each, shown, clip)) for run_id, each in found]

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        """Return values of runs; see `QueryStore.get_values`."""
        return {
            run_id: {name: self.payloads.open(text) for name, text in values.items()}
            for run_id, values in (await self._store.get_values(run_ids)).items()
        }

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        """Return an update's answer; see `QueryStore.find_reply`."""
        found = await self._store.find_reply(run_id, update_id)
        return None if found is None else open_event(self.payloads, found)

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        """Return open activities; see `ActivityStore.list_activities`."""
        found = await self._store.list_activities(run_id, limit=limit)
        return [self._opened(each, "heartbeat") for each in found]

    async def flow_steps(
        self, run_ids: Sequence[UUID], *, outputs: bool = True
    ) -> dict[UUID, list[FlowStepState]]:
        """Return steps of flows; see `FlowStore.flow_steps`."""
        found = await self._store.flow_steps(run_ids, outputs=outputs)
        return {
            run_id: [self._opened(step, "output", "error") for step in steps]
            for run_id, steps in found.items()
        }

    async def open_step_tasks(self, run_id: UUID) -> list[OpenStepTasks]:
        """Return open tasks of a flow's run; see `FlowStore.open_step_tasks`."""
        found = await self._store.open_step_tasks(run_id)
        return [self._opened(each, "error") for each in found]

    # What is told

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Return the runs that have ended; see `ListenStore.wait_for_end`."""
        runs = await self._store.wait_for_end(topic, run_ids)
        return {run_id: self._open_record(run) for run_id, run in runs.items()}

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Listen; see `ListenStore.listen`. The output of a run that ended is decoded."""

        def tell(payload: str) -> None:
            if is_sealed(payload):
                run_id, _, output = payload.partition(" ")
                is_outside = REFERENCE_MARK in output  # then the listener reads the run
                payload = run_id if is_outside else f"{run_id} {self.payloads.open(output)}"
            callback(payload)

        return await self._store.listen(topic, tell)
