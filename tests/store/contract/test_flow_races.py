"""Workers that end steps of the same runs at the same moment, and people who stop these runs.

P8.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from uuid import uuid4

from holdfast.types import ClaimedTask, FlowShape, NewRun

from .actors import get
from .flow_actors import NAME, NO_LUCK, Flows, StepWorker, end, mapped, single

ROUNDS = 5
SESSIONS = 8


async def share(flows: Flows, size: int) -> list[tuple[StepWorker, list[ClaimedTask]]]:
    """Claim all that is due, a few tasks for each of several workers in turn."""
    shares: list[tuple[StepWorker, list[ClaimedTask]]] = []
    while True:
        worker = StepWorker(flows.store, f"w{len(shares) % SESSIONS}")
        tasks = (await worker.claims(size)).tasks
        if not tasks:
            return shares
        shares.append((worker, tasks))


async def test_ends_of_many_runs_come_in_opposite_orders(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    """Each worker ends one of two siblings of each run: no step behind both is lost or doubled."""
    await flows.define(single("a"), single("b", queue="gpu"), single("c", "a", "b"))
    for _ in range(ROUNDS):
        runs = {await flows.start() for _ in range(10)}
        a = (await worker.claims(queues=("default",))).tasks
        b = (await other.claims(queues=("gpu",))).tasks
        by_run = sorted(a, key=lambda task: task.run_id)
        backwards = sorted(b, key=lambda task: task.run_id, reverse=True)
        answers = await asyncio.gather(
            worker.report(*(end(task) for task in by_run)),
            other.report(*(end(task) for task in backwards)),
        )
        assert [answer.outcomes for answer in answers] == [["recorded"] * 10] * 2
        tasks = (await worker.claims()).tasks
        assert [task.key for task in tasks] == ["c"] * 10
        assert {task.run_id for task in tasks} == runs
        await worker.report(*(end(task) for task in tasks))


async def test_many_workers_end_elements_of_one_map(flows: Flows) -> None:
    """No count is lost: the map is through once, and its results are in order."""
    run_id = await flows.run_of(mapped("m"), single("z", "m"), given=list(range(200)))
    shares = await share(flows, 5)
    answers = await asyncio.gather(
        *(
            worker.report(*(end(task, int(task.payload or "")) for task in tasks))
            for worker, tasks in shares
        )
    )
    outcomes = Counter(outcome for answer in answers for outcome in answer.outcomes)
    assert outcomes == {"recorded": 200}
    m = (await flows.steps(run_id))["m"]
    assert (m.status, m.remaining_tasks) == ("completed", 0)
    assert json.loads(m.output or "") == list(range(200))
    assert (await flows.log(run_id)).count("FlowStepCompleted m") == 1
    task = await StepWorker(flows.store).one()
    assert task.key == "z"


async def test_the_last_elements_of_two_maps_end_at_once(
    flows: Flows, worker: StepWorker, other: StepWorker
) -> None:
    await flows.define(mapped("m"), mapped("n", queue="gpu"), single("z", "m", "n"))
    for _ in range(ROUNDS):
        await flows.start([1])
        m = await worker.one(queues=("default",))
        n = await other.one(queues=("gpu",))
        await asyncio.gather(worker.report(end(m)), other.report(end(n)))
        task = await worker.one()
        assert task.key == "z"
        await worker.complete(task)


async def test_an_element_fails_while_others_complete(flows: Flows) -> None:
    """What is recorded has a result, what is lost has none, and the counter agrees."""
    await flows.define(mapped("m", max_attempts=1), single("z", "m"))
    for _ in range(ROUNDS):
        run_id = await flows.start(list(range(40)))
        shares = await share(flows, 4)
        bad = shares[len(shares) // 2][1][0].key
        answers = await asyncio.gather(
            *(
                worker.report(
                    *(
                        end(task, error=NO_LUCK) if task.key == bad else end(task, 1)
                        for task in tasks
                    )
                )
                for worker, tasks in shares
            )
        )
        outcomes = Counter(outcome for answer in answers for outcome in answer.outcomes)
        assert set(outcomes) <= {"recorded", "lost"}
        assert (await flows.error(run_id))["step"] == "m"
        m = (await flows.steps(run_id))["m"]
        assert (m.status, m.remaining_tasks) == ("failed", 40 - (outcomes["recorded"] - 1))
        assert await StepWorker(flows.store).take() == {}


async def test_a_run_is_cancelled_while_elements_complete(flows: Flows) -> None:
    await flows.define(mapped("m"))
    for _ in range(ROUNDS):
        run_id = await flows.start(list(range(40)))
        shares = await share(flows, 4)
        reports = [worker.report(*(end(task, 1) for task in tasks)) for worker, tasks in shares]
        answers = await asyncio.gather(
            *reports[:5], flows.store.cancel_runs([run_id]), *reports[5:]
        )
        outcomes = Counter(outcome for answer in answers for outcome in answer.outcomes)
        assert outcomes["recorded"] + outcomes["lost"] == 40
        status = "cancelled" if outcomes["delivered"] else "completed"
        assert (await get(flows.store, run_id)).status == status
        m = (await flows.steps(run_id))["m"]
        assert (m.remaining_tasks or 0) == 40 - outcomes["recorded"]
        assert await StepWorker(flows.store).take() == {}


async def test_many_workers_bring_the_same_shape(flows: Flows) -> None:
    shape = FlowShape(name=NAME, steps=(single("a"),))
    answers = await asyncio.gather(*(flows.store.ensure_flow(shape, "h") for _ in range(20)))
    assert Counter(answer.status for answer in answers) == {"compiled": 1, "verified": 19}


async def test_a_run_is_started_twice_at_once(flows: Flows, worker: StepWorker) -> None:
    await flows.define(single("a"))
    for _ in range(ROUNDS):
        run = NewRun(run_id=uuid4(), name=NAME)
        answers = await asyncio.gather(*(flows.store.start_flows([run]) for _ in range(4)))
        assert sorted(started.created for [started], _ in answers) == [False, False, False, True]
        await worker.complete(await worker.one())


async def test_failures_and_skips_of_one_run_come_from_many_workers(flows: Flows) -> None:
    """Siblings that fail skip the step behind them too; the run ends once, with the last report."""
    names = [f"s{number}" for number in range(8)]
    await flows.define(
        *(single(name, max_attempts=1, when_exhausted="skip-cascade") for name in names),
        *(
            single(f"{one}_{two}", one, two)
            for one, two in zip(names[::2], names[1::2], strict=True)
        ),
    )
    for _ in range(ROUNDS):
        run_id = await flows.start()
        shares = await share(flows, 1)
        answers = await asyncio.gather(
            *(worker.report(end(task, error=NO_LUCK)) for worker, [task] in shares)
        )
        assert [answer.outcomes for answer in answers] == [["recorded"]] * 8
        assert await flows.output(run_id) == {}
        statuses = Counter((await flows.statuses(run_id)).values())
        assert statuses == {"skipped": 12}
        entries = await flows.log(run_id)
        assert len(entries) == len(set(entries)) == 14
