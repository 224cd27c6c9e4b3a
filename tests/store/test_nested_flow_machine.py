"""Random flows whose steps are runs under rules, on both stores at once: they must agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from machine_runs import CUSTOMERS, NAMES, PICK, RUN_FILTER, given
from seeded import SeededMachine, act, run_seeds, some
from test_flow_machine import comparable
from test_start_machine import draw_rules

from holdfast.store.port import Store
from holdfast.types import (
    ClaimedTask,
    DeclaredRules,
    Event,
    Finish,
    FlowShape,
    NewRun,
    StartRules,
    StepShape,
    StepTaskEnd,
    TurnCommit,
)

FLOWS = ("shop/inner", "shop/outer")
QUEUES = ("default",)
SERVED = [*(f"{name}@1" for name in FLOWS), f"{NAMES[0]}@1"]
FAILED = '{"kind": "Bad", "message": "no luck"}'


def draw_step(
    chance: Random, before: Sequence[StepShape], runs: Sequence[tuple[str, str] | None]
) -> StepShape:
    """Draw a step; some are runs of workflows and flows."""
    kind, what = chance.choice(["single", "map"]), chance.choice(runs)
    known = [step.slug for step in before if step.trigger_rule != "always"]
    most = 1 if kind == "map" or what else 2
    deps = chance.sample(known, min(len(known), chance.randint(0, most)))
    options: dict[str, Any] = {} if what is None else {"runs": what[0], "runs_kind": what[1]}
    if kind == "map":
        options["concurrency"] = chance.choice([None, 1, 2])
        options["tolerated_count"] = chance.choice([None, 1])
    elif what is None and deps:
        options["trigger_rule"] = chance.choice(["none_failed"] * 4 + ["all_done", "always"])
    return StepShape(
        slug=f"s{len(before)}",
        kind="map" if kind == "map" else "single",
        deps=tuple(deps),
        max_attempts=chance.choice([1, 2]),
        base_delay=chance.choice([0, 1]),
        start_delay=chance.choice([None, None, 2]),
        timeout=chance.choice([None, 3]),
        when_exhausted=chance.choice(["fail", "skip", "skip-cascade"]),
        **options,
    )


class NestedFlowsAgree(SeededMachine):
    """Starts flows in flows, whose steps are runs of a workflow that has rules for its starts."""

    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.attempts: dict[tuple[UUID, str], ClaimedTask] = {}
        self.made = 0

    def new_id(self) -> UUID:
        """Return the id of the next run."""
        self.made += 1
        return UUID(int=self.made)

    def begin(self, chance: Random) -> None:
        """Define the flows, and rules."""
        runs = [None, (f"{NAMES[0]}@1", "workflow"), (f"{NAMES[0]}@1", "workflow")]
        for name in FLOWS:
            steps: list[StepShape] = []
            for _ in range(chance.randint(1, 4)):
                steps.append(draw_step(chance, steps, runs))
            shape = FlowShape(name=name, steps=tuple(steps))
            self.do(lambda store, shape=shape: store.ensure_flow(shape, "h"))
            runs += [(f"{name}@1", "flow"), ("shop/gone@1", "flow")]
        self.declare(draw_rules(chance))

    @act(rules=draw_rules)
    def declare(self, rules: StartRules | None) -> None:
        """Declare the rules of the workflow again."""
        self.version += 1
        declared = [DeclaredRules(NAMES[0], self.version, rules)]
        self.do(lambda store: store.declare_start_rules(declared))

    @act(
        weight=2,
        lists=some([[], *([{"customer": each}] * 3 for each in CUSTOMERS)], 1, 3),
        delay=(None, None, 4.0),
        timeout=(None, None, 20.0),
    )
    def start(self, lists: list[Any], delay: float | None, timeout: float | None) -> None:
        """Start runs of the outer flow, together."""
        runs = [
            NewRun(
                run_id=self.new_id(),
                name=FLOWS[1],
                input=json.dumps(value),
                delay_seconds=delay,
                timeout_seconds=timeout,
            )
            for value in lists
        ]
        self.do(lambda store: store.start_flows(runs))

    @act(customer=CUSTOMERS)
    def start_beside(self, customer: str) -> None:
        """Start the workflow itself."""
        run = NewRun(run_id=self.new_id(), name=NAMES[0], input=given(customer))
        self.do(lambda store: store.start_runs([run]))

    @act(weight=4, seconds=(0, 1, 5), most=(1, 3, 100), ends=some([True, True, False], 1, 4))
    def work(self, seconds: float, most: int, ends: list[bool]) -> None:
        """Claim all that is due, and end some of it: steps in one call, runs in another."""
        self.move(seconds)
        self.do(lambda store: store.time_out_runs())
        for task in self.do(self.claim_all):
            self.attempts[task.run_id, task.key] = task
        ended = [self.attempts.pop(place) for place in sorted(self.attempts)[:most]]
        steps = [task for task in ended if task.kind == "step"]
        runs = [task for task in ended if task.kind == "workflow"]
        if steps:
            reports = [
                self.end_of(task, ends[number % len(ends)]) for number, task in enumerate(steps)
            ]
            self.do(lambda store: store.end_step_tasks("ann", reports))
        if runs:
            token = UUID(int=self.model.time())
            turns = [
                self.last_turn(task, ends[number % len(ends)]) for number, task in enumerate(runs)
            ]
            self.do(lambda store: store.commit("ann", token, turns))

    async def claim_all(self, store: Store) -> list[ClaimedTask]:
        """Claim all that is due; the order of equal tasks is open."""
        found = await store.claim_tasks("ann", QUEUES, SERVED, 1000, lease_seconds=1e6)
        return sorted(map(comparable, found.tasks), key=lambda task: (task.run_id, task.key))

    def end_of(self, task: ClaimedTask, is_good: bool) -> StepTaskEnd:
        """Return the end of an attempt at a step."""
        return StepTaskEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            output='[{"customer": "ann"}, {"customer": "bob"}]' if is_good else None,
            error=None if is_good else FAILED,
        )

    def last_turn(self, task: ClaimedTask, is_good: bool) -> TurnCommit:
        """Return the turn that ends a run."""
        type_ = "WorkflowCompleted" if is_good else "WorkflowFailed"
        then = Finish("completed", output='["a"]') if is_good else Finish("failed", error=FAILED)
        length = len(self.wait(self.model.read_events([(task.run_id, 0)]))[task.run_id])
        return TurnCommit(
            task.run_id,
            task.lease_no,
            length,
            [Event(type_, None, None, 0)],
            then,
            touches=self.parents(task.run_id),
        )

    @act(when="ids", number=PICK, how=("cancel", "terminate", "pause", "resume", "resume"))
    def control(self, number: int, how: str) -> None:
        """Pause, resume or stop a run."""
        asked = self.chosen([number])
        self.do(lambda store: getattr(store, f"{how}_runs")(asked))

    @act(when="ids", number=PICK, step=(None, None, "s0", "s1"))
    def retry(self, number: int, step: str | None) -> None:
        """Retry a run of a flow, which may not have ended."""
        runs = [run_id for run_id in self.ids if self.model_tables.runs[run_id].is_flow]
        if runs:
            run_id, new_id = runs[-1 - number % len(runs)], self.new_id()
            self.do(lambda store: store.retry_flow(run_id, new_id, from_step=step))

    @act(name=FLOWS, paused=(True, False, False))
    def pause_all(self, name: str, paused: bool) -> None:
        """Pause a flow, or resume it."""
        self.do(lambda store: store.set_pause("workflow", name, paused=paused))

    def check(self) -> None:
        """Compare runs, logs, steps and keys."""
        self.ids = sorted(self.model_tables.runs)
        super().check()

        async def more(store: Store) -> Any:
            known = sorted(run.run_id for run in (await store.list_runs(RUN_FILTER)).runs)
            states = await store.flow_steps(self.ids)
            return known, states, await store.list_start_keys(NAMES[0])

        self.both(more)


@pytest.mark.timeout(600)
def test_both_stores_start_runs_of_steps_under_rules_alike(module_database_url: str) -> None:
    run_seeds(NestedFlowsAgree, module_database_url, seeds=12, steps=25)
