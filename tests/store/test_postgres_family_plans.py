"""What trees, decisions, pauses and forks read, counted by the server."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from contract.commands import activity, approval, child, command
from scene import Scene
from scene import turn as turn_part
from test_postgres_plans import Meter, Reading, seed

from holdfast.types import ANY_END, ClaimedTask, Event, Finish, Suspend, TurnCommit
from holdfast.values.ids import uuid7

pytestmark = pytest.mark.fresh_database


def ordering(
    task: ClaimedTask, expected: int, *events: Event, touches: tuple[UUID, ...] = ()
) -> TurnCommit:
    """Return a part that orders something, and waits."""
    then = Suspend(awaiting=(ANY_END,))
    return TurnCommit(
        task.run_id, task.lease_no, expected, events, then, has_commands=True, touches=touches
    )


def ended(task: ClaimedTask, expected: int, parent_id: UUID) -> TurnCommit:
    """Return a part that completes a child."""
    event, then = Event("WorkflowCompleted", None, None, 0), Finish("completed", "1")
    return TurnCommit(task.run_id, task.lease_no, expected, [event], then, touches=(parent_id,))


@dataclass
class Family:
    """A run with children that passes through its life; what every call read."""

    meter: Meter
    readings: dict[str, Reading]

    async def live(self, count: int) -> None:
        """Start, wait, be decided and paused, cancel, end, be forked and terminated."""
        [run_id] = await self.meter.start(1)
        [parent] = await self.claim(1)
        calls = [f"child#{number}" for number in range(count)]
        close = {"parent_close": "abandon"}
        children = [
            child(uuid7(), call, **(close if number % 2 else {}))
            for number, call in enumerate(calls)
        ]
        orders = [*children, approval(), activity(queue="slow")]
        await self.commit(ordering(parent, 1, *orders))
        tasks = await self.claim(count)
        ids = [task.run_id for task in tasks]
        half, most = count // 2, count * 3 // 4
        sent = {"run_id": str(run_id), "signal_name": "here", "input": None}
        signals = [command("SignalSent", "s", **sent, signal_id=str(task.run_id)) for task in tasks]
        parts = zip(tasks[half:], signals, strict=False)
        await self.commit(*(ordering(task, 1, one, touches=(run_id,)) for task, one in parts))
        await self.commit(*(ended(task, 1, run_id) for task in tasks[:half]))
        await self.read("decide_approval", run_id, "approve", "d-1", True)
        await self.read("list_approvals", run_id, 10)
        await self.read("pause_runs", ids, None)
        await self.read("resume_runs", ids)
        [parent] = [task for task in await self.claim(count + 1) if task.run_id == run_id]
        cancels = [
            command("ChildCancelRequested", call, child_run_id=str(child_id), reason=None)
            for call, child_id in zip(calls[most:], ids[most:], strict=True)
        ]
        length = 1 + len(orders) + count + 1
        await self.commit(ordering(parent, length, *cancels, touches=tuple(ids[most:])))
        await self.read("newest_runs", ids)
        await self.read("find_reply", run_id, "1")
        await self.read("find_signal", run_id, "1")
        await self.read("fork_run", run_id, uuid7(), None, False, None, None, None)
        await self.read("terminate_runs", [run_id], None)
        await self.read("fork_run", run_id, uuid7(), None, True, None, None, None)
        await self.read("terminate_runs", ids, None)

    async def claim(self, limit: int) -> list[ClaimedTask]:
        """Claim what is due."""
        tasks, reading = await self.meter.claim(limit)
        self.note("claim", reading)
        return tasks

    async def commit(self, *turns: TurnCommit) -> None:
        """Commit turns."""
        self.note(f"commit {turns[0].events[-1].type}", await self.meter.commit(*turns))

    async def read(self, function: str, *arguments: object) -> None:
        """Call a function."""
        self.note(function, await self.meter.read(function, *arguments))

    def note(self, call: str, reading: Reading) -> None:
        """Keep what a call read."""
        self.readings[f"{len(self.readings)}: {call}"] = reading


async def test_plans_of_families_made_on_empty_tables_stay_right(scene: Scene) -> None:
    """Storage rule 21. Cached while there was nothing, used when there is much."""
    meter = Meter(await scene.session())
    await scene.watcher.connection.execute("vacuum analyze")
    for _ in range(8):
        await Family(meter, {}).live(2)
        await scene.value("delete from holdfast.tasks returning 1")
    await scene.watcher.connection.execute(seed(20_000))
    family = Family(meter, {})
    await family.live(20)
    much = {c: r for c, r in family.readings.items() if r.rows or r.entries > 2000}
    assert much == {}


async def test_a_fork_reads_a_log_and_no_other(scene: Scene) -> None:
    """S2. A thousand events, once for the copy."""
    meter = Meter(await scene.session())
    [run_id] = await meter.start(1)
    [task], _ = await meter.claim(1)
    steps = [Event("StepCompleted", f"step-{number}", '{"result":1}', 0) for number in range(1000)]
    await meter.commit(turn_part(task, *steps))
    await scene.watcher.connection.execute(seed(5_000))
    reading = await meter.read("fork_run", run_id, uuid7(), None, False, None, None, None)
    assert reading.rows == 0
    assert 1001 <= reading.entries < 3 * 1001


async def test_the_plan_of_a_retry_judges_a_log_once(scene: Scene) -> None:
    """What a run without children would take over is not looked for by judging all of its log."""
    meter = Meter(await scene.session())
    [run_id] = await meter.start(1)
    [task], _ = await meter.claim(1)
    steps = [Event("StepCompleted", f"step-{number}", '{"result":1}', 0) for number in range(1000)]
    failed = Event("WorkflowFailed", None, '{"seen":900,"calls":["step-1"]}', 0)
    finish = Finish("failed", None, '{"kind":"ValueError","message":"no"}')
    await meter.commit(TurnCommit(task.run_id, task.lease_no, 1, [*steps, failed], finish))
    await meter.session.connection.execute("set track_functions = 'all'")
    judged = "holdfast._untried_events(uuid, int, json)"
    async with meter.session.transaction():
        plan = await meter.session.call("retry_plan", run_id)
        assert [row["key"] for row in plan if row["fate"] == "failed"] == ["step-1"]
        calls = f"select pg_stat_get_xact_function_calls('{judged}'::regprocedure)"
        assert await meter.session.connection.fetchval(calls) == 1


async def test_a_reply_is_looked_for_after_its_update(scene: Scene) -> None:
    """Else each update of a run would read all those before it."""
    meter = Meter(await scene.session())
    [run_id] = await meter.start(1)
    [task], _ = await meter.claim(1)
    steps = [Event("StepCompleted", f"step-{number}", '{"result":1}', 0) for number in range(1000)]
    await meter.commit(turn_part(task, *steps))
    await meter.session.call("signal_runs", [run_id], ["add"], ["1"], ["u-1"], [True])
    await scene.value(
        "insert into holdfast.events (run_id, idx, event_type, key, at) "
        "values ($1, 1002, 'UpdateCompleted', 'u-1', holdfast.now()) returning 1",
        run_id,
    )
    assert len(await meter.session.call("find_reply", run_id, "u-1")) == 1
    reading = await meter.read("find_reply", run_id, "u-1")
    assert (reading.rows, reading.entries < 10) == (0, True)


async def test_an_end_reads_a_log_once_for_all_its_updates(scene: Scene) -> None:
    """Who has not been answered is told. The others are not looked for one by one."""
    meter = Meter(await scene.session())
    [run_id, asker] = await meter.start(2)
    await scene.watcher.connection.execute(
        """
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select $1, n * 2 + i, t, 'u-' || n,
            case i when 1 then json_build_object('signal_name', 'add', 'reply_to', $2::text) end,
            holdfast.now()
        from generate_series(0, 499) as n
        cross join unnest('{SignalReceived,UpdateCompleted}'::text[]) with ordinality as t (t, i)
        where n > 0 or i = 1
        """,
        run_id,
        f"run/{asker}",
    )
    reading = await meter.read("terminate_runs", [run_id])
    assert (reading.rows, reading.entries // 1000 < 10) == (0, True)
    told = "select array_agg(event_type) from holdfast.events where run_id = $1 and idx > 0"
    assert await scene.value(told, asker) == ["SignalReceived"]


async def test_the_plan_of_a_retry_reads_a_log_no_more_often_for_more_failures(
    scene: Scene,
) -> None:
    meter = Meter(await scene.session())
    [run_id] = await meter.start(1)
    [task], _ = await meter.claim(1)
    steps = [Event("StepFailed", f"step-{number}", '{"error":{}}', 0) for number in range(1000)]
    failed = Event("WorkflowFailed", None, '{"seen":900,"calls":["step-1"]}', 0)
    finish = Finish("failed", None, '{"kind":"ValueError","message":"no"}')
    await meter.commit(TurnCommit(task.run_id, task.lease_no, 1, [*steps, failed], finish))
    reading = await meter.read("retry_plan", run_id, True)
    assert (reading.rows, reading.entries // 1000 < 20) == (0, True)


async def test_the_plan_of_a_retry_finds_the_calls_of_many_answers_at_once(scene: Scene) -> None:
    meter = Meter(await scene.session())
    [run_id] = await meter.start(1)
    await scene.watcher.connection.execute(
        """
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select $1, n * 2 + i, t, case i when 1 then 'add#' || n
                else 'failed/' || $1::uuid || '/add#' || n end,
            '{"signal_name":"update-reply"}', holdfast.now()
        from generate_series(0, 499) as n
        cross join unnest('{StepCompleted,SignalReceived}'::text[]) with ordinality as t (t, i)
        """,
        run_id,
    )
    await meter.session.call("terminate_runs", [run_id])
    plan = await meter.session.call("retry_plan", run_id, True)
    assert [row["fate"] for row in plan] == ["failed"] * 500
    reading = await meter.read("retry_plan", run_id, True)
    assert (reading.rows, reading.entries // 1000 < 20) == (0, True)
