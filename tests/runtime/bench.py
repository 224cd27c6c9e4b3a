"""A turn driven by hand: what the driver and the store do, one call at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar
from uuid import UUID

import msgspec

from holdfast.codec import describe
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.events import (
    ACTIVITY_COMPLETED,
    ACTIVITY_FAILED,
    APPROVAL_RESOLVED,
    CANCEL_REQUESTED,
    CHILD_COMPLETED,
    CHILD_FAILED,
    CHILD_STARTED,
    RESUMED,
    SIGNAL_RECEIVED,
    WORKER_LOST,
    WORKFLOW_STARTED,
    can_wait,
)
from holdfast.runtime.code.steps import Call
from holdfast.runtime.log.virtual_log import Tells
from holdfast.runtime.turn.turn import Effects, RunInfo, State, Turn
from holdfast.types import Event, Finish, Notice, Suspend, TurnCommit

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
RUN_ID = UUID("0198c0de-0000-7000-8000-123456789abc")

Code = Callable[..., Coroutine[Any, Any, Any]]


@Step
def work(item: int) -> int:
    raise AssertionError("the test gives the results")


class Bench:
    """One run's log, its clock, and the turn that works on it now."""

    made: ClassVar[list[Turn]] = []

    def __init__(
        self,
        code: Code,
        *,
        given: object = None,
        strict: bool = False,
        parent: UUID | None = None,
        registry: Registry | None = None,
        tells: Tells = "which",
    ) -> None:
        self.tells: Tells = tells
        self.code, self.strict, self.parent, self.registry = code, strict, parent, registry
        self.run_id, self.careful = RUN_ID, True
        self.now = START
        self.lease = 0
        self.log = [Event(WORKFLOW_STARTED, None, json.dumps(given), START)]
        self.started: list[Call] = []
        self.attempts: list[tuple[str, int]] = []
        self.cancelled: list[str] = []
        self.last: TurnCommit | None = None
        self.commit_due: TurnCommit | None = None
        self.problems: list[str] = []
        self.notices: list[Notice] = []
        self.claim()

    def claim(self, code: Code | None = None) -> Turn:
        """Begin a new turn by replay, as a worker without the run in its cache would."""
        self.code = code or self.code
        self.lease += 1
        info = RunInfo(self.run_id, "flow", 1, 1, START, self.parent, tells=self.tells)
        self.started, self.attempts, self.cancelled = [], [], []
        workflow: Workflow[Any, Any] = Workflow(self.code, name="flow", registry=self.registry)
        self.turn = Turn(
            workflow,
            info,
            self.lease,
            self.log,
            self.clock,
            strict=self.strict,
            careful=self.careful,
        )
        self.made.append(self.turn)
        self.commit_due, self.problems = None, []
        self.take(self.turn.begin())
        return self.turn

    def crash(self, code: Code | None = None) -> Turn:
        """Lose the worker: its lease is taken from it in the log, and another claims."""
        self.turn.abandon()
        self.lose_lease()
        return self.claim(code)

    def lose_lease(self, task_key: str = "") -> None:
        text = json.dumps({"task_key": task_key, "lease_no": self.lease, "worker": "w"})
        self.log.append(Event(WORKER_LOST, None, text, self.now))

    def clock(self) -> int:
        return self.now

    def take(self, effects: Effects) -> None:
        """Take the turn's effects, as the driver does after every input."""
        self.effects = effects
        self.notices += effects.notices
        self.problems += effects.problems
        self.started += effects.start
        self.attempts += [(call.key, call.attempt) for call in effects.start]
        self.cancelled += effects.cancel
        if effects.commit is not None:
            assert self.commit_due is None, "one commit at a time"
            self.commit_due = effects.commit

    # What the turn has said last

    @property
    def suspended(self) -> bool:
        """Whether the run is suspended, or is once the commit is durable."""
        return self.effects.state in (State.SUSPENDING, State.SUSPENDED)

    @property
    def ended(self) -> str | None:
        """How the run has ended."""
        return self.effects.end.status if self.effects.state is State.ENDED else None

    @property
    def stuck(self) -> Exception | None:
        """Why the run is stuck."""
        return self.effects.error if self.effects.state is State.STUCK else None

    @property
    def lost(self) -> bool:
        return self.effects.state is State.LOST

    @property
    def needs_log(self) -> bool:
        return self.effects.state is State.NEEDS_LOG

    @property
    def starts(self) -> list[str]:
        """The keys of the steps started in this turn."""
        return [call.key for call in self.started]

    # The store's answers

    def commit(self) -> TurnCommit:
        """Write the commit that the turn wants, and answer it."""
        part = self.commit_due
        assert part is not None, "there is nothing to commit"
        ahead = self.log[part.expected :]
        assert not ahead or (part.after_others and all(map(can_wait, ahead)))
        self.last, self.commit_due = part, None
        self.log += part.events
        self.take(self.turn.committed(ahead))
        return part

    def unrecorded(self) -> Sequence[Event]:
        """Return ends of attempts that the log may not have."""
        part = self.turn.unrecorded(self.turn.lease_no)
        return () if part is None else part.events

    def refuse(self, *tail: Event) -> None:
        """Let others be first, and answer the commit with what they wrote."""
        assert self.commit_due is not None
        self.commit_due = None
        self.log += tail
        self.take(self.turn.conflict(tail))

    def settle(self) -> TurnCommit | None:
        """Commit until there is nothing more to commit; return the last part."""
        while self.commit_due is not None:
            self.commit()
        return self.last

    def resume(self, *tail: Event) -> None:
        """Wake the suspended turn, with what others have written."""
        self.log += tail
        self.lease += 1
        self.take(self.turn.resume(self.lease, self.log[self.turn.durable_length :]))

    def news(self, *tail: Event) -> None:
        """Others write while the run is leased, and the worker is told."""
        first = len(self.log)
        self.log += tail
        self.take(self.turn.take_unread(tail, first))

    # What happens

    def complete(self, key: str, result: object = 0) -> None:
        self.take(self.turn.step_completed(key, json.dumps(result), self.now))

    def fail(
        self, key: str, error: Exception, *, retry_in: float | None = None, late: bool = False
    ) -> None:
        retry_at = None if retry_in is None else self.now + int(retry_in * SECOND)
        self.take(self.turn.step_failed(key, describe(error), self.now, retry_at, late))

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.take(self.turn.wake())

    def signal(self, name: str, payload: object = None) -> Event:
        text = json.dumps({"signal_name": name, "input": payload})
        return Event(SIGNAL_RECEIVED, None, text, self.now)

    def interruption(self) -> Event:
        """Return what says nothing to the code, but cannot wait: a conflict with it replays."""
        return self.plain(RESUMED)

    def activity_completed(self, key: str, result: object, name: str | None = None) -> Event:
        done = {"activity_name": name or _leaf(key), "result": result, "attempt": 1}
        return Event(ACTIVITY_COMPLETED, key, json.dumps(done), self.now)

    def activity_failed(self, key: str, error: Exception, *, timed_out: bool = False) -> Event:
        failed = {
            "activity_name": _leaf(key),
            "error": msgspec.to_builtins(describe(error)),
            "attempt": 1,
            "timed_out": timed_out,
        }
        return Event(ACTIVITY_FAILED, key, json.dumps(failed), self.now)

    def child_completed(self, key: str, output: object) -> Event:
        done = {"child_run_id": str(self.child_id(key)), "output": output}
        return Event(CHILD_COMPLETED, key, json.dumps(done), self.now)

    def child_failed(self, key: str, status: str, error: Exception | None = None) -> Event:
        failed = {
            "child_run_id": str(self.child_id(key)),
            "status": status,
            "error": None if error is None else msgspec.to_builtins(describe(error)),
        }
        return Event(CHILD_FAILED, key, json.dumps(failed), self.now)

    def child_id(self, key: str) -> UUID:
        """The run that a call has started."""
        orders = [event for event in self.of_type(CHILD_STARTED) if event.key == key]
        return UUID(json.loads(orders[0].details or "")["child_run_id"])

    def resolved(self, key: str, *, approved: bool = True, **given: object) -> Event:
        decision = {"approved": approved, "decision_id": "d", "by": None, **given}
        return Event(APPROVAL_RESOLVED, key, json.dumps(decision), self.now)

    def update(
        self, name: str, payload: object, update_id: str = "u", reply_to: str | None = "client/1"
    ) -> Event:
        received = {"signal_name": name, "input": payload, "update": True, "reply_to": reply_to}
        return Event(SIGNAL_RECEIVED, update_id, json.dumps(received), self.now)

    def plain(self, kind: str, text: str | None = None) -> Event:
        """An event without a key that others write."""
        return Event(kind, None, text, self.now)

    def cancel_request(self) -> Event:
        return Event(CANCEL_REQUESTED, None, '{"reason":null}', self.now)

    # What came of it

    def details_of(self, kind: str) -> list[Any]:
        """The details of all events of a type, as plain objects."""
        return [json.loads(event.details or "null") for event in self.of_type(kind)]

    @property
    def output(self) -> Any:
        """The run's output."""
        assert self.last is not None
        assert isinstance(self.last.then, Finish), self.last
        assert self.last.then.status == "completed", self.last.then.error
        return json.loads(self.last.then.output or "null")

    @property
    def error(self) -> Any:
        """The run's error, as a plain object."""
        assert self.last is not None
        assert isinstance(self.last.then, Finish)
        return json.loads(self.last.then.error or "null")

    @property
    def suspend(self) -> Suspend:
        """What the run was suspended for."""
        assert self.last is not None
        assert isinstance(self.last.then, Suspend)
        return self.last.then

    def types(self) -> list[str]:
        return [event.type for event in self.log]

    def of_type(self, kind: str) -> Sequence[Event]:
        return [event for event in self.log if event.type == kind]


def _leaf(key: str) -> str:
    return key.rpartition("/")[2].partition("#")[0]
