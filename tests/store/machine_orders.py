"""What runs order, and what others do about it: the part of the state machine beyond one worker."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
from agreement import Agreement, Held, plain
from contract.ordering import FAILURE, activity, approval, cancelled_activity, child, order
from drawn import HANDLERS, QUEUES, payloads, pick, picks, rarely, workers
from hypothesis.stateful import precondition, rule

from holdfast.store.port import Store
from holdfast.types import (
    ANY_END,
    ActivityEnd,
    Decision,
    Event,
    Finish,
    Fork,
    Lease,
    NewSignal,
    Release,
    Scope,
    Suspend,
    TurnCommit,
)

SECOND = 1_000_000
RESIZE = "resize@0"
ORDER_KINDS = (
    "activity",
    "activity",
    "hasty activity",
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


class Orders(Agreement):
    """Commits orders, ends activities, decides approvals, pauses and forks, on both stores."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: list[Held] = []  # every lease of an activity that ever was
        self.calls_made = 0

    # What runs order

    @precondition(lambda self: self.held)
    @rule(
        number=pick,
        kinds=st.lists(st.sampled_from(ORDER_KINDS), min_size=1, max_size=3, unique=True),
        other=pick,
        then=st.sampled_from(["go on", "await", "await", "await", "fail"]),
        off=st.sampled_from([0] * 8 + [-1]),
    )
    def order(self, number: int, kinds: list[str], other: int, then: str, off: int) -> None:
        """Commit orders of one run; the last of them may come with its end."""
        [(worker, task)] = self.leases([number])
        run_id = task.run_id
        if then == "fail":  # what it would say to its parent beside its end has no order
            kinds = [kind for kind in kinds if kind != "signal"]
        events = [self.drawn_order(kind, run_id, other) for kind in kinds]
        touches = {UUID(str(target_of(event))) for event in events if target_of(event)}
        finish: Suspend | Finish | None = None
        if then == "await":
            finish = Suspend(awaiting=(ANY_END, "packed"))
        elif then == "fail":
            events.append(Event("WorkflowFailed", None, None, 0))
            finish = Finish("failed", error='{"kind":"x.Y"}')
        self.commit_orders(worker, task.run_id, task.lease_no, events, finish, off, touches)

    @precondition(lambda self: self.held)
    @rule(number=pick, payload=payloads, version=st.sampled_from([1, 2]), carried=st.booleans())
    def continue_as_new(self, number: int, payload: str, version: int, carried: bool) -> None:
        """End a run so that another takes its place."""
        [(worker, task)] = self.leases([number])
        new_id = str(self.new_id())
        signals = [
            {"signal_name": "packed", "input": json.loads(payload), "key": "s-1"},
            {"signal_name": "b", "input": 1, "key": "u", "update": True, "reply_to": "client/1"},
        ]
        event = order(
            "WorkflowContinuedAsNew",
            "",
            run_id=new_id,
            input=json.loads(payload),
            version=version,
            signals=signals if carried else [],
        )
        finish = Finish("continued", output=json.dumps({"run_id": new_id}))
        self.commit_orders(worker, task.run_id, task.lease_no, [event], finish, 0, set())

    def drawn_order(self, kind: str, run_id: UUID, other: int) -> Event:
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
                return order("ChildCancelRequested", key, child_run_id=asked, reason="late")
            case "signal":
                [to] = self.chosen([other])
                said = {"signal_name": "packed", "input": {"n": 1e300}, "signal_id": key}
                return order("SignalSent", key, run_id=str(to), **said)
            case "approval":
                return approval(key)
            case _:
                return order("ApprovalWithdrawn", self.task_of(run_id, "approval", other))

    def task_of(self, run_id: UUID, kind: str, number: int) -> str:
        """Return the key of a task of a run, or one that it does not have."""
        tasks = [t for _, t in self.model_tables.tasks_of_run(run_id) if t.kind == kind]
        return tasks[number % len(tasks)].key if tasks else "none"

    def new_id(self) -> UUID:
        """Return the id of the next run, which may come to nothing."""
        self.ids.append(UUID(int=len(self.ids) + 1))
        return self.ids[-1]

    def commit_orders(
        self,
        worker: str,
        run_id: UUID,
        lease_no: int,
        events: list[Event],
        then: Suspend | Finish | None,
        off: int,
        touches: set[UUID],
    ) -> None:
        """Commit orders of a run, which may not hold its lease any more."""
        log, now = self.wait(self.model.read_events([(run_id, 0)]))[run_id], self.model.time()
        parent = self.model_tables.runs[run_id].parent
        turn = TurnCommit(
            run_id=run_id,
            lease_no=lease_no,
            expected=max(len(log) + off, 1),
            events=[Event(event.type, event.key, event.details, now) for event in events],
            then=then,
            orders=True,
            touches=tuple(touches | ({parent.run_id} if parent else set())),
            has_children=True,
        )
        call = (worker, UUID(int=len(self.calls)), [turn])
        self.calls.append(call)
        self.do(lambda store: store.commit(*call))

    # Activities

    @rule(
        worker=workers,
        turns=st.booleans(),
        lease=st.sampled_from([4.0, 40.0]),
        late=st.sampled_from([0, 0, 1, 4]),
    )
    def claim_activities(self, worker: str, turns: bool, lease: float, late: float) -> None:
        """Claim activities, perhaps with turns."""
        self.move(late)
        handlers = (RESIZE, *HANDLERS) if turns else (RESIZE,)
        claims = self.do(
            lambda store: store.claim_tasks(worker, QUEUES, handlers, 100, lease_seconds=lease)
        )
        self.attempts += [(worker, task) for task in claims.tasks if task.kind == "activity"]
        self.held += [(worker, task) for task in claims.tasks if task.kind == "workflow"]

    def some_attempts(self, numbers: list[int]) -> list[Held]:
        """Return the attempts picked, one for an activity; some of them are stale."""
        picked = [self.attempts[-1 - number % len(self.attempts)] for number in numbers]
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

    @rule()
    def time_out_activities(self) -> None:
        """Fail what is past its time."""
        self.do(lambda store: store.time_out_activities())

    # People

    @rule(number=pick, decided=pick, approved=st.booleans(), values=payloads)
    def decide(self, number: int, decided: int, approved: bool, values: str) -> None:
        """Decide an approval, or what is none; sometimes by a decision that was taken."""
        found = self.wait(self.model.list_approvals())
        keys = [(approval.run_id, approval.key) for approval in found]
        keys += [(entry.run_id, entry.event.key) for entry in self.decisions()]
        keys.append((self.chosen([number])[0], "none"))
        run_id, key = keys[number % len(keys)]
        decision = Decision(
            run_id=run_id,
            key=key,
            decision_id=f"d-{decided % 2}",
            approved=approved,
            by="eve" if approved else None,
            values=values,
        )
        self.do(lambda store: store.decide_approval(decision))

    def decisions(self) -> list[Any]:
        """Return what was decided so far."""
        entries = self.wait(self.model.recent_events(since=0, limit=100_000))
        return [entry for entry in entries if entry.event.type == "ApprovalResolved"]

    @rule(numbers=picks, name=st.sampled_from(["packed", "rename"]), update_id=pick)
    def update(self, numbers: list[int], name: str, update_id: int) -> None:
        """Send updates."""
        updates = [
            NewSignal(run_id, name, "[1]", f"s-{update_id}", True, "client/9")
            for run_id in self.chosen(numbers)
        ]
        self.do(lambda store: store.signal_runs(updates))

    @rule(numbers=picks, pause=st.sampled_from([True, False, False]))
    def pause(self, numbers: list[int], pause: bool) -> None:
        """Pause runs, or resume them; one may stand there twice, and one that does not exist."""
        asked = [*self.chosen(numbers), UUID(int=0)]
        if pause:
            self.do(lambda store: store.pause_runs(asked, reason="look"))
        else:
            self.do(lambda store: store.resume_runs(asked))

    @rule(
        place=st.sampled_from(
            [("queue", "fast"), ("queue", "slow"), ("workflow", "order"), ("workflow", "resize")]
        ),
        paused=rarely,
    )
    def set_pause(self, place: tuple[Scope, str], paused: bool) -> None:
        """Pause a queue or a workflow, or more often, let it go on."""
        self.do(lambda store: store.set_pause(*place, paused=paused, reason="look"))

    @rule(numbers=picks)
    def terminate_together(self, numbers: list[int]) -> None:
        """End runs, perhaps with their children or parents."""
        asked = self.chosen(numbers)
        if len(numbers) > 2:
            self.do(lambda store: store.terminate_runs(asked, reason="no"))

    @rule(
        number=pick,
        until=st.sampled_from([None, None, 1, 3, 5, 0, 50]),
        retry=st.booleans(),
        payload=payloads,
        result=st.sampled_from([None, None, "charge", "none"]),
        again=rarely,
    )
    def fork(
        self,
        number: int,
        until: int | None,
        retry: bool,
        payload: str,
        result: str | None,
        again: bool,
    ) -> None:
        """Fork a run, or try to."""
        [run_id] = self.chosen([number])
        fork = Fork(
            run_id=run_id,
            new_run_id=self.ids[0] if again else self.new_id(),
            until=None if retry else until,
            retry=retry,
            input=payload if number % 2 else None,
            results={result: payload} if result else {},
            version=number % 3 or None,
        )
        self.do(lambda store: store.fork_run(fork))

    # Questions

    @rule(number=pick)
    def look_at_orders(self, number: int) -> None:
        """Ask what is not compared after every step."""
        [run_id] = self.chosen([number])
        self.both(approvals_by_age)
        self.both(lambda store: store.list_approvals(run_id=run_id))
        self.both(lambda store: store.list_pauses())
        self.both(lambda store: store.newest_runs([*self.ids, UUID(int=0)]))
        self.both(lambda store: store.find_reply(run_id, "s-1"))


def target_of(event: Event) -> str | None:
    """Return the run that an order writes to, if it is another's."""
    if event.type not in ("SignalSent", "ChildCancelRequested"):
        return None
    said = json.loads(event.details or "{}")
    return said.get("run_id") or said.get("child_run_id")


async def approvals_by_age(store: Store) -> Any:
    """Return the open approvals."""
    return [plain(approval) for approval in await store.list_approvals(limit=50)]
