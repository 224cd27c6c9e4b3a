"""Write a million runs by SQL, many of them open in each way that a run can be open."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import asyncpg

WORKFLOWS: Final = 20
QUEUES: Final = 4
_PART: Final = 100_000  # runs of one statement

# Of five runs one is open. Of the open ones most wait for a person to approve something, and a few
# are queued, running, stuck or paused.
_RUNS: Final = """
insert into holdfast.runs (run_id, name, version, key, queue, priority, status, input, output,
    error, tags, created_at, started_at, completed_at)
select holdfast.new_run_id(), 'shop/work-' || n % $3, 1, 'order-' || n, 'queue-' || n % $4, 2,
    s.status, json_build_object('customer', n % 1000, 'note', repeat('x', 100)),
    case when s.status = 'completed' then '{"paid": true}'::json end,
    case when s.status = 'failed'
        then '{"kind": "builtins.ValueError", "message": "no such font"}'::json end,
    case when n % 100 = 0 then array['vip'] else '{}' end, m.at, m.at,
    case when s.status <> 'running' then m.at + interval '2 seconds' end
from generate_series($1::int, $2::int - 1) as n
cross join lateral (
    select case when n % 5 = 0 then 'running' when n % 50 = 1 then 'failed'
        when n % 100 = 2 then 'cancelled' else 'completed' end as status) as s
cross join lateral (
    select now() - interval '3 days' + n * interval '0.2 seconds' as at) as m
"""
_TASKS: Final = """
insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, worker, lease_no,
    attempts, paused, awaiting, stuck, started_at)
select r.run_id, r.queue, r.name || '@1', 2,
    case when o.n % 80 = 0 then r.created_at when o.n % 5000 = 1 then now() + interval '1 hour'
        else 'infinity' end,
    case when o.n % 5000 = 1 then 'worker-1' end, case when o.n % 5000 = 1 then 1 else 0 end, 1,
    o.n % 1000 = 2, case when o.n % 80 <> 0 then array['packed'] end,
    case when o.n % 700 = 3 then 'its code has changed' end, r.created_at
from (
    select r.*, row_number() over (order by r.created_at) as n
    from holdfast.runs r where r.status = 'running' and r.name like 'shop/work-%'
) as o join holdfast.runs r on r.run_id = o.run_id
"""
_APPROVALS: Final = """
insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at, payload,
    started_at)
select r.run_id, 'approve', 'approval', r.queue, '', 2, 'infinity',
    '{"title": "Refund 12.50?", "fields": []}', r.created_at
from holdfast.runs r where r.status = 'running' and r.name like 'shop/work-%'
"""
_LOGS: Final = """
insert into holdfast.events (run_id, idx, event_type, at)
select r.run_id, 0, 'WorkflowStarted', r.created_at from holdfast.runs r
where r.name like 'shop/work-%'
"""
_LONG: Final = """
insert into holdfast.events (run_id, idx, event_type, key, details, at)
select $1, n, 'StepCompleted', 'resize#' || n, json_build_object('name', 'resize', 'result', n,
    'started_at', holdfast._micros(now() + n * interval '10 ms')),
    now() + n * interval '10 ms' + interval '8 ms'
from generate_series(1, $2::int - 1) as n
"""


async def write_runs(connection: asyncpg.Connection, count: int) -> None:
    """Write so many runs, a fifth of them open."""
    names = [f"work-{n}" for n in range(WORKFLOWS)]
    await connection.execute("select holdfast.sign_on_app('shop', $1, '{}')", names)
    for first in range(0, count, _PART):
        last = min(first + _PART, count)
        await connection.execute(_RUNS, first, last, WORKFLOWS, QUEUES, timeout=300)
    for statement in (_TASKS, _APPROVALS, _LOGS):
        await connection.execute(statement, timeout=300)
    await connection.execute("vacuum analyze", timeout=300)
    await connection.execute("checkpoint", timeout=300)


async def write_log(connection: asyncpg.Connection, run_id: UUID, events: int) -> None:
    """Make the log of a new run so many events long."""
    await connection.execute(_LONG, run_id, events)
