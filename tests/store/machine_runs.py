"""What the machines for schedules, rules, limits and topics have in common: a worker."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
from agreement import Agreement
from drawn import pick, workers
from hypothesis.stateful import precondition, rule

from holdfast.store.port import Store
from holdfast.types import (
    ANY_END,
    ClaimedTask,
    Event,
    Finish,
    RunFilter,
    Suspend,
    TurnCommit,
)

NAMES = ("shop/buy", "shop/sell")
CUSTOMERS = st.sampled_from(["ann", "bob"])
RUN_FILTER = RunFilter(limit=1000)


def given(customer: str) -> str:
    """Return the input of a run for a customer."""
    return json.dumps({"customer": customer})


class WorkAgrees(Agreement):
    """Claims and ends runs on both stores, also those that other things have started."""

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

    @rule(
        worker=workers,
        seconds=st.sampled_from([0, 0.5, 2, 5, 11]),
        ends=st.lists(st.sampled_from(["complete", "complete", "sleep", "wait", "continue"])),
        customer=CUSTOMERS,
    )
    def work(self, worker: str, seconds: float, ends: list[str], customer: str) -> None:
        """Let time pass, claim all that is due and allowed, and end the turns of some."""
        self.move(seconds)
        handlers = [f"{name}@1" for name in NAMES]

        async def claim(store: Store) -> Any:
            claims = await store.claim_tasks(worker, ["default"], handlers, 100, lease_seconds=1e6)
            return sorted(claims.tasks, key=lambda task: (task.run_id, task.key))

        for task in self.do(claim):
            self.turns[task.run_id] = (worker, task)
        self.learn()
        for how in ends[: len(self.turns)]:
            self.end_turn(0, how, customer)

    @precondition(lambda self: self.turns)
    @rule(
        number=pick,
        how=st.sampled_from(["complete", "complete", "sleep", "wait", "continue"]),
        customer=CUSTOMERS,
    )
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

    @precondition(lambda self: self.ids)
    @rule(number=pick, terminate=st.booleans())
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
