"""A state machine of what passes between runs, activities and people.

It is apart from that of single runs so that each does enough of what it is for.
"""

from __future__ import annotations

import json
from typing import TypeAlias
from uuid import UUID

import hypothesis.strategies as st
from agreement import Held
from contract.commands import FAILURE, activity, approval, cancelled_activity, child, command
from drawn import HANDLERS, QUEUES, payloads, pick, picks, rarely, workers
from hypothesis.stateful import initialize, precondition, rule
from machine_people import People

from holdfast.events import COMMANDS
from holdfast.types import (
    ANY_END,
    ActivityEnd,
    ClaimedTask,
    Event,
    Finish,
    Lease,
    NewRun,
    Release,
    Suspend,
    TurnCommit,
)

Part: TypeAlias = tuple[ClaimedTask, list[Event], Suspend | Finish | None]

SECOND = 1_000_000
RESIZE = "resize@0"
COMMAND_KINDS = (
    "activity",
    "activity",
    "hasty activity",
    "patient activity",
    "cancelled activity",
    "terminate",
    "cancel",
    "abandon",
    "another's child",
    "cancelled child",
    "signal",
    "approval",
    "withdrawn approval",
)


class CommandsAgree(People):
    """Commits commands and ends activities on both stores, while people do what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: list[Held] = []  # every lease of an activity that ever was
        self.calls_made = 0

    @initialize()
    def begin(self) -> None:
        """Start runs that have commands of each kind: there is something to do."""
        for delay in (0.0, 0.0, 5.0):
            self.start(delay)
        self.claim("ann", True, 40.0, 0)
        self.command(0, ["activity", "abandon", "approval"], 1, "await", 0)
        self.command(1, ["hasty activity", "terminate", "cancel"], 0, "await", 0)
        self.claim("bob", True, 4.0, 0)

    @rule(delay=st.sampled_from([0.0, 0.0, 5.0]))
    def start(self, delay: float) -> None:
        """Start a run."""
        number = len(self.ids)
        run = NewRun(
            run_id=self.new_id(),
            name="order",
            queue=QUEUES[number % 2],
            delay_seconds=delay,
            timeout_seconds=50.0 + number if number % 4 == 0 else None,
            waiter="client/1",
        )
        self.do(lambda store: store.start_runs([run]))

    # What runs do

    @precondition(lambda self: self.held)
    @rule(
        number=pick,
        kinds=st.lists(st.sampled_from(COMMAND_KINDS), min_size=1, max_size=3, unique=True),
        other=pick,
        then=st.sampled_from(["continue", "continue", "await", "await", "await", "fail"]),
        off=st.sampled_from([0] * 8 + [-1]),
    )
    def command(self, number: int, kinds: list[str], other: int, then: str, off: int) -> None:
        """Commit commands of one run; the last of them may come with its end."""
        self.hold_something()
        [(worker, task)] = self.leases([number])
        if then == "fail":  # what it would say to its parent beside its end has no fixed order
            kinds = [kind for kind in kinds if kind != "signal"]
        events = [self.drawn_command(kind, task.run_id, other) for kind in kinds]
        finish: Suspend | Finish | None = None
        if then == "await":
            finish = Suspend(awaiting=(ANY_END, "packed"))
        elif then == "fail":
            events.append(Event("WorkflowFailed", None, None, 0))
            finish = Finish("failed", error='{"kind":"x.Y"}')
        self.commit_commands(worker, [(task, events, finish)], off)

    @precondition(lambda self: self.held)
    @rule(
        numbers=picks,
        end=st.sampled_from(["complete", "checkpoint", "suspend", "suspend", "continue"]),
        payload=payloads,
    )
    def end_turns(self, numbers: list[int], end: str, payload: str) -> None:
        """Suspend runs or end them, several in one commit."""
        self.hold_something()
        held = self.leases(numbers)
        parts: list[Part] = []
        for _, task in held:
            if end == "complete":
                last = Event("WorkflowCompleted", None, None, 0)
                parts.append((task, [last], Finish("completed", payload)))
            elif end == "continue":
                parts.append(self.continued(task, payload))
            else:
                answer = Event("UpdateCompleted", "s-1", '{"update_name":"b"}', 0)
                events = [answer, drawn_step(self.calls_made)]
                then = Suspend(awaiting=(ANY_END, "update:packed")) if end == "suspend" else None
                parts.append((task, events, then))
        self.commit_commands(held[0][0], parts, 0)

    def hold_something(self) -> None:
        """Claim what there is, where no run is leased."""
        rows = self.model_tables.tasks.values()
        if not any(row.kind == "workflow" and row.worker is not None for row in rows):
            self.claim("cy", True, 40.0, 0)

    def continued(self, task: ClaimedTask, payload: str) -> Part:
        """Return the part of a run that another takes the place of."""
        new_id = str(self.new_id())
        signals = [
            {"signal_name": "packed", "input": json.loads(payload), "key": "s-1"},
            {"signal_name": "b", "input": 1, "key": "u", "update": True, "reply_to": "client/1"},
        ]
        event = command(
            "WorkflowContinuedAsNew",
            "",
            run_id=new_id,
            input=json.loads(payload),
            version=1 + len(self.ids) % 2,
            signals=signals if len(self.ids) % 3 else [],
        )
        return task, [event], Finish("continued", output=json.dumps({"run_id": new_id}))

    def drawn_command(self, kind: str, run_id: UUID, other: int) -> Event:
        """Return an order of a kind; those that need something to be there may miss it."""
        self.calls_made += 1
        key, queue = f"{kind} {self.calls_made}", QUEUES[other % 2]
        match kind:
            case "activity":
                return activity(key, queue=queue, priority=other % 5)
            case "hasty activity":
                limits = {"start_to_close": 3.0, "schedule_to_close": 6.0 + self.calls_made / 1e3}
                retry = {"attempts": None, "backoff": "linear", "base": 0.5}
                return activity(key, queue=queue, retry=retry, **limits)
            case "patient activity":
                return activity(key, queue=queue, on_cancel="wait")
            case "cancelled activity":
                return cancelled_activity(self.task_of(run_id, "activity", other))
            case "terminate" | "cancel" | "abandon":
                timeout = 10.0 + self.calls_made / 1e3 if other % 3 == 0 else None
                return child(self.new_id(), key, parent_close=kind, queue=queue, timeout=timeout)
            case "another's child":
                return child(self.chosen([other])[0], key)
            case "cancelled child":
                children = self.model_tables.children[run_id] or [UUID(int=0)]
                asked = str(children[other % len(children)])
                return command("ChildCancelRequested", key, child_run_id=asked, reason="late")
            case "signal":
                [to] = self.chosen([other])
                said = {"signal_name": "packed", "input": {"n": 1e300}, "signal_id": key}
                return command("SignalSent", key, run_id=str(to), **said)
            case "approval":
                return approval(key)
            case _:
                return command("ApprovalWithdrawn", self.task_of(run_id, "approval", other))

    def task_of(self, run_id: UUID, kind: str, number: int) -> str:
        """Return the key of a task of a run, or one that it does not have."""
        tasks = [t for _, t in self.model_tables.tasks_of_run(run_id) if t.kind == kind]
        return tasks[number % len(tasks)].key if tasks else "none"

    def commit_commands(self, worker: str, parts: list[Part], off: int) -> None:
        """Commit parts of runs, which may not hold their leases any more."""
        now = self.model.time()
        turns: list[TurnCommit] = []
        for task, events, then in parts:
            log = self.wait(self.model.read_events([(task.run_id, 0)]))[task.run_id]
            targets = {UUID(text) for text in map(target_of, events) if text is not None}
            turn = TurnCommit(
                run_id=task.run_id,
                lease_no=task.lease_no,
                expected=max(len(log) + off, 1),
                events=[Event(event.type, event.key, event.details, now) for event in events],
                then=then,
                has_commands=any(event.type in COMMANDS for event in events),
                touches=(*targets, *self.parents(task.run_id)),
                has_children=bool(self.model_tables.children[task.run_id])
                or any(event.type == "ChildStarted" for event in events),
                after_others=off < 0 and (then is None or isinstance(then, Finish)),
            )
            turns.append(turn)
        call = (worker, UUID(int=len(self.calls)), turns)
        self.calls.append(call)
        self.do(lambda store: store.commit(*call))

    @precondition(lambda self: self.calls)
    @rule(number=pick)
    def commit_again(self, number: int) -> None:
        """Repeat a commit, whatever has happened since."""
        call = self.calls[-1 - number % len(self.calls)]
        self.do(lambda store: store.commit(*call))

    # Leases

    @rule(
        worker=workers,
        turns=st.sampled_from([True, True, False]),
        lease=st.sampled_from([4.0, 40.0]),
        late=st.sampled_from([0, 0, 1, 4]),
    )
    def claim(self, worker: str, turns: bool, lease: float, late: float) -> None:
        """Claim activities, most often with turns."""
        self.move(late)
        handlers = (RESIZE, *HANDLERS) if turns else (RESIZE,)
        claims = self.do(
            lambda store: store.claim_tasks(
                worker, QUEUES, handlers, 100, lease_seconds=lease, max_attempts=3
            )
        )
        self.attempts += [(worker, task) for task in claims.tasks if task.kind == "activity"]
        self.held += [(worker, task) for task in claims.tasks if task.kind == "workflow"]

    def standing_attempts(self) -> list[Held]:
        """Return the attempts that are under way."""
        return [
            (worker, task)
            for worker, task in self.attempts
            if (row := self.model_tables.tasks.get((task.run_id, task.key))) is not None
            and (row.worker, row.lease_no) == (worker, task.lease_no)
        ]

    def some_attempts(self, numbers: list[int]) -> list[Held]:
        """Return the attempts picked, one for an activity; 6 and 7 may be stale.

        Where none is under way, what there is is claimed before.
        """
        if not self.standing_attempts():
            self.claim("cy", True, 40.0, 0)
        standing = self.standing_attempts()
        sources = [standing if standing and number < 6 else self.attempts for number in numbers]
        pairs = zip(sources, numbers, strict=True)
        picked = [source[-1 - number % len(source)] for source, number in pairs]
        return list({(task.run_id, task.key): (worker, task) for worker, task in picked}.values())

    @precondition(lambda self: self.attempts)
    @rule(
        numbers=picks,
        end=st.sampled_from(["result", "result", "error", "error", "final", "defer"]),
        outside=st.sampled_from([False, False, True]),
        payload=payloads,
        dated=st.booleans(),
        twice=rarely,
    )
    def end_activities(
        self, numbers: list[int], end: str, outside: bool, payload: str, dated: bool, twice: bool
    ) -> None:
        """End attempts, which may be over; also from outside."""
        attempts = self.some_attempts(numbers)
        ends = [
            ActivityEnd(
                run_id=task.run_id,
                key=task.key,
                lease_no=task.lease_no,
                result=payload if end == "result" else None,
                error=FAILURE if end in ("error", "final") else None,
                retryable=end == "error",
                timed_out=dated,
                started_at=self.model.time() - SECOND if dated else None,
                details=payload if dated else None,
            )
            for _, task in attempts
        ]
        worker = None if outside and end != "defer" else attempts[0][0]
        self.do(lambda store: store.end_activities(worker, ends * (1 + twice)))

    @precondition(lambda self: self.attempts)
    @rule(numbers=picks, payload=payloads, release=st.booleans())
    def renew_or_release_activities(self, numbers: list[int], payload: str, release: bool) -> None:
        """Say that attempts are under way, or give them back."""
        attempts = self.some_attempts(numbers)
        worker = attempts[0][0]
        places = [(task.run_id, task.key, task.lease_no) for _, task in attempts]
        if release:
            releases = [Release(*place) for place in places]
            self.do(lambda store: store.release_tasks(worker, releases))
            return
        leases = [Lease(*place, 0, payload) for place in places]
        info = self.info(worker)
        self.do(lambda store: store.heartbeat(info, leases, lease_seconds=4.0))

    @rule(seconds=st.sampled_from([1, 1, 4, 4, 10, 41]), gone=rarely)
    def pass_time(self, seconds: float, gone: bool) -> None:
        """Let time pass, and fail what is past its own."""
        self.move(seconds)
        self.do(lambda store: store.time_out_activities())
        self.do(lambda store: store.time_out_runs())
        if gone:
            self.do(lambda store: store.reap_workers(worker_ids=["bob"]))


def drawn_step(number: int) -> Event:
    """Return the end of a step, good or bad."""
    kind = ("StepCompleted", "StepFailed", "StepRetryScheduled")[number % 3]
    return Event(kind, "charge", '{"name":"charge","result":1}', 0)


def target_of(event: Event) -> str | None:
    """Return the run that an order writes to, if it is another's."""
    if event.type not in ("SignalSent", "ChildCancelRequested"):
        return None
    said = json.loads(event.details or "{}")
    return said.get("run_id") or said.get("child_run_id")
