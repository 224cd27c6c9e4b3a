"""Random flows on both stores at once: they must answer alike, and as their graphs say.

Steps complete, fail, are skipped and lose their workers in any order and in any batches. At the end
of each example all that is left is done, and each run must have ended as a run of its graph can.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import msgspec
import pytest
from agreement import Agreement, Held, all_pages, run_machine, sorted_unserved
from drawn import pick, picks, rarely
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.graphs import ENDED, Ended, Graph, Node, faults

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import (
    ClaimedTask,
    FlowFork,
    FlowShape,
    Lease,
    NewRun,
    Release,
    RunFilter,
    State,
    StepShape,
    StepTaskEnd,
    Taker,
)

QUEUES = ("fast", "slow")
FLOWS = ("shop/trip", "shop/site")
HANDLERS = tuple(f"{name}@1" for name in FLOWS)
SECOND = 1_000_000
RETRIES = 4  # at the end of each example
PATIENCE = 400  # rounds until all that is left of an example must have ended
NO_LUCK = '{"kind": "Bad", "message": "no luck"}'

END_ENTRIES = {"completed": "FlowStepCompleted", "skipped": "FlowStepSkipped"}

workers = st.sampled_from(["ann", "bob"])
chances = st.integers(0, 9999).map(Random)  # of which shrinking changes nothing
endings = st.sampled_from(["output", "output", "output", "error", "error", "final"])


class FlowsAgree(Agreement):
    """Defines, starts and works on flows in both stores."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: dict[str, Graph] = {}
        self.runs: dict[UUID, tuple[Graph, Any]] = {}
        self.copied: dict[UUID, dict[str, str]] = {}  # of retries: steps that had ended, and how

    @initialize(chance=chances)
    def begin(self, chance: Random) -> None:
        """Define the flows, and start a run of each."""
        for name in FLOWS:
            self.graphs[name] = Graph(chance)
            shape = shape_of(name, self.graphs[name])
            self.do(lambda store, shape=shape: store.ensure_flow(shape, "h"))
            self.start(name, 3, 2, None, False)
        self.claim("ann", 0, 40.0)

    # Callers

    @rule(
        name=st.sampled_from(FLOWS),
        size=st.sampled_from([0, 1, 2, 5]),
        priority=st.integers(1, 2),
        timeout=st.sampled_from([None, None, 60.0]),
        again=rarely,
    )
    def start(
        self, name: str, size: int, priority: int, timeout: float | None, again: bool
    ) -> None:
        """Start a run, sometimes twice."""
        given: object = {"n": size}
        if self.graphs[name].maps_the_input:
            given = [size + place for place in range(size)]
        run = NewRun(
            run_id=self.new_id(),
            name=name,
            queue=QUEUES[size % 2],
            priority=priority,
            input=json.dumps(given),
            key=f"k{size}",
            timeout_seconds=timeout,
            waiter="client/1",
        )
        self.runs[run.run_id] = (self.graphs[name], given)
        self.do(lambda store: store.start_flows([run] * (1 + again)))

    @rule(number=pick, how=st.sampled_from(["pause", "resume", "resume", "cancel", "terminate"]))
    def control(self, number: int, how: str) -> None:
        """Pause, resume or stop a run."""
        asked = self.chosen([number])
        match how:
            case "pause":
                self.do(lambda store: store.pause_runs(asked))
            case "resume":
                self.do(lambda store: store.resume_runs(asked))
            case "cancel":
                self.do(lambda store: store.cancel_runs(asked))
            case _:
                self.do(lambda store: store.terminate_runs(asked))

    @rule(
        place=st.sampled_from([("queue", "fast"), ("workflow", FLOWS[0])]),
        paused=st.sampled_from([True, False, False]),
    )
    def pause_all(self, place: Any, paused: bool) -> None:
        """Pause a queue or a flow, or resume it."""
        self.do(lambda store: store.set_pause(*place, paused=paused))

    @rule(number=pick, step=st.sampled_from([None, "", "", "s0", "s1", "s3"]), again=rarely)
    def retry(self, number: int, step: str | None, again: bool) -> None:
        """Retry a run, which may not have ended, or by an id that is taken."""
        ended = [run_id for run_id in self.ids if self.has_ended(run_id)]
        source = ended if ended and number < 6 else self.ids
        self.retry_run(source[-1 - number % len(source)], step, again)

    @rule(
        number=pick,
        given=st.sampled_from([(), ("s0",), ("s1",), ("s1", "s3"), ("s2", "s4")]),
        step=st.sampled_from([None, "", "s2"]),
        keeps=st.booleans(),
    )
    def fork(self, number: int, given: Sequence[str], step: str | None, keeps: bool) -> None:
        """Fork a run, which may not have ended, with other outputs or another input."""
        run_id = self.ids[-1 - number % len(self.ids)]
        value = FlowFork(
            run_id=run_id,
            new_run_id=self.new_id(),
            from_step=step,
            input=None if keeps else '[{"n": 1}]',
            results=dict.fromkeys(given, "[1, 2]"),
        )
        with suppress(InvalidInput):  # its shape was replaced by one that cannot map its input
            self.do(lambda store: store.fork_flow(value))

    def has_ended(self, run_id: UUID) -> bool:
        """Return True if a run exists and has ended."""
        return run_id in self.model_tables.runs and not self.model_tables.is_running(run_id)

    def retry_run(self, run_id: UUID, step: str | None, again: bool) -> None:
        """Retry a run; what is copied is not in the log of the new one."""
        new_id = self.ids[0] if again else self.new_id()
        ask = lambda store: store.retry_flow(run_id, new_id, from_step=step)  # noqa: E731
        try:
            outcome, _ = self.do(ask)
        except InvalidInput:
            return  # its shape was replaced by one that cannot map its input
        if outcome == "started" and run_id in self.runs:
            run = self.model_tables.runs[new_id].new
            self.runs[new_id] = (self.graphs[run.name], json.loads(run.input))
            self.copied[new_id] = self.ended_steps(new_id)

    def ended_steps(self, run_id: UUID) -> dict[str, str]:
        """Return the steps of a run that have ended without an entry in its log."""
        states = self.wait(self.model.flow_steps([run_id]))[run_id]
        told = {event.key for event in self.wait(self.model.read_events([(run_id, 0)]))[run_id]}
        ended = {state.step: state.status for state in states if state.status in ENDED}
        return {slug: status for slug, status in ended.items() if slug not in told}

    @rule(name=st.sampled_from(FLOWS), chance=chances, often=rarely)
    def replace(self, name: str, chance: Random, often: bool) -> None:
        """Replace a flow by another one; runs of the old one are not judged any more."""
        if not often:
            return
        self.graphs[name] = Graph(chance)
        shape = shape_of(name, self.graphs[name])
        shape_hash = f"h{self.model.time()}"
        self.do(lambda store: store.ensure_flow(shape, shape_hash))
        self.do(lambda store: store.ensure_flow(shape, shape_hash, replace=True))

    # Workers

    @rule(
        worker=workers,
        late=st.sampled_from([0, 0, 0, 1, 5, 41]),
        lease=st.sampled_from([4.0, 40.0]),
    )
    def claim(self, worker: str, late: float, lease: float) -> None:
        """Claim all that is due. The order of tasks that are equally due is open."""
        self.move(late)

        async def claims(store: Store) -> Any:
            found = await store.claim_tasks(worker, QUEUES, HANDLERS, 1000, lease_seconds=lease)
            tasks = sorted(map(comparable, found.tasks), key=lambda task: (task.run_id, task.key))
            return tasks, found.next_due_at, found.notices

        tasks, _, _ = self.do(claims)
        self.held += [(worker, task) for task in tasks]

    @precondition(lambda self: self.held)
    @rule(
        number=pick,
        size=st.sampled_from([1, 1, 2, 4, 30]),
        endings=st.lists(endings, min_size=1, max_size=3),
        takes=st.booleans(),
        twice=rarely,
    )
    def end(self, number: int, size: int, endings: list[str], takes: bool, twice: bool) -> None:
        """End attempts of one worker, which may be over, in one call."""
        held = self.standing() or self.held
        worker = held[-1 - number % len(held)][0]
        batch = [task for holder, task in held if holder == worker][-size:]
        kinds = [endings[place % len(endings)] for place in range(len(batch))]
        self.report(worker, list(zip(batch, kinds, strict=True)) * (1 + twice), takes)

    @precondition(lambda self: self.held)
    @rule(numbers=picks, endings=st.lists(endings, min_size=3, max_size=3))
    def end_late(self, numbers: list[int], endings: list[str]) -> None:
        """End attempts that may be another's by now."""
        batch = [self.held[-1 - number % len(self.held)] for number in numbers]
        tasks = [task for _, task in batch]
        self.report(batch[0][0], list(zip(tasks, endings, strict=False)), False)

    def report(self, worker: str, batch: list[tuple[ClaimedTask, str]], takes: bool) -> None:
        """Report ends, and take what becomes ready."""
        ends = [self.end_of(task, kind) for task, kind in batch]
        taker = Taker(1000, QUEUES[:1], HANDLERS, 40.0) if takes else None

        async def report(store: Any) -> Any:
            ended = await store.end_step_tasks(worker, ends, taker)
            tasks = sorted(map(comparable, ended.tasks), key=lambda task: (task.run_id, task.key))
            return ended.outcomes, ended.notices, tasks

        _, _, tasks = self.do(report)
        self.held += [(worker, task) for task in tasks]

    def end_of(self, task: ClaimedTask, kind: str) -> StepTaskEnd:
        """Return the end of an attempt: what its step returns for what it is given, or an error."""
        output = None
        if kind == "output":
            returned = self.graphs[task.name].output(
                task.key.partition(":")[0], json.loads(task.payload or "")
            )
            output = json.dumps(returned)
        return StepTaskEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            output=output,
            error=None if kind == "output" else NO_LUCK,
            retryable=kind != "final",
        )

    def standing(self) -> list[Held]:
        """Return the attempts that are under way."""
        tasks = self.model_tables.tasks
        return [
            (worker, task)
            for worker, task in self.held
            if (row := tasks.get((task.run_id, task.key))) is not None
            and (row.worker, row.lease_no) == (worker, task.lease_no)
        ]

    @precondition(lambda self: self.held)
    @rule(numbers=picks, seconds=st.sampled_from([None, 5]))
    def release(self, numbers: list[int], seconds: int | None) -> None:
        """Give tasks back, which may be another's by now."""
        held = [self.held[-1 - number % len(self.held)] for number in dict.fromkeys(numbers)]
        visible_at = None if seconds is None else self.model.time() + seconds * SECOND
        places = dict.fromkeys((task.run_id, task.key, task.lease_no) for _, task in held)
        releases = [Release(*place, visible_at=visible_at) for place in places]
        self.do(lambda store: store.release_tasks(held[0][0], releases))

    @precondition(lambda self: self.held)
    @rule(numbers=picks)
    def heartbeat(self, numbers: list[int]) -> None:
        """Sign a worker on, and renew leases, some of them another's."""
        held = [self.held[-1 - number % len(self.held)] for number in numbers]
        places = dict.fromkeys((task.run_id, task.key, task.lease_no) for _, task in held)
        leases = [Lease(*place, 0, '{"at": 1}') for place in places]
        info = self.info(held[0][0])
        self.do(lambda store: store.heartbeat(info, leases, lease_seconds=4.0))

    # Maintenance and time

    @rule(seconds=st.sampled_from([1, 4, 41]), gone=st.sampled_from([(), (), ("ann",), ("bob",)]))
    def pass_time(self, seconds: float, gone: tuple[str, ...]) -> None:
        """Let time pass, end what is past its deadline, and forget workers."""
        self.move(seconds)
        self.do(lambda store: store.time_out_runs())
        if gone:
            self.do(lambda store: store.reap_workers(worker_ids=gone))

    @rule(states=st.sampled_from([(), ("queued",), ("running",), ("waiting", "paused")]))
    def look_around(self, states: tuple[State, ...]) -> None:
        """Ask what is not compared after every step."""
        self.both(lambda store: all_pages(store, RunFilter(states=states)))
        self.both(sorted_unserved)
        self.both(lambda store: store.list_flows())
        self.both(lambda store: store.get_flow(FLOWS[0]))

    def teardown(self) -> None:
        """Do all that is left; each run has ended as its graph says, and nothing is left of it."""
        for scope, name in [("queue", "fast"), ("workflow", FLOWS[0])]:
            self.do(lambda store, s=scope, n=name: store.set_pause(s, n, paused=False))
        self.do(lambda store: store.reap_workers(worker_ids=["ann", "bob"]))
        self.drain()
        for number, run_id in enumerate(self.ids[:RETRIES]):
            if self.has_ended(run_id):
                self.retry_run(run_id, f"s{number}" if number % 2 else None, False)
        self.drain()
        self.every_step_is_the_same()
        assert not self.model_tables.tasks
        for run_id, run in self.wait(self.model.get_runs(self.ids)).items():
            graph, given = self.runs.get(run_id, (None, None))  # forks are not judged
            if graph is not None and graph is self.graphs[run.full_name]:
                assert faults(graph, given, self.ended(run)) == []

    def drain(self) -> None:
        """Work until every run has ended."""
        for _ in range(PATIENCE):
            if not self.model_tables.tasks:
                return
            self.do(lambda store: store.resume_runs(self.ids))
            self.claim("ann", 1.0, 4.0)
            if batch := self.standing():
                self.report("ann", [(task, luck(task)) for _, task in batch], True)

    def ended(self, run: Any) -> Ended:
        """Return a run as the graphs' rules look at it."""
        states = self.wait(self.model.flow_steps([run.run_id]))[run.run_id]
        log = self.wait(self.model.read_events([(run.run_id, 0)]))[run.run_id]
        return Ended(
            run.status,
            json.loads(run.output or "null"),
            {
                state.step: {
                    "status": state.status,
                    "skip_reason": state.skip_reason,
                    "output": json.loads(state.output or "null"),
                    "failed_tasks": state.failed_tasks,
                }
                for state in states
            },
            [(event.type, event.key) for event in log]
            + [
                (END_ENTRIES[status], slug)
                for slug, status in self.copied.get(run.run_id, {}).items()
            ],
        )

    @invariant()
    def every_step_is_the_same(self) -> None:
        """Compare all steps of all runs."""
        self.both(lambda store: store.flow_steps(self.ids))


def comparable(task: ClaimedTask) -> ClaimedTask:
    """Return a task with errors in one form: SQL writes spaces into these."""
    if task.payload is None or '"$failed"' not in task.payload:
        return task
    return msgspec.structs.replace(task, payload=json.dumps(json.loads(task.payload)))


def luck(task: ClaimedTask) -> str:
    """Return how an attempt ends when nothing is drawn: every fourth fails, always the same."""
    drawn = zlib.crc32(f"{task.run_id} {task.key} {task.lease_no}".encode())
    return ("error", "output", "output", "output")[drawn % 4]


def shape_of(name: str, graph: Graph) -> FlowShape:
    """Return the shape of a graph; some of its steps have options of their own."""
    steps = tuple(map(step_of, graph.nodes.values()))
    return FlowShape(name=name, base_delay=1, steps=steps)


def step_of(node: Node) -> StepShape:
    number = int(node.slug[1:])
    return StepShape(
        slug=node.slug,
        kind="map" if node.kind == "map" else "single",
        deps=node.deps,
        wants_run=True,
        queue="slow" if number % 3 == 2 else None,
        max_attempts=node.attempts,
        base_delay=0 if number % 2 else None,
        start_delay=2 if number == 4 else None,
        required=None if node.required is None else json.dumps(node.required),
        forbidden=None if node.forbidden is None else json.dumps(node.forbidden),
        when_unmet=node.unmet,
        when_exhausted=node.exhausted,
        trigger_rule=node.rule,
        tolerated_count=node.tolerated,
        concurrency=node.concurrency,
    )


@pytest.mark.timeout(900)  # a failure is reduced to the fewest steps, which takes its time
def test_both_stores_advance_flows_alike_whatever_happens(module_database_url: str) -> None:
    run_machine(FlowsAgree, module_database_url, examples=35, steps=30)
