"""What must be true: while calls are made, and of all logs at the end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from holdfast import events
from holdfast.store.memory.tables import Tables
from holdfast.types import Event
from holdfast.worker.attempts import Execution
from tests.simulation.programs import SCARCE

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[UUID, str]

_WATCHED: Final = {
    "claim_tasks",
    "commit",
    "end_activities",
    "end_step_tasks",
    "receive_messages",
    "ack_messages",
}
_ENDS: Final = (
    events.STEP_ENDS
    | events.COMMAND_ENDS
    | {events.TIMER_FIRED, "FlowStepCompleted", "FlowStepFailed"}
)


class Violation(AssertionError):
    """Something that must never be. `rule` is which of the rules was broken."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)
        self.rule, self.text = rule, text

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass
class _Lease:
    worker: str | None
    number: int
    until: int


class Model:
    """Looks at what the engine does, and remembers what has happened outside of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tokens: dict[str, Place] = {}  # what effects return, and of which calls they are
        self._calls: dict[tuple[Place, int], str] = {}
        self.broken: Violation | None = None
        self._launches: set[tuple[UUID, str, int, int]] = set()
        self._lengths: dict[tuple[UUID, str, int], int] = {}  # of the log, at each claim
        self.consumed: defaultdict[int, set[int]] = defaultdict(set)  # payload: ids of messages
        self._delivered: dict[UUID, list[int]] = {}
        self._acked = Counter[int]()

    @property
    def tables(self) -> Tables:
        """The tables of the store."""
        return self._world.store._tables

    def violate(self, rule: str, text: str) -> None:
        """Say that a rule was broken. The first one counts."""
        if self.broken is None:
            self.broken = Violation(rule, f"{text} (at {self._world.loop.time():.3f} s)")
            self._world.over.set()

    # While it runs

    def launched(self, execution: Execution[Any]) -> None:
        """Hear that an attempt begins on a worker."""
        run_id, key = (getattr(execution.context, name, None) for name in ("run_id", "key"))
        if run_id is None or key is None:
            return
        place, attempt = (run_id, key), execution.context.attempt
        lease = execution.lease_no
        if (*place, attempt, lease) in self._launches:
            self.violate("launched twice", f"{key} of {run_id}, attempt {attempt}, lease {lease}")
        self._launches.add((*place, attempt, lease))
        known = self._lengths.get((run_id, "" if execution.kind == "step" else key, lease))
        if known is None:
            known = self._lengths.get((run_id, key, lease))
        log = self.tables.logs.get(run_id, [])
        ended = [i for i, row in enumerate(log) if row.event.key == key and row.event.type in _ENDS]
        if known is not None and ended and ended[0] < known:
            self.violate("recorded, and run again", f"{key} of {run_id} under lease {lease}")

    def done(self, token: str, place: Place, what: str, release: int) -> None:
        """Hear of an effect: the same call has the same one, whatever worker makes it.

        What another release began and did not record, nobody knows of.
        """
        self.tokens[token] = place
        before = self._calls.setdefault((place, release), what)
        if before != what:
            text = f"{place[1]} of {place[0]}: {before}, then {what}"
            self.violate("one key, two calls", text)

    def releases_of(self, run_id: UUID) -> set[int]:
        """Return the releases whose code had effects for a run."""
        return {release for (place, release) in self._calls if place[0] == run_id}

    def overtook(self, run_id: UUID) -> bool:
        """Return True if the older release went its way after the newer one recorded its patch.

        Code without the patch may be newer, too: nothing stops that. The newer one is stuck then.
        """
        keys = [row.event.key for row in self.tables.logs[run_id]]
        return "patch:more" in keys and ((run_id, "act#3"), 1) in self._calls

    def watching(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Watch:
        """Return what compares the tables before and after a call."""
        return Watch(self, name if name in _WATCHED else "", args)

    def granted(self, place: Place, number: int, before: _Lease | None, now: int) -> None:
        """Look at a lease that was given."""
        if before is not None and before.worker is not None and before.until > now:
            self.violate(
                "two leases", f"{place} was leased to {before.worker} until {before.until}"
            )
        self._lengths[(*place, number)] = len(self.tables.logs[place[0]])
        tasks = self.tables.tasks.values()
        leased = [each for each in tasks if each.worker is not None]
        if sum(each.name == "sim/scarce" for each in leased) > SCARCE:
            self.violate("limit exceeded", "scarce")
        begun = {
            task.run_id
            for task in tasks
            if task.name == "sim/alone" and task.lease_no and not task.key
        }
        if len(begun) > 1:
            self.violate("limit exceeded", "alone")

    def received(self, answer: Any, acks: Sequence[UUID]) -> None:
        """Look at what was handed out, and at what was acknowledged."""
        for delivery in answer.deliveries:
            self._delivered[delivery.delivery_id] = [each.message_id for each in delivery.messages]
        for delivery_id, ok in zip(acks, answer.acked, strict=True):
            if ok:
                self._ack(self._delivered[delivery_id])

    def acknowledged(self, receipts: Sequence[Any], answers: Sequence[bool]) -> None:
        """Look at what was acknowledged."""
        for receipt, ok in zip(receipts, answers, strict=True):
            if ok:
                ids = self._delivered[receipt.delivery_id]
                self._ack(ids if receipt.place is None else [ids[receipt.place - 1]])

    def _ack(self, ids: Sequence[int]) -> None:
        self._acked.update(ids)
        if twice := [each for each in ids if self._acked[each] > 1]:
            self.violate("acknowledged twice", f"message {twice[0]}")

    # At the end

    def check(self) -> None:
        """Look at all logs."""
        for run_id, rows in self.tables.logs.items():
            self._check_log(run_id, [row.event for row in rows])

    def _check_log(self, run_id: UUID, log: Sequence[Event]) -> None:
        name = f"{self.tables.runs[run_id].new.name} {run_id}"
        run = self.tables.runs[run_id]
        ends = Counter((each.type, each.key) for each in log if each.type in _ENDS)
        ends_of = Counter(key for _, key in ends.elements())
        if twice := [key for key, count in ends_of.items() if count > 1]:
            self.violate("recorded twice", f"{twice[0]} in the log of {name}")
        over = [i for i, each in enumerate(log) if each.type in events.TERMINAL]
        if over and over != [len(log) - 1]:
            self.violate("not the last entry", f"the end of {name}")
        if (run.status == "running") != (not over):
            self.violate("status and log differ", f"{name} is {run.status}")
        for event in log:
            if event.type in (events.STEP_COMPLETED, events.ACTIVITY_COMPLETED):
                result = json.loads(event.details or "{}").get("result")
                if self.tokens.get(result) != (run_id, event.key):
                    self.violate("mixed up", f"{event.key} of {name} has the result {result}")

    def recorded(self, run_id: UUID) -> list[str]:
        """Return the tokens that a run's log has, in its order."""
        return [
            json.loads(row.event.details or "{}")["result"]
            for row in self.tables.logs[run_id]
            if row.event.type in (events.STEP_COMPLETED, events.ACTIVITY_COMPLETED)
        ]


@dataclass
class Watch:
    """Compares the tables before and after one call."""

    model: Model
    name: str
    args: tuple[Any, ...]
    answer: Any = None
    _before: dict[Place, _Lease] = field(default_factory=dict)
    _lengths: dict[UUID, int] = field(default_factory=dict)

    def __enter__(self) -> Watch:
        if self.name and self.name not in ("receive_messages", "ack_messages"):
            tables = self.model.tables
            self._before = {
                place: _Lease(task.worker, task.lease_no, task.visible_at)
                for place, task in tables.tasks.items()
            }
            if self.name == "commit":
                logs = tables.logs
                self._lengths = {t.run_id: len(logs.get(t.run_id, ())) for t in self.args[2]}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None or not self.name:
            return
        model = self.model
        if self.name == "receive_messages":
            model.received(self.answer, self.args[0].acks)
        elif self.name == "ack_messages":
            model.acknowledged(self.args[0], self.answer[0])
        else:
            self._look_at_leases()
            if self.name == "commit":
                self._look_at_commit()
            elif self.name.startswith("end_"):
                self._look_at_ends()

    def _look_at_leases(self) -> None:
        model, now = self.model, self.model._world.store.time()
        for place, task in model.tables.tasks.items():
            before = self._before.get(place)
            if task.worker is not None and task.lease_no > (before.number if before else 0):
                model.granted(place, task.lease_no, before, now)

    def _look_at_commit(self) -> None:
        worker_id, token, turns = self.args
        for turn in turns:
            written = self.model.tables.logs.get(turn.run_id, [])[self._lengths[turn.run_id] :]
            if all(row.token != token for row in written):
                continue
            held = self._before.get((turn.run_id, ""))
            if held is None or (held.worker, held.number) != (worker_id, turn.lease_no):
                self.model.violate(
                    "commit without a lease", f"{turn.run_id}: {worker_id} with {turn.lease_no}"
                )

    def _look_at_ends(self) -> None:
        worker_id, ends = self.args[:2]
        for end, outcome in zip(ends, self.answer.outcomes, strict=True):
            held = self._before.get((end.run_id, end.key))
            if outcome in ("recorded", "retried") and (
                held is None or (held.worker, held.number) != (worker_id, end.lease_no)
            ):
                self.model.violate("end without a lease", f"{end.key} of {end.run_id}")
