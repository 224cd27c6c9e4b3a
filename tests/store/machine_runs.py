"""What the machines for schedules, rules, limits and topics have in common: a worker."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from seeded import SeededMachine, act, some

from holdfast.store.port import Store
from holdfast.types import ANY_END, ClaimedTask, Event, Finish, RunFilter, Suspend, TurnCommit

NAMES = ("shop/buy", "shop/sell")
HANDLERS = [f"{name}@1" for name in NAMES]
CUSTOMERS = ("ann", "bob")
WORKERS = ("ann", "bob", "cy")
PICK = range(8)  # which of the runs or turns so far
ENDS = ("complete", "complete", "sleep", "wait", "continue")
MOST_CLAIMS = 30
RUN_FILTER = RunFilter(limit=1000)


def given(customer: str) -> str:
    """Return the input of a run for a customer."""
    return json.dumps({"customer": customer})


class WorkAgrees(SeededMachine):
    """Claims and ends runs on both stores, also those that other things have started."""

    lease_seconds = 1e6

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.turns: dict[UUID, tuple[str, ClaimedTask]] = {}

    def new_id(self) -> UUID:
        """Return the id of the next run. The ids stay in order, as the logs are compared."""
        self.made += 1
        new = UUID(int=self.made)
        self.ids = sorted([*self.ids, new])
        return new

    @act(
        weight=3,
        worker=WORKERS,
        seconds=(0, 0.5, 2, 5, 11),
        ends=some(ENDS, 0, 4),
        customer=CUSTOMERS,
    )
    def work(self, worker: str, seconds: float, ends: list[str], customer: str) -> None:
        """Let time pass, claim all that is due and allowed, and end the turns of some."""
        self.move(seconds)
        for task in self.do(lambda store: self.claim(store, worker)):
            self.turns[task.run_id] = (worker, task)
        self.learn()
        for how in ends[: len(self.turns)]:
            self.end_turn(0, how, customer)

    async def claim(self, store: Store, worker: str) -> Any:
        """Claim as a worker does: again as long as the answer says that there may be more."""
        found: list[ClaimedTask] = []
        for _ in range(MOST_CLAIMS):
            claims = await store.claim_tasks(
                worker, ["default"], HANDLERS, 100, lease_seconds=self.lease_seconds
            )
            found += claims.tasks
            if claims.next_due_at is None or claims.next_due_at > claims.now:
                return sorted(found, key=lambda task: (task.run_id, task.key))
        raise AssertionError(f"{MOST_CLAIMS} claims, and there may be more: {found}")

    @act(when="turns", number=PICK, how=ENDS, customer=CUSTOMERS)
    def end_turn(self, number: int, how: str, customer: str) -> None:
        """End a run that is executed, let it wait, or let another run take its place."""
        if how == "complete":
            end = Event("WorkflowCompleted", None, None, 0)
            self.commit(number, end, Finish("completed", output="1"))
        elif how == "continue":
            new = str(self.new_id())
            said: dict[str, Any] = {
                "run_id": new,
                "input": {"customer": customer},
                "version": 1,
                "signals": [],
            }
            event = Event("WorkflowContinuedAsNew", "", json.dumps(said), 0)
            then = Finish("continued", output=json.dumps({"run_id": new}))
            self.commit(number, event, then, has_commands=True)
        else:
            at = self.model.time() + 1_000_000 if how == "sleep" else None
            event = Event("ValueSet", "state", '{"value":1}', 0)
            self.commit(number, event, Suspend(at, (ANY_END, "go")))

    def commit(self, number: int, event: Event, then: Suspend | Finish, **flags: Any) -> None:
        """Commit the turn of one of the runs that are executed."""
        run_id = sorted(self.turns)[number % len(self.turns)]
        worker, task = self.turns.pop(run_id)
        length = len(self.wait(self.model.read_events([(run_id, 0)]))[run_id])
        turn = TurnCommit(run_id, task.lease_no, length, [event], then, **flags)
        token = UUID(int=self.model.time())
        self.do(lambda store: store.commit(worker, token, [turn]))

    @act(when="ids", number=PICK, terminate=(True, False))
    def stop(self, number: int, terminate: bool) -> None:
        """End a run from outside, or ask it to end."""
        run_id = self.chosen([number])[0]
        if terminate:
            self.turns.pop(run_id, None)
            self.do(lambda store: store.terminate_runs([run_id]))
        else:
            self.do(lambda store: store.cancel_runs([run_id]))

    def learn(self) -> None:
        """Compare all runs; those that nobody here started are known from then on."""

        async def runs(store: Store) -> Any:
            found = (await store.list_runs(RUN_FILTER)).runs
            return sorted((run.run_id, run.name, run.status, run.key) for run in found)

        known = {run_id for run_id, *_ in self.both(runs)}
        self.ids = sorted(known.union(self.ids))
